"""What a node is told: RocketMQ's ``broker.conf`` as it is, with the command line on top.

A setting has RocketMQ's name in files and error messages, and a snake_case name with its unit in Python. Keys that
rmqha does not use are left alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import javaproperties

from rmqha.wire.delay import DelayLevels


class SettingsError(ValueError):
    """A setting cannot be used. The text names the key and the reason."""


class BrokerRole(Enum):
    """A node's role, by its name in broker.conf."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"

    @property
    def option(self) -> str:
        """The role's name on the command line."""
        return self.value.lower().replace("_", "-")

    @classmethod
    def from_option(cls, text: str) -> "BrokerRole":
        """From the command line's name. Raises SettingsError."""
        for role in cls:
            if role.option == text:
                return role
        raise SettingsError(f"role is {text!r}, not one of {', '.join(role.option for role in cls)}")


class FlushDiskType(Enum):
    """When bytes go to the disk, by the name in broker.conf."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is no whole number") from None
        if not least <= value <= most:
            raise ValueError(f"is not between {least} and {most}")
        return value

    return parse


def _one_of(kind: type[Enum]) -> Callable[[str], Enum]:
    def parse(text: str) -> Enum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"is not one of {', '.join(member.value for member in kind)}") from None

    return parse


def _nonempty(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def _hours(text: str) -> tuple[int, ...]:
    hours = [hour.strip() for hour in text.split(";") if hour.strip()]
    if not hours or not all(hour.isdecimal() and int(hour) < 24 for hour in hours):
        raise ValueError("is no hour of the day, or several separated by semicolons")
    return tuple(int(hour) for hour in hours)


def _not_true(text: str) -> bool:
    if text.lower() == "true":
        raise ValueError("cannot be true here: that mode has its own replication, which rmqha does not speak")
    return False


def _single_path(text: str) -> Path:
    if "," in _nonempty(text):
        raise ValueError("names several paths; rmqha keeps the log in one")
    if "\0" in text:
        raise ValueError("holds a zero byte")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("begins with the home of a user who has none") from None


def _setting(key: str, parse: Callable[[str], Any], default: Any) -> Any:
    return field(default=default, metadata={"key": key, "parse": parse})


LARGEST_PORT = 65535
PORT = _number(0, LARGEST_PORT)
MILLISECONDS = _number(1, 24 * 3600 * 1000)
BYTES = _number(1, 2**31 - 1)
COUNT = _number(1, 2**20)
LARGEST_SEGMENT = 2**31 - 1
SMALLEST_SEGMENT = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that rmqha uses. ``_ms`` are milliseconds, ``_bytes`` bytes."""

    broker_role: BrokerRole = _setting("brokerRole", _one_of(BrokerRole), BrokerRole.ASYNC_MASTER)
    broker_id: int | None = _setting("brokerId", _number(0, 2**31 - 1), None)
    broker_name: str = _setting("brokerName", _nonempty, "broker-a")
    broker_cluster_name: str = _setting("brokerClusterName", _nonempty, "DefaultCluster")
    broker_ip1: str = _setting("brokerIP1", _nonempty, "")
    namesrv_addr: str = _setting("namesrvAddr", str, "")
    listen_port: int = _setting("listenPort", PORT, 10911)
    ha_listen_port: int | None = _setting("haListenPort", PORT, None)
    ha_master_address: str = _setting("haMasterAddress", str, "")
    store_path_root_dir: Path = _setting("storePathRootDir", _single_path, Path("~/store").expanduser())
    store_path_commit_log: Path | None = _setting("storePathCommitLog", _single_path, None)
    mapped_file_size_commit_log: int | None = _setting(
        "mappedFileSizeCommitLog", _number(SMALLEST_SEGMENT, LARGEST_SEGMENT), None
    )
    flush_disk_type: FlushDiskType = _setting("flushDiskType", _one_of(FlushDiskType), FlushDiskType.ASYNC_FLUSH)
    flush_interval_commit_log_ms: int = _setting("flushIntervalCommitLog", MILLISECONDS, 500)
    flush_commit_log_least_pages: int = _setting("flushCommitLogLeastPages", _number(0, 2**20), 4)
    flush_commit_log_thorough_interval_ms: int = _setting("flushCommitLogThoroughInterval", MILLISECONDS, 10_000)
    sync_flush_timeout_ms: int = _setting("syncFlushTimeout", MILLISECONDS, 5_000)
    mapped_file_size_consume_queue: int | None = _setting(
        "mappedFileSizeConsumeQueue", _number(20, LARGEST_SEGMENT), None
    )
    max_hash_slot_num: int | None = _setting("maxHashSlotNum", _number(1, 2**30), None)
    max_index_num: int | None = _setting("maxIndexNum", _number(2, 2**30), None)
    message_index_enable: bool = _setting("messageIndexEnable", _boolean, True)
    message_delay_level: DelayLevels = _setting("messageDelayLevel", DelayLevels, DelayLevels())
    max_message_size_bytes: int = _setting("maxMessageSize", _number(1024, 2**30), 4 * 1024 * 1024)
    max_msgs_num_batch: int = _setting("maxMsgsNumBatch", _number(1, 2**20), 64)
    max_transfer_bytes_on_message_in_memory: int = _setting("maxTransferBytesOnMessageInMemory", BYTES, 262_144)
    max_transfer_count_on_message_in_memory: int = _setting("maxTransferCountOnMessageInMemory", COUNT, 32)
    max_transfer_bytes_on_message_in_disk: int = _setting("maxTransferBytesOnMessageInDisk", BYTES, 65_536)
    max_transfer_count_on_message_in_disk: int = _setting("maxTransferCountOnMessageInDisk", COUNT, 8)
    access_message_in_memory_max_ratio: int = _setting("accessMessageInMemoryMaxRatio", _number(0, 100), 40)
    offset_check_in_slave: bool = _setting("offsetCheckInSlave", _boolean, False)
    delete_when: tuple[int, ...] = _setting("deleteWhen", _hours, (4,))
    file_reserved_time_hours: int = _setting("fileReservedTime", _number(0, 24 * 366 * 100), 72)
    disk_max_used_space_ratio: int = _setting("diskMaxUsedSpaceRatio", _number(10, 95), 75)
    clean_resource_interval_ms: int = _setting("cleanResourceInterval", MILLISECONDS, 10_000)
    clean_file_forcibly_enable: bool = _setting("cleanFileForciblyEnable", _boolean, True)
    ha_send_heartbeat_interval_ms: int = _setting("haSendHeartbeatInterval", MILLISECONDS, 5_000)
    ha_housekeeping_interval_ms: int = _setting("haHousekeepingInterval", MILLISECONDS, 20_000)
    ha_transfer_batch_size_bytes: int = _setting("haTransferBatchSize", _number(1, 4 * 1024 * 1024 - 12), 32 * 1024)
    slave_timeout_ms: int = _setting("slaveTimeout", MILLISECONDS, 3_000)
    ha_slave_fallbehind_max_bytes: int = _setting("haSlaveFallbehindMax", _number(1, 2**63 - 1), 256 * 1024 * 1024)
    in_sync_replicas: int = _setting("inSyncReplicas", COUNT, 2)
    min_in_sync_replicas: int = _setting("minInSyncReplicas", COUNT, 1)
    enable_dledger_commit_log: bool = _setting("enableDLegerCommitLog", _not_true, False)

    @property
    def commit_log_folder(self) -> Path:
        """Where segments are: storePathCommitLog, or ``commitlog`` below the root."""
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def ha_port(self) -> int:
        """haListenPort, or the one behind listenPort; 0 for any free one."""
        if self.ha_listen_port is not None:
            return self.ha_listen_port
        return self.listen_port + 1 if self.listen_port else 0

    @property
    def fast_port(self) -> int:
        """The "VIP" port, two before listenPort; 0 for any free one."""
        return max(0, self.listen_port - 2)


def read_properties(path: Path) -> dict[str, str]:
    """The keys and values of a Java properties file. Raises SettingsError."""
    try:
        with path.open(encoding="utf-8") as file:
            return javaproperties.load(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def make_settings(properties: Mapping[str, str]) -> Settings:
    """Settings from texts by RocketMQ's keys. Raises SettingsError naming the key and the reason."""
    settings = Settings(**_parse(properties))
    _check_together(settings)
    return settings


def with_defaults(settings: Settings, properties: Mapping[str, str]) -> Settings:
    """The settings, with those that are None taken from ``properties``. Raises SettingsError."""
    unset = {name: value for name, value in _parse(properties).items() if getattr(settings, name) is None}
    return replace(settings, **unset)


def _parse(properties: Mapping[str, str]) -> dict[str, Any]:
    """Values by the names of fields."""
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        key = setting.metadata["key"]
        if key not in properties:
            continue
        text = properties[key].strip()
        try:
            values[setting.name] = setting.metadata["parse"](text)
        except ValueError as error:
            raise SettingsError(f"{key}={text} {error}") from error
    return values


def _check_together(settings: Settings) -> None:
    if settings.broker_role is BrokerRole.SLAVE and settings.broker_id == 0:
        raise SettingsError("brokerId=0 is a master's; a slave's is greater than 0")
    if settings.listen_port and settings.listen_port < 3:
        raise SettingsError(f"listenPort={settings.listen_port} leaves no room for the fast port, two before it")
    if settings.ha_port > LARGEST_PORT:
        raise SettingsError(f"listenPort={settings.listen_port} leaves no room for haListenPort, the one behind it")
    ports = [settings.listen_port, settings.fast_port, settings.ha_port]
    if settings.listen_port and len({port for port in ports if port}) < sum(1 for port in ports if port):
        raise SettingsError(f"haListenPort={settings.ha_port} is also listenPort or the fast port, two before it")
    if settings.ha_housekeeping_interval_ms <= settings.ha_send_heartbeat_interval_ms:
        raise SettingsError(
            f"haHousekeepingInterval={settings.ha_housekeeping_interval_ms} is not longer than "
            f"haSendHeartbeatInterval={settings.ha_send_heartbeat_interval_ms}: every quiet peer would be dropped"
        )
