"""A node of a failover cluster, as `twistd -ny tac/failover.tac` runs it: fill in the options and it is your recipe."""

from twisted.application.service import Application

from rmqha.tap import Options, makeService

options = Options()
options.parseOptions(
    [
        "--role=sync-master",
        "--store=store/a",
        "--port=10911",
        "--name=broker-a",
        "--failover=etcd:http://127.0.0.1:2379",
        "--member=a",
    ]
)

application = Application("rmqha")
makeService(options).setServiceParent(application)
