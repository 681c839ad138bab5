"""A master (SYNC_MASTER), as `twistd -ny tac/sync_master.tac` runs it: fill in the options and it is your recipe."""

from twisted.application.service import Application

from rmqha.tap import Options, makeService

options = Options()
options.parseOptions(["--role=sync-master", "--store=store/master", "--port=10911"])

application = Application("rmqha")
makeService(options).setServiceParent(application)
