"""RocketMQ HA: master-to-slave commit log replication in Python on Twisted.

Each folder is a room with one purpose, and a room imports only from those that this list names before it.

In reading order:

- ``kit/``: small parts that know nothing of RocketMQ: events, exit codes, services, progress.
- ``wire/``: the byte formats: records, HA frames, remoting commands. Without I/O.
- ``filter/``: SQL92 filters: the grammar, and what an expression gives for a message.
- ``settings/``: RocketMQ's broker.conf and the command line, as one frozen ``Settings``.
- ``net/``: addresses and TLS.
- ``store/``: the disk: the commit log, the consume queues and the index; repairs while no node runs.
- ``coordination/``: the coordinator of failover: a client of etcd, and the witness.
- ``ha/``: replication: the master's end, the slave's end, and their states.
- ``remoting/``: RocketMQ's remoting protocol: connections, requests and answers.
- ``failover/``: automatic failover: what a node does in a cluster whose leader a coordinator names.
- ``acl/``: RocketMQ's access control: signatures, accounts and what they may do.
- ``namesrv/``: a name server.
- ``ops/``: what operators see: logs, status, ports, retention.
- ``broker/``: answers clients, and talks to other brokers and to name servers.
- ``client/``: a producer, consumers, and what tools need of brokers.
- ``pipeline/``: the log as data, without a reactor: Arrow, Spark and the jobs.
- ``web/``: the HTTP port: metrics, health checks and a status page.
- ``cli/``: the ``rmqha`` command.
- ``launch``: starts the command, and answers Ctrl-C before anything is imported.
- ``node/``: a node: opens its store, changes its role, and stops.
- ``tap``: the twistd plugin of a node: its options and its wiring.
- ``namesrv_tap``: the twistd plugin of the name server.
- ``testing/``: doubles and a simulator, for our users' tests too.

We keep what users name: commands and their options, settings, events, metrics, exit codes, ``rmqha.client``,
``format("rmqha")`` in Spark, the plugins of twistd, and ``tap`` and ``namesrv_tap`` for .tac files. NEWS.md has the
rules, and docs/api.md lists the public modules. All others may move. ARCHITECTURE.md draws the rooms.
"""

__version__ = "1.0.0"
"""As in pyproject.toml: to look it up in what is installed took a tenth of a command's start."""
