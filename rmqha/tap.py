"""The twistd plugin: options, and the wiring of a node. ``twistd -n rmqha --help`` shows it from outside."""

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from twisted.application.service import IService
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python import usage

from rmqha.endpoints import make_endpoint, remoting_address_of
from rmqha.exitcodes import ExitCode
from rmqha.ha.replica import StartFrom
from rmqha.ha.service import OnGap, SlaveOptions
from rmqha.node import Node, NodePlan
from rmqha.ops.cleaning import Hold
from rmqha.ops.logs import LogFormat, NodeLogObserver
from rmqha.settings import BrokerRole, Settings, SettingsError, make_settings, read_properties

NO_REMOTING = "none"
LAST_STANDARD_FD = 2

SETTING_OPTIONS = {
    "store": "storePathRootDir",
    "port": "listenPort",
    "ha-port": "haListenPort",
    "master": "haMasterAddress",
    "name": "brokerName",
    "cluster": "brokerClusterName",
    "broker-id": "brokerId",
    "namesrv": "namesrvAddr",
}
"""Options that are settings of broker.conf under another name; given, they win over the file."""


class Options(usage.Options):
    """What ``twistd rmqha`` accepts. ``settings`` and ``slave`` hold the outcome."""

    synopsis = "[options]"
    longdesc = (
        "Runs one node of a RocketMQ master/slave pair: a slave copies the commit log of its master, Java's or ours, "
        "and proves every record; a master serves the log of its store."
    )
    optParameters = [
        ["role", None, None, "slave, async-master or sync-master; else brokerRole of --conf"],
        ["store", None, None, "folder of the store (storePathRootDir)"],
        ["conf", None, None, "a RocketMQ broker.conf, read as it is; options here win over it"],
        ["master", None, None, "slave: the master's HA port, host:port or a Twisted endpoint (haMasterAddress)"],
        [
            "master-remoting",
            None,
            None,
            "slave: the master's remoting port, as --master, or 'none'; default: the one below its HA port",
        ],
        ["port", None, None, "listenPort, 0 for any free one; default 10911. The fast port is two below"],
        ["ha-port", None, None, "haListenPort, 0 for any free one; default: one above --port"],
        ["bind", None, "", "address to listen at; default: all"],
        [
            "from",
            None,
            "min",
            "slave with an empty store: begin at the master's min, at its last segment, or at an OFFSET",
        ],
        [
            "on-gap",
            None,
            "stop",
            "slave: when the master has deleted what comes next: stop, or reseed (keeps the old log aside)",
        ],
        ["name", None, None, "brokerName"],
        ["cluster", None, None, "brokerClusterName"],
        ["broker-id", None, None, "brokerId; a slave's is greater than 0"],
        ["namesrv", None, None, "name servers, host:port;host:port (namesrvAddr)"],
        ["set", None, None, "any other setting of broker.conf, KEY=VALUE; may be repeated"],
        ["max-hold-bytes", None, None, "with --hold: hold at most so many bytes of the log; default: all"],
        ["log-format", None, "text", "text for people, json for machines"],
    ]
    optFlags = [
        [
            "hold",
            None,
            "delete nothing that a slave, connected or gone, has not acknowledged; slots are in STORE/rmqha/slots",
        ],
        ["observer", None, "slave: copy, and never count as a replica: no SYNC_MASTER waits for this one"],
        [
            "once",
            None,
            "slave: copy all the master has now, then exit: 0, 3 GAP, 4 AHEAD, 5 DIVERGED, 6 STALLED, 7 not connected",
        ],
    ]

    settings: Settings
    slave: SlaveOptions
    hold: Hold
    log_format: LogFormat

    def __init__(self) -> None:
        _fill_standard_files()
        self._overrides: dict[str, str] = {}
        usage.Options.__init__(self)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """As Twisted calls it; wrong usage ends the process with status 2 and one line on stderr."""
        try:
            usage.Options.parseOptions(self, options)
        except usage.UsageError as error:
            _leave_now(ExitCode.USAGE, f"{error} (twistd rmqha --help tells more)")

    def opt_set(self, text: str) -> None:
        """any other setting of broker.conf, KEY=VALUE; may be repeated"""
        key, separator, value = text.partition("=")
        if not separator:
            raise usage.UsageError(f"--set {text}: not of the form KEY=VALUE")
        self._overrides[key.strip()] = value

    def postOptions(self) -> None:
        """Check all that can be checked before anything runs. Raises UsageError."""
        try:
            self.settings = make_settings(self._properties())
            self.slave = SlaveOptions(
                StartFrom.parse(self["from"]),
                _choice(OnGap, self, "on-gap"),
                bool(self["once"]),
                bool(self["observer"]),
            )
            self.log_format = _choice(LogFormat, self, "log-format")
            self.hold = self._make_hold()
            self._check_role()
        except (SettingsError, ValueError) as error:
            raise usage.UsageError(str(error)) from error

    def _properties(self) -> dict[str, str]:
        properties = read_properties(Path(self["conf"])) if self["conf"] is not None else {}
        given = {key: self[option] for option, key in SETTING_OPTIONS.items() if self[option] is not None}
        if self["store"] is not None:
            properties.pop("storePathCommitLog", None)  # the option moves the whole store
        if self["role"] is not None:
            given["brokerRole"] = BrokerRole.from_option(self["role"]).value
        elif "brokerRole" not in properties:
            raise SettingsError("give --role=slave, async-master or sync-master, or a --conf with brokerRole")
        return {**properties, **self._overrides, **given}

    def _make_hold(self) -> Hold:
        text = self["max-hold-bytes"]
        if text is None:
            return Hold(bool(self["hold"]))
        if not text.isdecimal() or not self["hold"]:
            raise SettingsError(f"max-hold-bytes={text} is no number of bytes, or --hold is missing")
        return Hold(True, int(text))

    def _check_role(self) -> None:
        if self.settings.broker_role is BrokerRole.SLAVE:
            if not self.settings.ha_master_address:
                raise SettingsError("a slave needs --master=HOST:PORT, its master's HA port (haMasterAddress)")
            self._endpoints(None)
        else:
            for flag in ("once", "observer"):
                if self[flag]:
                    raise SettingsError(f"--{flag} is a slave's")

    def _endpoints(self, reactor: Any) -> tuple[IStreamClientEndpoint, IStreamClientEndpoint | None]:
        """The ways to the master's HA port and to its remoting port. Raises ValueError."""
        ha_address, remoting_address = self.settings.ha_master_address, self["master-remoting"]
        ha = make_endpoint(reactor, ha_address)
        if remoting_address == NO_REMOTING:
            return ha, None
        if remoting_address is None:
            remoting_address = remoting_address_of(ha_address)
        return ha, None if remoting_address is None else make_endpoint(reactor, remoting_address)

    def plan(self, reactor: Any) -> NodePlan:
        """What the node is to do."""
        is_slave = self.settings.broker_role is BrokerRole.SLAVE
        master, master_remoting = self._endpoints(reactor) if is_slave else (None, None)
        return NodePlan(
            self.settings,
            self.slave,
            master,
            master_remoting,
            bind_address=self["bind"],
            hold=self.hold,
            observer=self._observer(),
            manages_process=True,
        )

    def _observer(self) -> NodeLogObserver | None:
        """Ours, unless twistd was told of another; under a .tac, whose twistd keeps its options to itself, for JSON."""
        twistd_options = self.parent
        if twistd_options is None:
            return NodeLogObserver(self.log_format, None) if self.log_format is LogFormat.JSON else None
        if twistd_options.get("syslog") or twistd_options.get("logger"):
            return None
        path = twistd_options.get("logfile")
        if path == "-" or (path is None and twistd_options.get("nodaemon")):
            return NodeLogObserver(self.log_format, None)
        return NodeLogObserver(self.log_format, Path(path or "twistd.log"))


def _fill_standard_files() -> None:
    """Give descriptors 0 to 2 something to be: twistd's way to a daemon would else overwrite our own files there."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD_FD:
        pass
    os.close(fd)


def _choice(kind: Any, options: Options, name: str) -> Any:
    try:
        return kind(options[name])
    except ValueError:
        raise SettingsError(
            f"{name} is {options[name]!r}, not {' or '.join(member.value for member in kind)}"
        ) from None


def makeService(options: Options) -> IService:
    """A node, as the options say; twistd runs it."""
    from twisted.internet import reactor

    return Node(options.plan(reactor), reactor, partial(_leave, reactor))


def _leave(reactor: Any, code: ExitCode, reason: str) -> None:
    """Stop the reactor, and let the process end with ``code``; the first call wins."""
    if code is not ExitCode.FINE and not _leaving:
        _leaving.append(code)
        _complain(reason)
        # twistd itself always ends with status 0; what is registered last runs first, after the reactor's clean stop.
        atexit.register(_exit_hard, code)
    reactor.callWhenRunning(_stop_once, reactor)


_leaving: list[ExitCode] = []


def _stop_once(reactor: Any) -> None:
    with suppress(ReactorNotRunning):  # it may be on its way down already
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
        print(f"rmqha: {reason}", file=sys.__stderr__, flush=True)
