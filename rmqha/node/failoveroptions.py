"""The options of a node that is a member of a failover cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqha.net.tls.endpoints import ClientTLS
from rmqha.node.plan import FailoverPlan
from rmqha.settings.settings import BrokerRole, ReadUpTo, Settings, SettingsError

if TYPE_CHECKING:  # a node without failover starts quicker
    from rmqha.coordination.address import CoordinatorAccess, CoordinatorAddress

DEFAULT_PRIORITY = "100"
MAX_PRIORITY = 1_000_000
MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
KEY_PART = re.compile(r"[^/\x00-\x20]{1,200}")


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    """What the command line says about a failover cluster."""

    address: "CoordinatorAddress"
    access: "CoordinatorAccess"
    member: str | None
    is_founder: bool
    priority: int
    no_failover: bool

    @classmethod
    def read(cls, options: Mapping[str, Any], settings: Settings, has_name: bool) -> "FailoverOptions | None":
        """From the command line; None without --failover. ``has_name`` says whether brokerName was set.

        Raises SettingsError, TLSError.
        """
        if options["failover"] is None:
            _check_none(options)
            return None
        from rmqha.coordination.address import CoordinatorAccess, CoordinatorAddress
        from rmqha.coordination.etcd import check_access

        _check_fitting(options, settings)
        if not has_name:
            raise SettingsError("--failover needs --name (brokerName): the nodes of a cluster have the same one")
        name, priority = options["member"], options["failover-priority"]
        if name is not None and MEMBER_NAME.fullmatch(name) is None:
            raise SettingsError(
                f"member={name!r} is not a name: at most 100 letters, digits and ._:@-, with a letter or digit first"
            )
        if not (priority.isascii() and priority.isdecimal()) or int(priority) > MAX_PRIORITY:
            raise SettingsError(f"failover-priority={priority} is not a number from 0 to {MAX_PRIORITY}")
        address = CoordinatorAddress.parse(options["failover"])
        access = CoordinatorAccess.of(settings)
        check_access(address, access)
        return cls(
            address,
            access,
            name,
            settings.broker_role is not BrokerRole.SLAVE,
            int(priority),
            bool(options["nofailover"]),
        )

    def plan(self, reactor: Any, tls: ClientTLS) -> FailoverPlan:
        """The same for the node. The coordinator's PEM files are read again when those of ``tls`` are.

        Raises SettingsError, TLSError for files that cannot be used.
        """
        from rmqha.coordination.etcd import make_coordinator

        coordinator = make_coordinator(reactor, self.address, self.access, tls)
        return FailoverPlan(coordinator, self.member, self.is_founder, self.priority, self.no_failover)


def _check_none(options: Mapping[str, Any]) -> None:
    for name in ("member", "nofailover"):
        if options[name]:
            raise SettingsError(f"--{name} needs --failover")
    if options["failover-priority"] != DEFAULT_PRIORITY:
        raise SettingsError("--failover-priority needs --failover")


def _check_fitting(options: Mapping[str, Any], settings: Settings) -> None:
    """Raises SettingsError for what contradicts --failover."""
    for name in ("once", "observer"):
        if options[name]:
            raise SettingsError(f"--failover and --{name} contradict each other: a member of a cluster may lead it")
    if options["from"] != "min":
        raise SettingsError("--failover and --from contradict each other: a member copies the leader's whole log")
    if settings.ha_master_address or options["master-remoting"] is not None:
        raise SettingsError(
            "--failover and --master contradict each other: the coordinator says who leads. Leave out --master, "
            "--master-remoting and haMasterAddress"
        )
    for key, name in (
        ("brokerName", settings.broker_name),
        ("brokerClusterName", settings.broker_cluster_name),
    ):
        if KEY_PART.fullmatch(name) is None:
            raise SettingsError(f"{key}={name!r} cannot be a part of the coordinator's keys: no blanks, and no slash")


def failover_warnings(settings: Settings, properties: Mapping[str, str]) -> list[str]:
    """What has no effect, or another one, in a failover cluster."""
    found = []
    if "readUpTo" in properties and settings.read_up_to is not ReadUpTo.CONFIRMED:
        found.append("readUpTo has no effect with --failover: consumers read only what is confirmed")
    return found
