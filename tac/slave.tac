"""A slave, as `twistd -ny tac/slave.tac` runs it: fill in the options and it is your recipe."""

from twisted.application.service import Application

from rmqha.tap import Options, makeService

options = Options()
options.parseOptions(["--role=slave", "--store=store/slave", "--master=127.0.0.1:10912", "--port=10921", "--broker-id=1"])

application = Application("rmqha")
makeService(options).setServiceParent(application)
