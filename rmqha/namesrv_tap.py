"""The twistd plugin of the name server. See ``twistd -n rmqha-namesrv --help``."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import IService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.python import usage
from twisted.python.threadpool import ThreadPool

from rmqha.exitcodes import ExitCode
from rmqha.namesrv.service import NameServerService, name_server_limits
from rmqha.ops.listening import HttpPort, ListeningService, tcp_endpoint
from rmqha.ops.logs import LogFormat
from rmqha.ops.process import ProcessOptions, ProcessService, go_by_monotonic_time, leave, parse_port
from rmqha.remoting.protocol import RemotingFactory
from rmqha.remoting.turns import SELDOM
from rmqha.settings import SettingsError
from rmqha.store.errors import StoreError
from rmqha.web.namesrvweb import name_server_web


class Options(ProcessOptions):
    """What ``twistd rmqha-namesrv`` accepts. ``postOptions`` sets ``listen_port`` and ``folder``."""

    command = "rmqha-namesrv"
    synopsis = "[options]"
    longdesc = "Runs a RocketMQ name server. Brokers, Java's or ours, register with it, and clients ask it for routes."
    optParameters = [
        ["port", None, "9876", "port to listen on, 0 for any free port"],
        ["folder", None, "~/namesrv", "folder of kvConfig.json; created when it is needed"],
    ]

    listen_port: int
    folder: Path
    http: HttpPort | None

    def postOptions(self) -> None:
        """Check all that can be checked before anything runs. Raises UsageError."""
        try:
            self.listen_port = parse_port("port", self["port"])
            self.folder = _folder(self["folder"])
            self.choice(LogFormat, "log-format")
            self.http = None if self["http-port"] is None else HttpPort.parse(self["http-port"])
        except SettingsError as error:
            raise usage.UsageError(str(error)) from error


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise SettingsError(f"folder={text!r} is not a folder")
    try:
        return Path(text).expanduser().absolute()  # a daemon may go to another folder before the file is made
    except RuntimeError:
        raise SettingsError(f"folder={text} starts with ~ and the name of a user without a home folder") from None


class NameServerProcess(ProcessService):
    """A name server and its port."""

    def __init__(self, options: Options, reactor: Any) -> None:
        """Raises SettingsError, OSError."""
        ProcessService.__init__(self, reactor, partial(leave, reactor), options.observer(), manages_process=True)
        self._port = options.listen_port
        self._bind_address: str = options["bind"]
        self._http = options.http
        self._folder = options.folder
        self._threads = ThreadPool(minthreads=0, maxthreads=1, name="rmqha-tables")
        self._name_server: NameServerService | None = None

    def _run_in_thread(self, function: Callable[[], None]) -> Deferred[None]:
        running: Deferred[None] = deferToThreadPool(self._reactor, self._threads, function)
        return running

    def startService(self) -> None:
        ProcessService.startService(self)
        self._reactor.callWhenRunning(self.ready)

    def status_line(self) -> str:
        """How many brokers are registered."""
        if self._name_server is None or not self.running:
            return ProcessService.status_line(self)
        brokers = self._name_server.route_info.broker_count
        return f"name server, {brokers} broker{'' if brokers == 1 else 's'} registered"

    def stopService(self) -> Deferred[None]:
        stopped = Deferred.fromCoroutine(self._stop())
        return stopped

    async def _stop(self) -> None:
        self.stopping()
        await ProcessService.stopService(self)
        if self._threads.started:
            self._threads.stop()
        self.stopped()

    def open(self) -> None:
        gc.set_threshold(*SELDOM)
        self._threads.start()
        clock = IReactorTime(self._reactor)
        try:
            name_server = NameServerService(clock, self._folder, self._run_in_thread)
        except StoreError as error:
            self.stop_with(ExitCode.CORRUPT, str(error))
            return
        except OSError as error:
            self.stop_with(ExitCode.IO_ERROR, f"cannot read {self._folder}: {error}")
            return
        name_server.config |= {"bindAddress": self._bind_address, "listenPort": str(self._port)}
        self._name_server = name_server
        name_server.setServiceParent(self)
        factory = RemotingFactory(name_server.processors(), clock, name_server_limits())
        endpoint = tcp_endpoint(self._reactor, self._port, self._bind_address)
        ListeningService(endpoint, factory, "name server", "plain", self._cannot_listen).setServiceParent(self)
        if self._http is not None:
            name_server_web(
                self._http.endpoint(self._reactor),
                name_server.route_info,
                factory,
                self._reactor,
                self._cannot_listen,
            ).setServiceParent(self)

    def _cannot_listen(self, reason: str) -> None:
        self.stop_with(ExitCode.IO_ERROR, reason)


def makeService(options: Options) -> IService:
    """Make the name server that the options describe; twistd runs it."""
    from twisted.internet import reactor

    go_by_monotonic_time(reactor)
    return NameServerProcess(options, reactor)
