"""Operation: what operators see and set.

In reading order:

- ``process``: options, signals and exit codes of every process that twistd runs for us.
- ``notify``: tells systemd what a process does.
- ``tlsoptions``: the TLS options of nodes and name servers.
- ``listening``: a port that is open while a process runs.
- ``certificates``: read again while a process runs.
- ``places``: how far a long work has come.
- ``terminalbar``: a progress bar below the lines of the log.
- ``logs``: where log events go: text for people, or JSON lines for machines.
- ``statefile``: keeps state.json current while a node runs.
- ``snapshots``: keeps snapshots of the tables while a node runs, for ``rmqha restore``.
- ``control``: the socket on which a running node takes orders from commands on its machine.
- ``status``: what ``rmqha status`` shows.
- ``storestatus``: the same of a store on this machine.
- ``brokerstatus``: the same of a broker.
- ``ways``: how commands reach brokers and name servers.
- ``top``: what ``rmqha top`` shows.
- ``doctor/``: what ``rmqha doctor`` checks.
- ``cleaning``: deletes old segments while a node runs (retention).
"""
