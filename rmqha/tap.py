"""The twistd plugin: the options of a node, and its wiring. See ``twistd -n rmqha --help``."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python import usage

from rmqha.acl.credentials import make_signer, reread_credentials
from rmqha.acl.signing import Signer
from rmqha.ha.admission.allowlist import AllowList
from rmqha.ha.slave.replica import StartFrom
from rmqha.ha.slave.slaveservice import OnFork, OnGap, SlaveOptions
from rmqha.kit.events import Event
from rmqha.net.endpoints import endpoints_behind, make_endpoint, remoting_address_of, split_addresses
from rmqha.net.tls.addresses import uses_tls
from rmqha.net.tls.endpoints import ClientTLS, ServerTLS
from rmqha.node.failoveroptions import FailoverOptions, failover_warnings
from rmqha.node.node import Node
from rmqha.node.plan import NodePlan
from rmqha.node.rereading import Sources
from rmqha.ops.cleaning import Hold
from rmqha.ops.listening import HttpPort
from rmqha.ops.logs import LogFormat
from rmqha.ops.process import go_by_monotonic_time, leave, parse_port
from rmqha.ops.tlsoptions import TLS_CERTIFICATE, TLS_VERIFY, TLSOptions
from rmqha.settings.confkeys import judge_keys
from rmqha.settings.settings import (
    BrokerRole,
    ReadUpTo,
    Settings,
    SettingsError,
    make_settings,
    parse_byte_count,
    read_properties,
)

if TYPE_CHECKING:
    from rmqha.acl.files import AclFiles

_log = Logger()
NO_REMOTING = "none"
ROCKETMQ_HOME = "ROCKETMQ_HOME"

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
"""Options that are settings of broker.conf under another name. They override the file."""


class Options(TLSOptions):
    """What ``twistd rmqha`` accepts. ``postOptions`` sets the attributes below."""

    command = "rmqha"
    synopsis = "[options]"
    longdesc = (
        "Runs one node of a RocketMQ master/slave pair. A slave copies the commit log of its master, Java's or ours, "
        "and proves every record. A master stores messages and sends its log to slaves."
    )
    optParameters = [
        ["role", None, None, "slave, async-master or sync-master; default: brokerRole of --conf"],
        ["store", None, None, "folder of the store (storePathRootDir)"],
        ["conf", None, None, "a RocketMQ broker.conf; command-line options override it"],
        ["master", None, None, "slave: the master's HA port, host:port or a Twisted endpoint (haMasterAddress)"],
        [
            "master-remoting",
            None,
            None,
            "slave: the master's remoting port, in the form of --master, or 'none'; default: one below its HA port",
        ],
        [
            "port",
            None,
            None,
            "the remoting port (listenPort), 0 for any free port; default: 10911. The fast port is two below it",
        ],
        ["ha-port", None, None, "the HA port (haListenPort), 0 for any free port; default: one above --port"],
        [
            "from",
            None,
            "min",
            "slave with an empty store: start at min (the master's first byte), last (its last segment) or an OFFSET",
        ],
        [
            "on-gap",
            None,
            "stop",
            "slave: what to do if the master has deleted the next bytes: 'stop', or 'reseed' (start a new log and keep "
            "the old one aside)",
        ],
        [
            "on-diverged",
            None,
            "stop",
            "slave: what to do if the master's log is another one: 'stop', or 'rewind' (cut ours back to where they "
            "part, and keep what is cut)",
        ],
        ["on-ahead", None, "stop", "slave: the same if the master's log is shorter than ours"],
        ["name", None, None, "brokerName"],
        ["cluster", None, None, "brokerClusterName"],
        ["broker-id", None, None, "brokerId; greater than 0 for a slave"],
        [
            "namesrv",
            None,
            None,
            "name servers, host:port;host:port (namesrvAddr). The node registers with all of them (not with --once); "
            "a slave without --master asks them for its master",
        ],
        ["embed-namesrv", None, None, "also run a name server on this port, usually 9876; 0 for any free port"],
        ["set", None, None, "any other setting of broker.conf, as KEY=VALUE; may be repeated"],
        ["max-hold-bytes", None, None, "with --hold: keep at most this many bytes of the log; default: no limit"],
        [
            "max-rate",
            None,
            None,
            "bytes a second on the HA channel, also as 64k, 10m or 1g (KiB, MiB, GiB): the most that a master sends "
            "to all slaves together, or that a slave receives; default: no limit",
        ],
        *TLS_CERTIFICATE,
        [
            "tls-ca",
            None,
            None,
            "PEM file, or folder of .pem files: the trusted authorities; default for --master and --namesrv: the "
            "platform's",
        ],
        [
            "allow-slaves",
            None,
            None,
            "serve only these slaves: addresses, networks, or names in certificates, separated by commas",
        ],
        [
            "failover",
            None,
            None,
            "a failover cluster's coordinator, such as etcd:https://a:2379,b:2379 or witness:a:9877. It says which "
            "node leads; --role of a master only lets this node begin a new cluster",
        ],
        ["member", None, None, "with --failover: the node's name in its cluster; default: host name and remoting port"],
        [
            "failover-priority",
            None,
            "100",
            "with --failover: of several nodes with the same messages the one with the highest number leads",
        ],
    ]
    optFlags = [
        [
            "hold",
            None,
            "keep segments that a slave, connected or not, has not acknowledged; STORE/rmqha/slots lists the slaves",
        ],
        TLS_VERIFY,
        ["observer", None, "slave: copy the log, but never count as a replica of a SYNC_MASTER"],
        [
            "once",
            None,
            "slave: copy what the master has now, then exit: 0, 3 GAP, 4 AHEAD, 5 DIVERGED, 6 STALLED, 7 not connected",
        ],
        ["nofailover", None, "with --failover: this node never leads, and no message waits for it"],
    ]

    settings: Settings
    setting_warnings: list[str]
    slave: SlaveOptions
    hold: Hold
    client_tls: ClientTLS
    signer: Signer | None
    acl: "AclFiles | None"
    server_tls: ServerTLS | None
    allow_list: AllowList | None
    embedded_port: int | None
    http: HttpPort | None
    log_format: LogFormat
    failover: FailoverOptions | None

    def opt_set(self, text: str) -> None:
        """any other setting of broker.conf, as KEY=VALUE; may be repeated"""
        TLSOptions.opt_set(self, text)

    def postOptions(self) -> None:
        """Check all that can be checked before anything runs. Raises UsageError."""
        try:
            if self["conf"] is not None:
                self["conf"] = str(Path(self["conf"]).absolute())  # a daemon may go to another folder before SIGHUP
            self.settings, self.setting_warnings = self.read_settings()
            self.slave = SlaveOptions(
                StartFrom.parse(self["from"]),
                self.choice(OnGap, "on-gap"),
                bool(self["once"]),
                bool(self["observer"]),
                self.choice(OnFork, "on-diverged"),
                self.choice(OnFork, "on-ahead"),
            )
            self.log_format = self.choice(LogFormat, "log-format")
            self.hold = self._make_hold()
            self._read_tls()
            self.client_tls.sign = self.signer = make_signer(self.settings.acl_file)
            self.acl = self._acl_files()
            self.failover = FailoverOptions.read(self, self.settings, "brokerName" in self._properties())
            if self.failover is None:
                self._check_role()
            self._name_servers(None)
            self.embedded_port = self._embedded_port()
            self.http = None if self["http-port"] is None else HttpPort.parse(self["http-port"])
        except (SettingsError, ValueError) as error:
            raise usage.UsageError(str(error)) from error

    def read_settings(self) -> tuple[Settings, list[str]]:
        """The settings of the file and the command line, and warnings about them. Raises SettingsError."""
        properties = self._properties()
        settings = make_settings(properties)
        warnings = judge_keys(properties, settings.broker_role is BrokerRole.SLAVE)
        if self["failover"] is None:
            return settings, warnings
        warnings += failover_warnings(settings, properties)
        return replace(settings, read_up_to=ReadUpTo.CONFIRMED), warnings

    def _properties(self) -> dict[str, str]:
        properties = read_properties(Path(self["conf"])) if self["conf"] is not None else {}
        given = {key: self[option] for option, key in SETTING_OPTIONS.items() if self[option] is not None}
        if self["store"] is not None:
            properties.pop("storePathCommitLog", None)  # the option moves the whole store
        if self["role"] is not None:
            given["brokerRole"] = BrokerRole.from_option(self["role"]).value
        elif "brokerRole" not in properties and self["failover"] is not None:
            given["brokerRole"] = BrokerRole.SLAVE.value
        elif "brokerRole" not in properties:
            raise SettingsError(
                "--role is missing: give --role=slave, async-master or sync-master, or a --conf with brokerRole"
            )
        given.update(self._rate(given.get("brokerRole", properties.get("brokerRole"))))
        return {**properties, **self._overrides, **given}

    def _rate(self, role: str | None) -> dict[str, str]:
        """The settings that --max-rate stands for in this role. Raises SettingsError."""
        if self["max-rate"] is None:
            return {}
        try:
            rate = str(parse_byte_count(self["max-rate"]))
        except ValueError as error:
            raise SettingsError(f"max-rate: {error}") from error
        if role == BrokerRole.SLAVE.value:
            return {"maxHaReceiveByteInSecond": rate}
        return {"haFlowControlEnable": "true", "maxHaTransferByteInSecond": rate}

    def _acl_files(self) -> "AclFiles | None":
        """The files of the accounts; None without aclEnable. Raises ValueError if they cannot be used."""
        settings = self.settings
        if not settings.acl_enable:
            return None
        folder = settings.acl_folder
        if folder is None and self["conf"] is not None:
            folder = Path(self["conf"]).parent
        if folder is None and os.environ.get(ROCKETMQ_HOME):
            folder = Path(os.environ[ROCKETMQ_HOME]) / "conf"
        if folder is None:
            raise SettingsError("aclEnable=true needs aclFolder=FOLDER: the folder with plain_acl.yml")
        from rmqha.acl.files import AclFiles  # a node without access control starts quicker

        files = AclFiles(folder, settings.acl_strict)
        files.read()
        return files

    def _make_hold(self) -> Hold:
        text = self["max-hold-bytes"]
        if text is None:
            return Hold(bool(self["hold"]))
        if not text.isdecimal() or not self["hold"]:
            raise SettingsError(f"max-hold-bytes={text} is not a number of bytes, or --hold is missing")
        return Hold(True, int(text))

    def _read_tls(self) -> None:
        """Raises ValueError."""
        self.read_tls(self.settings.tls_server_mode)
        self.client_tls, self.server_tls, verified = self.tls.client, self.tls.server, self.verifies_peers
        self.allow_list = AllowList.parse(self["allow-slaves"]) if self["allow-slaves"] is not None else None
        if self.allow_list is not None and self.allow_list.names and not verified:
            raise SettingsError(
                "--allow-slaves by name needs --tls-verify-slaves: without it no slave shows a certificate"
            )
        peers = (self.settings.ha_master_address, self["master-remoting"] or "", *self._name_server_addresses())
        if self.tls.files.authorities is not None and not verified and not any(map(uses_tls, peers)):
            raise SettingsError(
                "--tls-ca has no effect: add --master=tls:HOST:PORT, --namesrv=tls:HOST:PORT or --tls-verify-slaves"
            )

    def _check_role(self) -> None:
        if self.settings.broker_role is BrokerRole.SLAVE:
            self._check_master()
            self._endpoints(None)
        else:
            for flag in ("once", "observer"):
                if self[flag]:
                    raise SettingsError(f"--{flag} is valid only for a slave")

    def _check_master(self) -> None:
        if self.settings.ha_master_address:
            return
        if not (self._name_server_addresses() or self["embed-namesrv"]):
            raise SettingsError(
                "a slave needs --master=HOST:PORT, its master's HA port (haMasterAddress), or a name server that "
                "knows it (--namesrv)"
            )
        if self["master-remoting"] is not None:
            raise SettingsError(
                "--master-remoting needs --master: without it both addresses come from the name servers"
            )
        if self.server_tls is not None:
            raise SettingsError(
                "name servers do not tell which brokers use TLS: a slave with --tls-cert needs --master=tls:HOST:PORT"
            )

    def _embedded_port(self) -> int | None:
        text = self["embed-namesrv"]
        if text is None:
            return None
        if self["once"]:
            raise SettingsError(
                "--once and --embed-namesrv contradict each other: the node would exit before its name server is asked"
            )
        return parse_port("embed-namesrv", text)

    def _endpoints(self, reactor: Any) -> tuple[IStreamClientEndpoint | None, IStreamClientEndpoint | None]:
        """The endpoints of the master's HA port and remoting port; None if only name servers know them.

        Raises ValueError.
        """
        ha_address, remoting_address = self.settings.ha_master_address, self._master_address()
        if not ha_address:
            return None, None
        ha = make_endpoint(reactor, ha_address, self.client_tls)
        return ha, None if remoting_address is None else make_endpoint(reactor, remoting_address, self.client_tls)

    def _master_address(self) -> str | None:
        """The remoting port of a slave's master; None if it is unknown or must not be asked."""
        if not self.settings.ha_master_address or self["master-remoting"] == NO_REMOTING:
            return None
        return self["master-remoting"] or remoting_address_of(self.settings.ha_master_address)

    def _name_servers(self, reactor: Any) -> list[tuple[str, IStreamClientEndpoint]]:
        """The name servers of namesrvAddr, with their endpoints. Raises ValueError."""
        addresses = self._name_server_addresses()
        return [(address, make_endpoint(reactor, address, self.client_tls)) for address in addresses]

    def _name_server_addresses(self) -> list[str]:
        return split_addresses(self.settings.namesrv_addr)

    def plan(self, reactor: Any) -> NodePlan:
        """The plan of the node."""
        is_slave = self.failover is None and self.settings.broker_role is BrokerRole.SLAVE
        master, master_remoting = self._endpoints(reactor) if is_slave else (None, None)
        return NodePlan(
            self.settings,
            self.slave,
            master,
            master_remoting,
            master_address=self._master_address() if is_slave else None,
            connect=lambda address: make_endpoint(reactor, address, self.client_tls),
            bind_address=self["bind"] or self.settings.bind_address,
            hold=self.hold,
            tls=self.server_tls,
            allow_list=self.allow_list,
            name_servers=self._name_servers(reactor),
            embedded_port=self.embedded_port,
            http=self.http,
            observer=self.observer(),
            manages_process=True,
            sources=Sources(
                self.read_settings, self.tls, partial(reread_credentials, self.signer, self.settings.acl_file)
            ),
            sign=self.signer,
            acl=self.acl,
            find_machines=partial(endpoints_behind, reactor, tls=self.client_tls),
        )


def makeService(options: Options) -> IService:
    """Make the node that the options describe; twistd runs it."""
    from twisted.internet import reactor

    go_by_monotonic_time(reactor)
    for warning in options.setting_warnings:
        _log.warn("{warning}", event=Event.SETTING_WARNING, warning=warning)
    failover = None if options.failover is None else options.failover.plan(reactor, options.client_tls)
    return Node(options.plan(reactor), reactor, partial(leave, reactor), failover)
