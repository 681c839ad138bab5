"""What all our processes share under twistd: options, signals, and an exit code with the reason in one line."""

import atexit
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReactorCore, IReactorTime
from twisted.logger import ILogObserver, Logger
from twisted.python import usage
from twisted.python.components import Componentized
from twisted.scripts.twistd import ServerOptions  # type: ignore[attr-defined]  # it is public there
from zope.interface import implementer

from rmqha import __version__
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable
from rmqha.ops.logs import LogFormat, NodeLogObserver, SyslogObserver
from rmqha.ops.notify import IStatusTeller, Notifier, notifier_of_process
from rmqha.settings.confkeys import nearest
from rmqha.settings.settings import MAX_PORT, SettingsError
from twisted import __version__ as twisted_version

LAST_STANDARD_FD = 2
MAX_FILES = 65536
UNKNOWN_OPTION = re.compile(r"option --(\S+) not recognized")

Leave = Callable[[ExitCode, str], None]
"""Ends the process with an exit code and the reason in one line."""


class ProcessOptions(usage.Options):
    """The options of all processes. A plugin's options are a subclass, which sets its ``command``."""

    command: ClassVar[str]
    optParameters = [
        ["bind", None, "", "address to listen on; default: all"],
        ["log-format", None, "text", "text for people, or json for machines"],
        [
            "http-port",
            None,
            None,
            "serve metrics for Prometheus, health checks and a status page here: PORT on loopback, or ADDRESS:PORT, "
            "*:PORT for all addresses, 0 for any free port; default: off",
        ],
    ]

    def __init__(self) -> None:
        _fill_standard_files()
        usage.Options.__init__(self)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse the options, as Twisted calls it. Wrong usage ends the process with status 2 and one line on stderr."""
        try:
            usage.Options.parseOptions(self, options)
        except usage.UsageError as error:
            hint = f" (did you mean --{close}?)" if (close := self._closest(str(error))) is not None else ""
            _leave_now(ExitCode.USAGE, f"{error}{hint} (see twistd {self.command} --help)")

    def _closest(self, problem: str) -> str | None:
        """The option that is most similar to the unknown one that getopt complains of."""
        found = UNKNOWN_OPTION.fullmatch(problem)
        return None if found is None else nearest(found[1], (name.rstrip("=") for name in self.longOpt))

    def opt_version(self) -> NoReturn:
        """Show the versions of rmqha and Twisted, and exit."""
        from rmqha.wire.compiled import implementation  # a node imports it when it opens its store

        print(f"rmqha, version {__version__} (Twisted {twisted_version}; {implementation()})")
        raise SystemExit(0)

    def choice(self, kind: Any, name: str) -> Any:
        """The member of an Enum that an option names. Raises SettingsError."""
        try:
            return kind(self[name])
        except ValueError:
            members = " or ".join(member.value for member in kind)
            raise SettingsError(f"{name} is {self[name]!r}, not {members}") from None

    def observer(self) -> NodeLogObserver | SyslogObserver | None:
        """Our log observer, or None if --logger names another one. Twisted's do not escape what strangers send."""
        log_format: LogFormat = self.choice(LogFormat, "log-format")
        twistd_options = self.parent if self.parent is not None else options_of_twistd(sys.argv)
        if twistd_options is None:  # another program runs the service
            return NodeLogObserver(log_format, None) if log_format is LogFormat.JSON else None
        if twistd_options.get("logger"):
            return None
        if twistd_options.get("syslog"):
            return SyslogObserver(twistd_options.get("prefix") or "twisted")
        path = twistd_options.get("logfile")
        if path == "-" or (path is None and twistd_options.get("nodaemon")):
            return NodeLogObserver(log_format, None)
        return NodeLogObserver(log_format, Path(path or "twistd.log"))


class _TwistdOptions(ServerOptions):
    """Twisted's options of twistd, read a second time: nothing is done about them."""

    def opt_reactor(self, shortName: str) -> None:
        """which reactor to use"""


def options_of_twistd(arguments: Sequence[str]) -> Mapping[str, Any] | None:
    """The options of the twistd that loads a .tac file. None if another program loads it."""
    if not arguments or Path(arguments[0]).stem != "twistd":
        return None
    options = _TwistdOptions()
    try:
        options.parseOptions(list(arguments[1:]))
    except (usage.UsageError, SystemExit):
        return None
    found: Mapping[str, Any] = options
    return found


def parse_port(name: str, text: str) -> int:
    """The port that an option gives, 0 for any free one. Raises SettingsError."""
    if not (text.isascii() and text.isdecimal()) or int(text) > MAX_PORT:
        raise SettingsError(f"{name}={text} is not a port: ports are between 0 and {MAX_PORT}")
    return int(text)


def _fill_standard_files() -> None:
    """Open descriptors 0 to 2 if they are closed: else twistd, as a daemon, would overwrite other open files there."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD_FD:
        pass
    os.close(fd)


def _ignore_signals() -> None:
    """Ignore further signals, because Python restores their default effect while it shuts down."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@implementer(IStatusTeller)
class ProcessService(MultiService):
    """All services of a process. If it ``manages_process``, it handles signals and raises the limit of open files.

    ``observer`` writes the log events; None leaves them to twistd.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        leave: Leave,
        observer: NodeLogObserver | SyslogObserver | None = None,
        manages_process: bool = False,
    ) -> None:
        MultiService.__init__(self)
        self._reactor = reactor
        self._leave = leave
        self._observer = observer
        self._manages_process = manages_process
        self._notifier: Notifier | None = None
        self._is_ready = self._is_failing = False
        self._reloading: Deferred[None] | None = None
        self._reload_again = False

    def setServiceParent(self, parent: Any) -> None:
        """Join an application, and make our observer the application's log observer."""
        MultiService.setServiceParent(self, parent)
        if self._observer is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._observer)

    def startService(self) -> None:
        if self._manages_process:
            raise_file_limit()
            self._notifier = notifier_of_process(IReactorTime(self._reactor), self)
            if self._notifier is not None:
                self._notifier.start()
        self.open()
        if self._manages_process:
            self._handle_signals()
            atexit.register(_ignore_signals)
            IReactorCore(self._reactor).callWhenRunning(self._handle_signals)  # the reactor has replaced ours
        MultiService.startService(self)

    def open(self) -> None:
        """Create the services. If that fails, end the process by ``stop_with``."""
        raise NotImplementedError

    def status_line(self) -> str:
        """What the process does, in a few words, for ``systemctl status``."""
        return "running" if self._is_ready else "starting"

    def ready(self) -> None:
        """The process works: its ports are open. Only the first call counts, and none after an error."""
        if self._is_ready or self._is_failing:
            return
        self._is_ready = True
        if self._notifier is not None:
            self._notifier.ready()

    async def reload(self) -> None:
        """Read again what SIGHUP is for, besides the log file. What cannot be used is logged, and changes nothing."""

    def stop_with(self, code: ExitCode, reason: str) -> None:
        """Log the reason, and end the process with this exit code."""
        self._log.critical("{reason}", event=Event.PROCESS_ENDS, reason=reason, code=int(code))
        self._is_failing = True
        if self._notifier is not None:
            self._notifier.failing(reason)
        self._leave(code, reason)

    def _handle_signals(self) -> None:
        """SIGTERM and SIGINT end with exit status 0, unlike with twistd's handlers. SIGHUP reads files again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._stop_reactor))
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._hang_up))

    def _stop_reactor(self) -> None:
        with suppress(ReactorNotRunning):  # a second signal, while the process is stopping
            self._reactor.stop()

    def _hang_up(self) -> None:
        """Reopen the log file, and read the configuration again. Signals that come meanwhile count as one."""
        if self._reloading is not None:
            self._reload_again = True
            return
        self._reload_again = False
        notifier = self._notifier if self._is_ready else None
        if notifier is not None:
            notifier.reloading()
        self._reopen_logs()
        self._reloading = Deferred.fromCoroutine(self.reload())
        self._reloading.addErrback(
            lambda failure: self._log.failure("SIGHUP: not all could be read again", failure, event=Event.RELOAD_FAILED)
        )
        self._reloading.addCallback(lambda _: self._reloaded(notifier))

    def _reloaded(self, notifier: Notifier | None) -> None:
        self._reloading = None
        if notifier is not None and self.running:
            notifier.ready()
        if self._reload_again:
            self._hang_up()

    def _reopen_logs(self) -> None:
        if self._observer is not None:
            try:
                self._observer.reopen()
            except OSError as error:
                self._log.error(
                    "cannot reopen the log file: {error}", event=Event.LOG_FILE_NOT_REOPENED, error=str(error)
                )
            else:
                self._log.info("log file reopened", event=Event.LOG_FILE_REOPENED)

    def stopService(self) -> Deferred[None]:
        if self._manages_process:
            self._reactor._exitSignal = None  # twistd reads it; a signal before our handlers were set may have set it
        stopped: Deferred[None] = MultiService.stopService(self)
        return stopped

    def stopping(self) -> None:
        """The process stops from now on: its owner says so before it stops the first service."""
        if self._notifier is not None:
            self._notifier.stopping()

    def stopped(self) -> None:
        """Nothing is left to stop."""
        if self._notifier is not None:
            self._notifier.stopped()
            self._notifier = None


def raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed, up to MAX_FILES: a broker needs several for each queue."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def go_by_monotonic_time(reactor: Any) -> None:
    """Make the reactor's timers use the monotonic clock: the wall clock may step. Does nothing if any timer exists."""
    if not reactor.getDelayedCalls():
        reactor.seconds = time.monotonic


def leave(reactor: Any, code: ExitCode, reason: str) -> None:
    """Stop the reactor, and end the process with ``code``. The first failing call decides."""
    if code is not ExitCode.FINE and not _leaving:
        _leaving.append(code)
        _complain(reason)
        # twistd itself always ends with status 0. The last registered function runs first, after the reactor's stop.
        atexit.register(_exit_hard, code)
    reactor.callWhenRunning(_stop_once, reactor)


_leaving: list[ExitCode] = []


def _stop_once(reactor: Any) -> None:
    with suppress(ReactorNotRunning):  # it may be stopping already
        reactor.stop()


def _exit_hard(code: ExitCode) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_now(code: ExitCode, reason: str) -> NoReturn:
    _complain(reason)
    raise SystemExit(int(code))


def _complain(reason: str) -> None:
    if sys.__stderr__ is not None:
        print(f"rmqha: {printable(reason)}", file=sys.__stderr__, flush=True)
