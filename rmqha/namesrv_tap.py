"""The twistd plugin of the name server. See ``twistd -n rmqha-namesrv --help``."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import IService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from rmqha.coordination.address import Login, read_login
from rmqha.coordination.witness.calls import Logins, WitnessCalls
from rmqha.coordination.witness.http import IPeers, WitnessFactory
from rmqha.coordination.witness.journal import JournalError, JournalInUse
from rmqha.coordination.witness.witnessservice import WitnessService
from rmqha.ha.admission.allowlist import AllowList, SlaveCheck
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.namesrv.nameserver import NameServerService, name_server_limits
from rmqha.namesrv.peers import Access
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import TLSSources
from rmqha.ops.certificates import reread_certificates
from rmqha.ops.listening import HttpPort, IPortOwner, ListeningService, tcp_endpoint
from rmqha.ops.logs import LogFormat
from rmqha.ops.process import ProcessService, go_by_monotonic_time, leave, parse_port
from rmqha.ops.tlsoptions import TLS_CERTIFICATE, TLS_VERIFY, TLSOptions, secured
from rmqha.remoting.networks import is_loopback, network_of
from rmqha.remoting.protocol import RemotingFactory
from rmqha.remoting.turns import SELDOM
from rmqha.settings.settings import SettingsError, TlsMode, make_settings
from rmqha.store.errors import NoStore, StoreError
from rmqha.store.log.mappedfile import check_not_among_segments


class Options(TLSOptions):
    """What ``twistd rmqha-namesrv`` accepts. ``postOptions`` sets ``listen_port`` and ``folder``."""

    command = "rmqha-namesrv"
    synopsis = "[options]"
    longdesc = "Runs a RocketMQ name server. Brokers, Java's or ours, register with it, and clients ask it for routes."
    optParameters = [
        ["port", None, "9876", "port to listen on, 0 for any free port"],
        ["folder", None, "~/namesrv", "folder of kvConfig.json; created when it is needed"],
        [
            "allow-brokers",
            None,
            None,
            "who may register brokers: addresses, networks, or names in certificates, separated by commas; "
            "default: everybody",
        ],
        [
            "allow-admin",
            None,
            None,
            "who may remove topics, change permissions of brokers and the key-value configuration, as --allow-brokers; "
            "default: only this machine. A broker may always change what it has registered itself",
        ],
        *TLS_CERTIFICATE,
        ["tls-ca", None, None, "PEM file, or folder of .pem files: the authorities of --tls-verify-slaves"],
        [
            "witness",
            None,
            None,
            "run the witness at this port, 0 for any free port: a small coordinator for the failover of nodes; "
            "default: off",
        ],
        ["witness-folder", None, None, "folder of the witness's journal; default: witness in the folder of --folder"],
        ["witness-bind", None, None, "address for the witness to listen on; default: that of --bind"],
        ["witness-allow", None, None, "addresses and networks that may reach the witness, with commas; default: all"],
        [
            "witness-login",
            None,
            None,
            "file with the lines user=NAME and password=WORD: the witness serves only who logs in so",
        ],
        ["witness-tls-cert", None, None, "PEM file with the witness's certificate: it then speaks TLS only"],
        ["witness-tls-key", None, None, "PEM file with its private key; default: in --witness-tls-cert"],
        ["witness-tls-ca", None, None, "PEM file, or folder, with authorities: clients must show a certificate of one"],
    ]

    optFlags = [TLS_VERIFY]

    listen_port: int
    folder: Path
    tls_mode: TlsMode | None
    access: Access
    http: HttpPort | None
    witness: "WitnessPlan | None"

    def opt_set(self, text: str) -> None:
        """tls.server.mode=permissive: also accept plain clients; disabled: only these; default: TLS if --tls-cert"""
        TLSOptions.opt_set(self, text)

    def postOptions(self) -> None:
        """Check all that can be checked before anything runs. Raises UsageError."""
        try:
            self.listen_port = parse_port("port", self["port"])
            self.folder = _folder(self["folder"])
            self.choice(LogFormat, "log-format")
            self.tls_mode = self._tls_mode()
            self.read_tls(self.tls_mode)
            if self["tls-ca"] is not None and not self.verifies_peers:
                raise SettingsError("--tls-ca has no effect: add --tls-verify-slaves")
            self.http = None if self["http-port"] is None else HttpPort.parse(self["http-port"])
            self.access = Access(self._allowed("allow-brokers"), self._allowed("allow-admin"))
            self.witness = self._witness()
        except (SettingsError, TLSError) as error:
            raise usage.UsageError(str(error)) from error

    def _allowed(self, option: str) -> AllowList | None:
        """Raises SettingsError."""
        found = _allow_list(option, self[option])
        if found is not None and found.names and not self.verifies_peers:
            raise SettingsError(f"--{option} by name needs --tls-verify-slaves: without it no peer shows a certificate")
        return found

    def _tls_mode(self) -> TlsMode | None:
        """Raises SettingsError."""
        others = sorted(self._overrides.keys() - {TLS_SERVER_MODE})
        if others:
            raise SettingsError(f"{others[0]} is not a setting of a name server: the only one is {TLS_SERVER_MODE}")
        return make_settings(self._overrides).tls_server_mode

    def _witness(self) -> "WitnessPlan | None":
        """Raises SettingsError, TLSError."""
        if self["witness"] is None:
            for name in WITNESS_OPTIONS:
                if self[name] is not None:
                    raise SettingsError(f"{name} is for the witness: it needs --witness=PORT")
            return None
        login = None if self["witness-login"] is None else Path(self["witness-login"]).absolute()
        plan = WitnessPlan(
            port=parse_port("witness", self["witness"]),
            folder=self.folder / "witness" if self["witness-folder"] is None else _folder(self["witness-folder"]),
            address=self["bind"] if self["witness-bind"] is None else self["witness-bind"],
            allowed=_addresses("witness-allow", self["witness-allow"]),
            tls=self._witness_tls(),
            login=login,
        )
        plan.read_login()
        return plan

    def _witness_tls(self) -> TLSSources | None:
        certificate, key, authorities = (self[f"witness-tls-{each}"] for each in ("cert", "key", "ca"))
        if certificate is None:
            if key is not None or authorities is not None:
                raise SettingsError("witness-tls-key and witness-tls-ca need --witness-tls-cert")
            return None
        return TLSSources(certificate, key, authorities, authorities is not None, serves=True)


TLS_SERVER_MODE = "tls.server.mode"
WITNESS_OPTIONS = tuple(str(name) for name, *_ in Options.optParameters if str(name).startswith("witness-"))


@dataclass(frozen=True)
class WitnessPlan:
    """What the options say of the witness."""

    port: int
    folder: Path
    address: str
    allowed: AllowList | None
    tls: TLSSources | None
    login: Path | None

    @property
    def is_open_to_all(self) -> bool:
        """Whether everybody on the network may change its keys."""
        guarded = self.allowed is not None or self.login is not None
        shows_certificate = self.tls is not None and self.tls.server is not None and self.tls.server.verifies_peers
        return not guarded and not shows_certificate and not is_loopback(self.address)

    def read_login(self) -> Login | None:
        """Who may log in; None: everybody may call. Raises SettingsError."""
        return None if self.login is None else read_login(self.login)

    def peers(self, clock: IReactorTime) -> IPeers:
        """Who may connect."""
        return WitnessPeers(self.allowed, SlaveCheck(clock))


@implementer(IPeers)
class WitnessPeers:
    """Hosts of an allow list; without one, all. Hosts of a network count as one."""

    def __init__(self, allowed: AllowList | None, check: SlaveCheck) -> None:
        self._allowed = allowed
        self._check = check

    def may_connect(self, host: str) -> bool:
        """See ``IPeers``."""
        if self._allowed is None or self._allowed.has_address(host):
            return True
        self._check.refused(host, "its address is not in --witness-allow")
        return False

    def network_of(self, host: str) -> str:
        """See ``IPeers``."""
        return network_of(host)

    def wrong_login(self, host: str) -> None:
        """See ``IPeers``."""
        self._check.refused(host, "a wrong user or password for the witness", Event.WITNESS_LOGIN_REFUSED)


def _allow_list(option: str, text: str | None) -> AllowList | None:
    """Raises SettingsError."""
    try:
        return None if text is None else AllowList.parse(text)
    except ValueError as error:
        raise SettingsError(f"{option}={text}: {error}") from error


def _addresses(option: str, text: str | None) -> AllowList | None:
    """The same without names. Raises SettingsError."""
    found = _allow_list(option, text)
    if found is not None and found.names:
        raise SettingsError(f"{option}={text}: {sorted(found.names)[0]!r} is not an address or a network")
    return found


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise SettingsError(f"folder={text!r} is not a folder")
    try:
        folder = Path(text).expanduser().absolute()  # a daemon may go to another folder before the file is made
    except RuntimeError:
        raise SettingsError(f"folder={text} starts with ~ and the name of a user without a home folder") from None
    try:
        check_not_among_segments(folder)
    except NoStore as error:
        raise SettingsError(str(error)) from None
    return folder


class Witness:
    """The witness of this process: its service, and its port."""

    _log = Logger()

    def __init__(self, plan: WitnessPlan, service: WitnessService, clock: IReactorTime) -> None:
        """Raises SettingsError."""
        self._plan = plan
        self._service = service
        self._clock = clock
        self._logins = Logins(plan.read_login())
        self.factory = WitnessFactory(WitnessCalls(service, self._logins), clock, plan.peers(clock))

    def status_line(self) -> str:
        """How the witness is, in a few words."""
        if self._service.failure is not None:
            return "the witness's disk fails"
        return f"witness, {len(self._service.state.keys)} keys"

    def listening(self, reactor: Any, failed: Callable[[str], None]) -> ListeningService:
        """The service of its port."""
        plan = self._plan
        endpoint = tcp_endpoint(reactor, plan.port, plan.address)
        security = "plain"
        server = None if plan.tls is None else plan.tls.server
        if server is not None:
            security = str(server)
            endpoint = server.endpoint(endpoint, self._clock, SlaveCheck(self._clock).refused)
        if plan.is_open_to_all:
            self._log.warn(
                "the witness serves everybody who reaches its port: anyone can make any node lead, or none. "
                "Use --witness-login, --witness-allow or --witness-tls-ca, or --witness-bind=127.0.0.1",
                event=Event.WITNESS_OPEN_TO_ALL,
            )
        return ListeningService(endpoint, self.factory, "witness", security, failed)

    def reload(self) -> None:
        """Read the login again. If it cannot be used, it stays as it was."""
        try:
            self._logins.renew(self._plan.read_login())
        except SettingsError as error:
            self._log.error(
                "SIGHUP: the login of the witness stays as it is: {reason}",
                event=Event.CREDENTIALS_NOT_REREAD,
                reason=str(error),
            )


@implementer(IPortOwner)
class NameServerProcess(ProcessService):
    """A name server and its port."""

    def __init__(self, options: Options, reactor: Any) -> None:
        """Raises SettingsError, OSError."""
        ProcessService.__init__(self, reactor, partial(leave, reactor), options.observer(), manages_process=True)
        self._port = options.listen_port
        self._bind_address: str = options["bind"]
        self._access = options.access
        self._tls, self._tls_mode = options.tls, options.tls_mode
        self._http = options.http
        self._folder = options.folder
        self._witness_plan = options.witness
        self._witness: Witness | None = None
        self._threads = ThreadPool(minthreads=0, maxthreads=1, name="rmqha-tables")
        self._witness_threads = ThreadPool(minthreads=0, maxthreads=1, name="rmqha-witness")
        self._name_server: NameServerService | None = None

    def _run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        running: Deferred[Any] = deferToThreadPool(self._reactor, self._threads, function)
        return running

    def startService(self) -> None:
        ProcessService.startService(self)
        self._reactor.callWhenRunning(self.ready)

    def status_line(self) -> str:
        """How many brokers are registered."""
        if self._name_server is None or not self.running:
            return ProcessService.status_line(self)
        brokers = self._name_server.route_info.broker_count
        line = f"name server, {brokers} broker{'' if brokers == 1 else 's'} registered"
        return line if self._witness is None else f"{line}; {self._witness.status_line()}"

    def stopService(self) -> Deferred[None]:
        stopped = Deferred.fromCoroutine(self._stop())
        return stopped

    async def _stop(self) -> None:
        self.stopping()
        await ProcessService.stopService(self)
        for threads in (self._threads, self._witness_threads):
            if threads.started:
                threads.stop()
        self.stopped()

    def open(self) -> None:
        gc.set_threshold(*SELDOM)
        self._threads.start()
        self._witness_threads.start()
        clock = IReactorTime(self._reactor)
        try:
            name_server = NameServerService(clock, self._folder, self._run_in_thread, self._access)
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
        endpoint, security = secured(endpoint, self._tls.server, self._tls_mode, clock, SlaveCheck(clock))
        ListeningService(endpoint, factory, "name server", security, self.cannot_listen).setServiceParent(self)
        if self._witness_plan is not None:
            self._open_witness(self._witness_plan, clock)
        if self._http is not None:
            from rmqha.web.namesrvweb import (  # a name server without this port starts quicker
                NameServerFacts,
                name_server_web,
            )

            witness = None if self._witness is None else self._witness.factory
            facts = NameServerFacts(name_server.route_info, factory, witness=witness, tls=self._tls.server)
            name_server_web(self._http.endpoint(self._reactor), facts, self, self._reactor).setServiceParent(self)

    def _open_witness(self, plan: WitnessPlan, clock: IReactorTime) -> None:
        try:
            service = WitnessService(clock, plan.folder, self._run_for_witness)
        except JournalInUse as error:
            self.stop_with(ExitCode.IN_USE, str(error))
        except JournalError as error:
            self.stop_with(ExitCode.CORRUPT, str(error))
        except OSError as error:
            self.stop_with(ExitCode.IO_ERROR, f"cannot open the witness's journal in {plan.folder}: {error}")
        else:
            self._witness = Witness(plan, service, clock)
            service.setServiceParent(self)
            self._witness.listening(self._reactor, self.cannot_listen).setServiceParent(self)

    def _run_for_witness(self, function: Callable[[], None]) -> Deferred[None]:
        running: Deferred[None] = deferToThreadPool(self._reactor, self._witness_threads, function)
        return running

    async def reload(self) -> None:
        """SIGHUP also reads all certificates and the witness's login again."""
        if self._witness is not None:
            self._witness.reload()
        plan = self._witness_plan
        sources = [self._tls] if plan is None or plan.tls is None else [self._tls, plan.tls]
        await reread_certificates(sources, self._run_in_thread)

    def cannot_listen(self, reason: str) -> None:
        self.stop_with(ExitCode.IO_ERROR, reason)


def makeService(options: Options) -> IService:
    """Make the name server that the options describe; twistd runs it."""
    from twisted.internet import reactor

    go_by_monotonic_time(reactor)
    return NameServerProcess(options, reactor)
