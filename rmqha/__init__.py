"""RocketMQ HA: master-to-slave commit log replication in Python on Twisted.

Rooms, in reading order: ``wire`` (what bytes mean), ``store`` (the disk), ``ha`` (replication), ``broker`` (what
answers clients), ``ops`` (what operators see), ``testing`` (doubles for our users' tests too). ``tap`` wires them
into a twistd plugin, ``cli`` into the ``rmqha`` command. ARCHITECTURE.md draws who may import whom.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rmqha")
except PackageNotFoundError:  # a checkout on PYTHONPATH, not installed
    __version__ = "0+checkout"
