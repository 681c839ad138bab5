"""UPDATE_BROKER_CONFIG, and the settings that change while a broker runs (spec/remoting.md 8.7)."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Protocol

import javaproperties
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import Interface

from rmqha.broker.interfaces import NO_NODE, IBrokersNode
from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.kit.events import Event
from rmqha.remoting.header import refused, shown
from rmqha.remoting.protocol import Later, Processors, RemotingProtocol, RequestRefused
from rmqha.settings.confkeys import java_keys, with_nearest
from rmqha.settings.settings import (
    LOCAL,
    RUN_TIME_KEYS,
    SETTING_KEYS,
    ReadUpTo,
    Settings,
    SettingsError,
    properties_of,
    with_properties,
)
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

CONFIG_BLACK_LIST = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
"""Names that 4.9.8 refuses. We have no such settings."""


class HasSettings(Protocol):
    """Reads its settings at each use, so that they can be replaced."""

    settings: Settings


class FixedSettings(Exception):
    """Settings that cannot change while a node runs. The text names them."""


class ISettingsObserver(Interface):
    """Learns of changed settings."""

    def settings_changed(changes: Mapping[str, str]) -> None:
        """These settings have changed: their texts by name."""


class LiveSettings:
    """Changes settings of a running broker, in all its parts at once."""

    def __init__(
        self,
        store: MessageStore,
        parts: Iterable[HasSettings],
        observer: ISettingsObserver | None = None,
        is_member: bool = False,
    ) -> None:
        """The store has the current settings. The observer learns of each change.

        An operator can end the consumers' wait for a slave, so that they read all of the log: not in a member of a
        failover cluster, which would take back what they have read.
        """
        self._store = store
        self._parts: list[HasSettings] = [store, *parts]
        self._observer = observer
        self._is_member = is_member

    @property
    def current(self) -> Settings:
        """The settings now."""
        return self._store.settings

    def add(self, part: HasSettings) -> None:
        """Change the settings of this part too, from now on."""
        self._parts.append(part)

    def differing(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """What of ``wanted`` is not as it is now."""
        present = properties_of(self.current)
        return {key: value.strip() for key, value in wanted.items() if present.get(key) != value.strip()}

    def change(self, changes: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Change all these settings, or none. Returns the old and the new text of each.

        Raises FixedSettings, and SettingsError for a value that cannot be used.
        """
        fixed = sorted(changes.keys() - RUN_TIME_KEYS.keys())
        if fixed:
            raise FixedSettings(f"cannot be changed at run time: {', '.join(fixed)}")
        if changes.get("readUpTo") == ReadUpTo.CONFIRMED.value:
            raise FixedSettings("readUpTo=confirmed needs a restart")
        if "readUpTo" in changes and self._is_member:
            raise FixedSettings(
                "readUpTo stays confirmed in a failover cluster: a failover could take back what consumers have read"
            )
        before = properties_of(self.current)
        changed = [with_properties(part.settings, changes) for part in self._parts]
        for part, settings in zip(self._parts, changed, strict=True):
            part.settings = settings
        if "readUpTo" in changes:
            self._store.lift_read_limit()
        after = properties_of(self.current)
        done = {key: (before[key], after[key]) for key in changes}
        if self._observer is not None:
            self._observer.settings_changed(changes)
        return done


class ConfigProcessor:
    """UPDATE_BROKER_CONFIG: changes settings of a running broker."""

    _log = Logger()

    def __init__(self, live: LiveSettings, clock: IReactorTime, node: IBrokersNode = NO_NODE) -> None:
        """The node keeps what is changed."""
        self._live = live
        self._node = node
        self._refusals = SlaveCheck(clock)

    def processors(self) -> Processors:
        """By request code."""
        return {RequestCode.UPDATE_BROKER_CONFIG: self.update_broker_config}

    async def update_broker_config(
        self, connection: RemotingProtocol, request: RemotingCommand
    ) -> RemotingCommand | Later:
        """Change all requested settings, or none. Those that stay as they are may be named."""
        host, port = connection.peer_host
        who = f"{host}:{port}"
        self._check_allowed(host, connection.own_host)
        changes = self._changes(request)
        try:
            done = self._live.change(changes)
        except FixedSettings as error:
            raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from error
        except SettingsError as error:
            raise refused(str(error)) from error
        for key, (old, new) in done.items():
            self._log.warn(
                "{who} changes {key} from {old} to {new}",
                event=Event.SETTING_CHANGED,
                who=who,
                key=key,
                old=old,
                new=new,
            )
        try:
            await self._node.keep_settings(changes, who)
        except OSError as error:
            self._log.error(
                "the changed settings last only until the next start: {error}",
                event=Event.SETTINGS_NOT_KEPT,
                error=str(error),
            )
            remark = f"changed, but only until the next start: {error}"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark) from error
        return RemotingCommand(ResponseCode.SUCCESS)

    def _check_allowed(self, host: str, own_host: str) -> None:
        """Raises RequestRefused if this host may not change settings."""
        allowed = self._live.current.update_broker_config_from
        if not may_change(allowed, host, own_host):
            self._refusals.refused(
                host,
                f"it may not change settings: updateBrokerConfigFrom is {allowed}",
                Event.SETTING_CHANGE_REFUSED,
            )
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"{host} may not change settings of this broker: its updateBrokerConfigFrom is {allowed}",
            )

    def _changes(self, request: RemotingCommand) -> dict[str, str]:
        """The requested names and values that differ from the current ones. Raises RequestRefused."""
        try:
            asked = javaproperties.loads(request.body.decode("utf-8"))
        except ValueError as error:
            raise refused(f"the properties are invalid: {error}") from error
        strange = min(asked.keys() - SETTING_KEYS - CONFIG_BLACK_LIST, default=None)
        if strange in java_keys():
            raise refused(f"rmqha does not use {strange}")
        if strange is not None:
            raise refused(f"unknown setting {with_nearest([shown(strange)], SETTING_KEYS)}")
        return self._live.differing(asked)


def may_change(allowed: str, host: str, own_host: str) -> bool:
    """Whether a peer may change settings.

    ``allowed`` is updateBrokerConfigFrom, ``host`` the peer's address, ``own_host`` the address at which it reached us.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    pieces = [piece.strip() for piece in allowed.split(",")]
    if LOCAL in pieces and (address.is_loopback or host == own_host):
        return True
    networks = [ip_network(piece) for piece in pieces if piece[:1].isdigit() or ":" in piece]
    return any(address in network for network in networks)
