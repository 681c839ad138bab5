"""A master (ASYNC_MASTER), as `twistd -ny tac/async_master.tac` runs it: fill in the options and it is your recipe."""

from twisted.application.service import Application

from rmqha.tap import Options, makeService

options = Options()
options.parseOptions(["--role=async-master", "--store=store/master", "--port=10911"])

application = Application("rmqha")
makeService(options).setServiceParent(application)
