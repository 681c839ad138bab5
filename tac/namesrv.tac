"""A name server, as `twistd -ny tac/namesrv.tac` runs it: fill in the options and it is your recipe."""

from twisted.application.service import Application

from rmqha.namesrv_tap import Options, makeService

options = Options()
options.parseOptions(["--port=9876", "--folder=store/namesrv"])

application = Application("rmqha-namesrv")
makeService(options).setServiceParent(application)
