"""RocketMQ HA: master-to-slave commit log replication in Python on Twisted.

In reading order:

- ``wire/``: the byte formats: records, HA frames, remoting commands. Pure Python, without I/O.
- ``filter/``: SQL92 filters: the grammar, and what an expression gives for a message.
- ``store/``: the disk: the commit log, the consume queues and the index.
- ``remoting/``: RocketMQ's remoting protocol: connections, requests and answers.
- ``acl/``: RocketMQ's access control: signatures, accounts and what they may do.
- ``coordination/``: the coordinator of failover: a client of etcd, and the witness.
- ``ha/``: replication: the master's end, the slave's end, and their states.
- ``failover/``: automatic failover: what a node does in a cluster whose leader a coordinator names.
- ``broker/``: answers clients, and talks to other brokers and to name servers.
- ``replicating``: what keeps and copies a log, made for ``node`` and for the simulator.
- ``nodeplan``: what a node is configured to be.
- ``masterendpoints``: how a slave reaches its master.
- ``web/``: the HTTP port: metrics, health checks and a status page.
- ``rereading``: settings and certificates that change while a node runs.
- ``opennode``: a node while its store is open: the services of its role.
- ``node``: a running node: opens its store, changes its role, and stops.
- ``leaderendpoint``: how a member of a failover cluster reaches the leader before its store is open.
- ``clusternode``: a node whose role the agent of ``failover`` decides.
- ``failoveroptions``: the options of such a node.
- ``ops/``: what operators see: logs, status, ports, retention.
- ``namesrv/``: a name server.
- ``client/``: a small producer and consumer.
- ``pipeline/``: the log as data: Arrow, Spark and the jobs.
- ``testing/``: doubles and a simulator, for our users' tests too.
- ``tap``: the twistd plugin of a node: its options and its wiring.
- ``namesrv_tap``: the twistd plugin of the name server.
- ``cli/``: the ``rmqha`` command.
- ``launch``: starts the ``rmqha`` command.
- ``interrupts``: Ctrl-C while modules are imported.

Several of these share the following modules:

- ``settings``: RocketMQ's broker.conf and the command line, as one frozen ``Settings``.
- ``confkeys``: the keys that a broker.conf may contain.
- ``interfaces``: contracts that have more than one implementation.
- ``endpoints``: parses addresses: ``host:port`` or a Twisted endpoint string.
- ``connecting``: connections that are retried, and how the log reports that.
- ``httpchannel``: a connection of a small HTTP server, with its limits.
- ``tls/``: TLS for the HA port and the remoting ports.
- ``commands``: how commands end, and the options that describe a store.
- ``events``: the names of what the log reports.
- ``exitcodes``: the exit codes of commands and nodes.
- ``printing``: escapes text that others chose, for terminals and log files.
- ``progress``: shows how far a long work has come: a bar or lines.
- ``sending``: writes to a socket now, because somebody waits for the bytes.
- ``services``: Twisted services that stop in order, and periodic calls that survive errors.
- ``steps``: long work that is done in steps.
- ``histogram``: durations, counted in classes.
- ``times``: times as people write them.
- ``trouble``: a trouble that lasts gets one line in the log.

ARCHITECTURE.md draws which package may import which.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rmqha")
except PackageNotFoundError:  # a checkout on PYTHONPATH, not installed
    __version__ = "0+checkout"
