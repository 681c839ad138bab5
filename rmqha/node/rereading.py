"""Settings and certificates that change while a node runs.

SIGHUP reads the configuration again. What has changed there since it was read before counts from then on. So SIGHUP,
which also rotates logs, undoes no change that an operator made by mqadmin. ``store.keptsettings`` keeps such changes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from twisted.logger import Logger

from rmqha.broker.requests.config import FixedSettings, LiveSettings
from rmqha.ha.slave.contact import iso_of
from rmqha.kit.events import Event
from rmqha.kit.threads import CallInThread
from rmqha.net.tls.endpoints import TLSSources
from rmqha.ops.certificates import reread_certificates
from rmqha.settings.settings import (
    RUN_TIME_KEYS,
    ReadUpTo,
    RunTime,
    Settings,
    SettingsError,
    properties_of,
    with_properties,
)
from rmqha.store.errors import StoreError
from rmqha.store.keptsettings import KeptSetting, kept_settings_path, read_kept_settings, write_kept_settings


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a node's configuration comes from.

    ``read_settings`` reads the settings, and warnings about them. It may raise ValueError, for SettingsError and other
    wrong values. ``tls`` has the certificates. ``reread_credentials`` makes the node sign with the keys that its
    aclFile has now; it returns whether they are others, and may raise ValueError.
    """

    read_settings: Callable[[], tuple[Settings, list[str]]]
    tls: TLSSources
    reread_credentials: Callable[[], bool] = lambda: False


class Rereading:
    """What the configuration said last, and the changes of a running node that are kept for its next start."""

    _log = Logger()

    def __init__(self, settings: Settings, sources: Sources | None, run_in_thread: CallInThread) -> None:
        """``settings`` are as configured. ``run_in_thread`` runs what reads and writes files."""
        self._root = settings.store_path_root_dir
        self._sources = sources
        self._run_in_thread = run_in_thread
        self._configured = properties_of(settings)
        self._kept: dict[str, KeptSetting] = {}
        self._is_file_stale = False

    def with_kept(self, settings: Settings) -> Settings:
        """The settings, with the kept changes of the store. Call it in a thread. Raises OSError."""
        try:
            found = read_kept_settings(self._root)
        except StoreError as error:
            self._log.error(
                "{error}; it is ignored, and kept as {bad}",
                event=Event.KEPT_SETTINGS_INVALID,
                error=str(error),
                bad=str(self._bad_file),
            )
            self._is_file_stale = True
            return settings
        for key, kept in found.items():
            configured = self._configured.get(key, "")
            if RUN_TIME_KEYS.get(key) is not RunTime.CHANGES or configured != kept.configured:
                self._log.warn(
                    "{key} is {configured}, as configured: the change to {value} of {at} is dropped",
                    event=Event.KEPT_SETTING_DROPPED,
                    key=key,
                    configured=configured,
                    value=kept.value,
                    at=kept.at,
                    bad=str(self._bad_file),
                )
                self._is_file_stale = True
                continue
            try:
                settings = with_properties(settings, {key: kept.value})
            except SettingsError as error:
                self._log.error(
                    "the change of {at} is ignored: {error}",
                    event=Event.KEPT_SETTING_IGNORED,
                    at=kept.at,
                    error=str(error),
                )
                continue
            self._kept[key] = kept
            self._log.warn(
                "{key} is {value}, not {configured} as configured: {by} changed it at {at} ({path})",
                event=Event.KEPT_SETTING_USED,
                key=key,
                value=kept.value,
                configured=configured,
                by=kept.by,
                at=kept.at,
                path=str(kept_settings_path(self._root)),
            )
        return settings

    @property
    def _bad_file(self) -> Path:
        path = kept_settings_path(self._root)
        return path.with_name(path.name + ".bad")

    async def settle(self) -> None:
        """Write what ``with_kept`` has found, if that is not what the file has. The store must be ours by now."""
        if self._is_file_stale:
            self._is_file_stale = False
            await self._run_in_thread(lambda: kept_settings_path(self._root).replace(self._bad_file))
            await self._write()

    async def keep(self, changes: Mapping[str, str], by: str) -> None:
        """Keep changed settings for the next start. Raises OSError."""
        now = iso_of(time.time())
        for key, value in changes.items():
            configured = self._configured.get(key, "")
            if value == configured:
                self._kept.pop(key, None)
            elif RUN_TIME_KEYS[key] is RunTime.CHANGES:
                self._kept[key] = KeptSetting(value, configured, now, by)
        await self._write()

    async def _write(self) -> None:
        kept = dict(self._kept)
        await self._run_in_thread(lambda: write_kept_settings(self._root, kept))

    async def reread_certificates(self) -> None:
        """Use the certificates that the files have now. If one of them cannot be used, all stay as they are."""
        if self._sources is not None:
            await reread_certificates([self._sources.tls], self._run_in_thread)

    async def reread_credentials(self) -> None:
        """Sign with the keys that aclFile has now. If it cannot be used, the keys stay as they are."""
        if self._sources is None:
            return
        try:
            if await self._run_in_thread(self._sources.reread_credentials):
                self._log.info("SIGHUP: requests are signed with other keys", event=Event.CREDENTIALS_CHANGED)
        except ValueError as error:
            self._log.error(
                "SIGHUP: the keys of aclFile stay as they are: {reason}",
                event=Event.CREDENTIALS_NOT_REREAD,
                reason=str(error),
            )

    async def reread_settings(self) -> dict[str, str]:
        """Read the settings again. Returns those that have changed in the configuration, and can change in the node.

        The log names the changed ones that need a restart. Raises OSError.
        """
        if self._sources is None:
            return {}
        try:
            settings, warnings = await self._run_in_thread(self._sources.read_settings)
        except ValueError as error:
            self._log.error(
                "SIGHUP: the settings stay as they are: {reason}", event=Event.SETTINGS_NOT_REREAD, reason=str(error)
            )
            return {}
        for warning in warnings:
            self._log.warn("{warning}", event=Event.SETTING_WARNING, warning=warning)
        before, after = self._configured, properties_of(settings)
        differing = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        changes = {key: after[key] for key in differing if _can_change(key, after.get(key))}
        fixed = sorted(differing - changes.keys())
        if fixed:
            self._log.warn(
                "SIGHUP: {names}: what the configuration says now counts from the next start",
                event=Event.SETTINGS_NEED_RESTART,
                names=", ".join(fixed),
            )
        self._configured = {**before, **changes}
        if self._kept.keys() & changes.keys():
            self._kept = {key: kept for key, kept in self._kept.items() if key not in changes}
            await self._write()
        return changes


def _can_change(key: str, text: str | None) -> bool:
    return key in RUN_TIME_KEYS and text is not None and text != ReadUpTo.CONFIRMED.value


def change_live(live: LiveSettings, changes: Mapping[str, str], log: Logger) -> None:
    """Change the settings of a running broker after SIGHUP."""
    try:
        done = live.change(live.differing(changes))
    except (FixedSettings, SettingsError) as error:
        log.error("SIGHUP: the settings stay as they are: {reason}", event=Event.SETTINGS_NOT_REREAD, reason=str(error))
        return
    for key, (old, new) in done.items():
        log.warn("SIGHUP changes {key} from {old} to {new}", event=Event.SETTING_CHANGED, key=key, old=old, new=new)
