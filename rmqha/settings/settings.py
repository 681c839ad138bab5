"""A node's settings: RocketMQ's ``broker.conf`` as it is, overridden by the command line.

A setting has RocketMQ's key in files and error messages, and a snake_case name with its unit in Python: the key
``haHousekeepingInterval`` is ``ha_housekeeping_interval_ms``. docs/settings.md has all keys. This module ignores keys
that rmqha does not use; ``confkeys`` judges them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from ipaddress import ip_network
from pathlib import Path
from typing import Any

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


class ReadUpTo(Enum):
    """Where reads of consumers end, by the name in ``readUpTo``."""

    VERIFIED = "verified"
    CONFIRMED = "confirmed"


class TlsMode(Enum):
    """What a remoting port accepts if the node has a certificate, by the name in ``tls.server.mode``."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
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
        raise ValueError("is not an hour of the day, or several hours separated by semicolons")
    return tuple(int(hour) for hour in hours)


LOCAL, NOBODY = "local", "none"


def _changers(text: str) -> str:
    """Check the value of updateBrokerConfigFrom. Raises ValueError."""
    if text == NOBODY:
        return text
    for piece in (piece.strip() for piece in text.split(",")):
        if piece != LOCAL:
            try:
                ip_network(piece)
            except ValueError:
                raise ValueError("is neither none nor a list of local, addresses and networks") from None
    return text


def _not_true(text: str) -> bool:
    if text.lower() == "true":
        raise ValueError("cannot be true here: that mode has its own replication, which rmqha does not speak")
    return False


def _single_path(text: str) -> Path:
    if "," in _nonempty(text):
        raise ValueError("names several paths; rmqha keeps the log in one")
    if "\0" in text:
        raise ValueError("contains a zero byte")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("starts with ~ and the name of a user without a home folder") from None


class RunTime(Enum):
    """Whether a setting can change while a node runs: by SIGHUP, or by mqadmin updateBrokerConfig."""

    FIXED = ""
    CHANGES = "yes"
    UNTIL_RESTART = "until the next start"


def _setting(
    parse: Callable[[str], Any], default: Any, meaning: str, run_time: RunTime = RunTime.FIXED, key: str = ""
) -> Any:
    """A field of Settings; ``meaning`` goes to docs/settings.md. It has a ``key`` if ``derived_key`` is another.

    Those who use a setting that changes at run time read it from their ``settings`` each time.
    """
    return field(default=default, metadata={"key": key, "parse": parse, "meaning": meaning, "run_time": run_time})


def derived_key(name: str) -> str:
    """The key of a field by its name: in camelCase, without the unit at the end."""
    first, *others = re.sub("_(ms|bytes|hours)$", "", name).split("_")
    return first + "".join(word.capitalize() for word in others)


MAX_PORT = 65535
PORT = _number(0, MAX_PORT)
MILLISECONDS = _number(1, 24 * 3600 * 1000)
BYTES = _number(1, 2**31 - 1)
COUNT = _number(1, 2**20)
RATE = _number(1024, 2**40)
MAX_SEGMENT = 2**31 - 1
MIN_SEGMENT = 4096
QUEUE_UNIT_BYTES = 20
BATCH_QUEUE_UNIT_BYTES = 46
MAX_QUEUE_FILE = MAX_SEGMENT - MAX_SEGMENT % QUEUE_UNIT_BYTES
"""Sizes are rounded up to whole units, and a Java broker maps no file beyond 2³¹ - 1 bytes (spec/store.md 1)."""
SMALLEST_ADOPTED_QUEUE_FILE = 1000
"""The smallest size taken over from a master: 50 units. A smaller one would make a file of every few messages."""
ADOPTED_QUEUE_SIZES = {
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "mapperFileSizeBatchConsumeQueue": "mapper_file_size_batch_consume_queue",
}
MAX_HASH_SLOTS = 50_000_000
"""Ten times the default. An index file's slots are reserved on the disk: 200 MB."""
MAX_INDEX_ENTRIES = 100_000_000
INDEX_HEADER_BYTES, HASH_SLOT_BYTES, INDEX_ENTRY_BYTES = 40, 4, 20
DEFAULT_ENTRIES_A_SLOT = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that rmqha uses. ``_ms`` are milliseconds, ``_bytes`` bytes."""

    broker_role: BrokerRole = _setting(
        _one_of(BrokerRole),
        BrokerRole.ASYNC_MASTER,
        "What the node is: ASYNC_MASTER, SYNC_MASTER (a put waits for slaves) or SLAVE.",
    )
    broker_id: int | None = _setting(
        _number(0, 2**31 - 1),
        None,
        "0 for a master, greater for a slave. If it is not set, a master has 0 and a slave 1.",
    )
    broker_name: str = _setting(_nonempty, "broker-a", "The name that a master and its slaves share.")
    broker_cluster_name: str = _setting(_nonempty, "DefaultCluster", "The cluster that the broker belongs to.")
    broker_ip1: str = _setting(
        _nonempty,
        "",
        "The address that clients get. If it is empty: --bind, else the address that leads out of the machine.",
        key="brokerIP1",
    )
    broker_ip2: str = _setting(
        _nonempty, "", "The address of the HA port that slaves get. If it is empty: brokerIP1.", key="brokerIP2"
    )
    namesrv_addr: str = _setting(str, "", "Name servers as HOST:PORT, separated by semicolons.")
    bind_address: str = _setting(
        str, "", "The address to listen at. If it is empty, the node listens at all addresses."
    )
    listen_port: int = _setting(PORT, 10911, "The remoting port. 0 takes any free port.")
    ha_listen_port: int | None = _setting(PORT, None, "The HA port. If it is not set, it is listenPort + 1.")
    ha_master_address: str = _setting(
        str, "", "The HA port of a slave's master, HOST:PORT. If it is empty, the slave asks the name servers."
    )
    store_path_root_dir: Path = _setting(_single_path, Path("~/store").expanduser(), "The folder of the store.")
    store_path_commit_log: Path | None = _setting(
        _single_path, None, "The folder of the log's segments. If it is not set, it is commitlog in storePathRootDir."
    )
    mapped_file_size_commit_log: int | None = _setting(
        _number(MIN_SEGMENT, MAX_SEGMENT),
        None,
        "The size of each segment. If it is not set: as the files are, else as the master's, else 1 GiB.",
    )
    flush_disk_type: FlushDiskType = _setting(
        _one_of(FlushDiskType),
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH: a put waits for its flush, and a slave reports flushed bytes only. ASYNC_FLUSH: neither waits.",
    )
    flush_interval_commit_log_ms: int = _setting(MILLISECONDS, 500, "How often the log is flushed with ASYNC_FLUSH.")
    flush_commit_log_least_pages: int = _setting(
        _number(0, 2**20),
        4,
        "A flush needs at least this many new pages of 4 KiB, unless flushCommitLogThoroughInterval has passed.",
    )
    flush_commit_log_thorough_interval_ms: int = _setting(
        MILLISECONDS, 10_000, "After this time a flush writes everything that is new."
    )
    sync_flush_timeout_ms: int = _setting(
        MILLISECONDS,
        5_000,
        "How long a put waits for its flush with SYNC_FLUSH before it is answered FLUSH_DISK_TIMEOUT.",
    )
    mapped_file_size_consume_queue: int | None = _setting(
        _number(QUEUE_UNIT_BYTES, MAX_QUEUE_FILE),
        None,
        "Size of a consume queue file, whole units of 20 bytes. If not set: as the files, the master's, 6,000,000.",
    )
    mapper_file_size_batch_consume_queue: int | None = _setting(
        _number(BATCH_QUEUE_UNIT_BYTES, MAX_SEGMENT - MAX_SEGMENT % BATCH_QUEUE_UNIT_BYTES),
        None,
        "The same for a batch consume queue of 5.x, whole units of 46 bytes. If not set: 13,800,000.",
    )
    max_hash_slot_num: int | None = _setting(
        _number(1, MAX_HASH_SLOTS),
        None,
        "Hash slots of each index file. If it is not set: as the files are, else as the master's, else 5,000,000.",
    )
    max_index_num: int | None = _setting(
        _number(2, MAX_INDEX_ENTRIES),
        None,
        "Entries of each index file. If it is not set: as the files are, else as the master's, else four a slot.",
    )
    message_index_enable: bool = _setting(_boolean, True, "Whether messages are indexed by key.")
    message_delay_level: DelayLevels = _setting(
        DelayLevels, DelayLevels(), "The delay of each level, such as 1s 5s 10s 30s 1m."
    )
    max_message_size_bytes: int = _setting(_number(1024, 2**30), 4 * 1024 * 1024, "The longest body of a message.")
    max_msgs_num_batch: int = _setting(_number(1, 2**20), 64, "How many messages a query by key returns at most.")
    max_transfer_bytes_on_message_in_memory: int = _setting(
        BYTES, 262_144, "How many bytes a pull returns at most of messages that are in memory."
    )
    max_transfer_count_on_message_in_memory: int = _setting(
        COUNT, 32, "How many messages a pull returns at most if they are in memory."
    )
    max_transfer_bytes_on_message_in_disk: int = _setting(
        BYTES, 65_536, "How many bytes a pull returns at most of messages that must be read from the disk."
    )
    max_transfer_count_on_message_in_disk: int = _setting(
        COUNT, 8, "How many messages a pull returns at most if they must be read from the disk."
    )
    access_message_in_memory_max_ratio: int | None = _setting(
        _number(0, 100),
        None,
        "This share of memory, from the end of the log, counts as in memory. If not set: 40, on a slave 30.",
    )
    offset_check_in_slave: bool = _setting(
        _boolean, False, "Whether a slave answers a pull beyond its queue's end with a corrected offset."
    )
    delete_when: tuple[int, ...] = _setting(
        _hours,
        (4,),
        "The hours of the day at which old segments are deleted, separated by semicolons.",
        RunTime.CHANGES,
    )
    file_reserved_time_hours: int = _setting(
        _number(0, 24 * 366 * 100), 72, "How old a segment must be before it is deleted.", RunTime.CHANGES
    )
    disk_max_used_space_ratio: int = _setting(
        _number(10, 95), 75, "Above this share of a used disk segments are deleted at any hour.", RunTime.CHANGES
    )
    clean_resource_interval_ms: int = _setting(MILLISECONDS, 10_000, "How often the node looks for segments to delete.")
    clean_file_forcibly_enable: bool = _setting(
        _boolean,
        True,
        "Whether a nearly full disk makes the node delete segments that are not old enough.",
        RunTime.CHANGES,
    )
    ha_send_heartbeat_interval_ms: int = _setting(
        MILLISECONDS, 5_000, "A side of an HA connection that has sent nothing for this time sends a heartbeat."
    )
    ha_housekeeping_interval_ms: int = _setting(
        MILLISECONDS, 20_000, "After this time of silence an HA connection is closed."
    )
    ha_transfer_batch_size_bytes: int = _setting(
        _number(1, 4 * 1024 * 1024 - 12), 32 * 1024, "The largest body of a transfer frame."
    )
    ha_flow_control_enable: bool = _setting(_boolean, False, "Whether maxHaTransferByteInSecond applies.")
    max_ha_transfer_bytes_in_second: int = _setting(
        RATE,
        100 * 1024 * 1024,
        "Bytes that a master sends to all its slaves together in a second, if haFlowControlEnable is true.",
        key="maxHaTransferByteInSecond",
    )
    max_ha_receive_bytes_in_second: int | None = _setting(
        RATE,
        None,
        "Bytes that a slave receives in a second. If it is not set, there is no limit.",
        key="maxHaReceiveByteInSecond",
    )
    ha_max_connections: int = _setting(
        COUNT, 2048, "Connections of the HA port. It is never more than half of the files that the process may open."
    )
    ha_max_silent_connections: int = _setting(COUNT, 1792, "Connections of the HA port that have sent no report yet.")
    ha_max_connections_per_address: int = _setting(COUNT, 1792, "Connections of the HA port from one address.")
    ha_connects_at_once_per_address: int = _setting(
        COUNT, 1024, "New connections of one address to the HA port after a quiet time."
    )
    ha_connects_per_second_per_address: int = _setting(
        COUNT, 100, "New connections of one address to the HA port in a second."
    )
    ha_first_report_timeout_ms: int | None = _setting(
        MILLISECONDS,
        None,
        "How long a connection may wait with its first report. If it is not set: haHousekeepingInterval.",
    )
    ha_max_bytes_in_flight: int | None = _setting(
        _number(16 * 1024 * 1024, 2**63 - 1),
        None,
        "Bytes that a slave was sent and has not acknowledged. If it is not set, there is no limit.",
    )
    slave_timeout_ms: int = _setting(
        MILLISECONDS, 3_000, "How long a put waits for slaves before it is answered FLUSH_SLAVE_TIMEOUT."
    )
    ha_slave_fallbehind_max_bytes: int = _setting(
        _number(1, 2**63 - 1),
        256 * 1024 * 1024,
        "If no slave's lag is at most this, a put is answered SLAVE_NOT_AVAILABLE at once.",
    )
    in_sync_replicas: int = _setting(
        COUNT, 2, "How many nodes must hold a message before it is answered on a SYNC_MASTER, the master included."
    )
    min_in_sync_replicas: int = _setting(
        COUNT, 1, "A SYNC_MASTER refuses puts if fewer nodes, the master included, are within haSlaveFallbehindMax."
    )
    register_name_server_period_ms: int = _setting(
        _number(10_000, 60_000), 30_000, "How often the node registers with its name servers."
    )
    update_broker_config_from: str = _setting(
        _changers,
        LOCAL,
        "Who may change settings at run time with mqadmin updateBrokerConfig: local (this machine), none, addresses "
        "or networks, separated by commas.",
    )
    acl_enable: bool = _setting(
        _boolean,
        False,
        "Whether the remoting ports serve only the accounts and addresses of plain_acl.yml (docs/acl.md).",
    )
    acl_folder: Path | None = _setting(
        _single_path,
        None,
        "The folder with plain_acl.yml and acl/. If not set: the folder of --conf, else conf in $ROCKETMQ_HOME.",
    )
    acl_strict: bool = _setting(
        _boolean,
        True,
        "Whether aclEnable also checks the requests that RocketMQ 4.9 serves to any account (docs/acl.md).",
    )
    failover_login_file: Path | None = _setting(
        _single_path,
        None,
        "A file with the lines user=NAME and password=WORD: the login at the coordinator (docs/failover.md). If it is "
        "not set: $RMQHA_COORDINATOR_USER and $RMQHA_COORDINATOR_PASSWORD.",
    )
    failover_ca_file: Path | None = _setting(
        _single_path,
        None,
        "A PEM file, or a folder, with the authorities whose certificates the coordinator may show. If it is not set: "
        "those of the platform.",
    )
    failover_certificate_file: Path | None = _setting(
        _single_path,
        None,
        "A PEM file with the certificate that the node shows to the coordinator.",
        key="failoverCertFile",
    )
    failover_key_file: Path | None = _setting(
        _single_path,
        None,
        "A PEM file with the private key of failoverCertFile. If it is not set, the key is in failoverCertFile.",
    )
    acl_file: Path | None = _setting(
        _single_path,
        None,
        "A tools.yml with accessKey and secretKey: signs the node's own requests, for a master with aclEnable. If it "
        "is not set: $RMQHA_ACCESS_KEY and $RMQHA_SECRET_KEY. SIGHUP reads the file again.",
    )
    unregister_unfit_slave: bool = _setting(
        _boolean, True, "Whether a slave in GAP, AHEAD or DIVERGED leaves the name servers."
    )
    force_register: bool = _setting(
        _boolean, True, "Whether a node registers each time, even if its topics have not changed."
    )
    enable_dledger_commit_log: bool = _setting(
        _not_true, False, "Must be false: rmqha does not speak DLedger.", key="enableDLegerCommitLog"
    )
    broker_permission: int = _setting(
        _number(0, 7), 6, "What clients may do: 2 is write, 4 is read, 6 is both.", RunTime.CHANGES
    )
    region_id: str = _setting(_nonempty, "DefaultRegion", "The region that is named in the answers to puts.")
    trace_on: bool = _setting(_boolean, True, "Whether the answers to puts ask clients for message traces.")
    auto_create_topic_enable: bool = _setting(
        _boolean, True, "Whether a send to an unknown topic creates it.", RunTime.CHANGES
    )
    auto_create_subscription_group: bool = _setting(
        _boolean, True, "Whether a request of an unknown consumer group creates it.", RunTime.CHANGES
    )
    default_topic_queue_nums: int = _setting(COUNT, 8, "The largest number of queues of a topic that a send creates.")
    cluster_topic_enable: bool = _setting(_boolean, True, "Whether there is a topic with the cluster's name.")
    broker_topic_enable: bool = _setting(_boolean, True, "Whether there is a topic with the broker's name.")
    trace_topic_enable: bool = _setting(_boolean, False, "Whether the topic of message traces exists from the start.")
    reject_transaction_message: bool = _setting(
        _boolean, False, "Whether transactional messages are refused.", RunTime.CHANGES
    )
    timer_wheel_enable: bool | None = _setting(
        _boolean,
        None,
        "Whether timer messages of RocketMQ 5 (setDelayTimeMs, setDeliverTimeMs) are taken. If not set: only if the "
        "log has some already, because a broker of RocketMQ 4.9 never delivers them.",
        RunTime.CHANGES,
    )
    timer_max_delay_seconds: int = _setting(
        _number(1, 3600 * 24 * 366),
        3600 * 24 * 3,
        "How long a timer message may wait at most, in seconds.",
        RunTime.CHANGES,
        key="timerMaxDelaySec",
    )
    recall_message_enable: bool = _setting(
        _boolean,
        False,
        "Whether clients of RocketMQ 5.3 may take a timer message back that is not delivered yet (recallMessage).",
        RunTime.CHANGES,
    )
    enable_property_filter: bool = _setting(
        _boolean, False, "Whether consumers may filter messages by SQL92 expressions.", RunTime.CHANGES
    )
    store_reply_message_enable: bool = _setting(
        _boolean,
        True,
        "Whether replies to request() are also stored, in the topic CLUSTER_REPLY_TOPIC.",
        RunTime.CHANGES,
    )
    start_accept_send_request_time_stamp: int = _setting(
        _number(0, 2**63 - 1), 0, "Puts before this time are refused. Milliseconds since 1970.", RunTime.CHANGES
    )
    flush_delay_offset_interval_ms: int = _setting(
        MILLISECONDS, 10_000, "How often the offsets of delay levels are written."
    )
    slave_read_enable: bool = _setting(
        _boolean,
        False,
        "Whether consumers are sent to a slave if the master is busy reading from the disk.",
        RunTime.CHANGES,
    )
    read_up_to: ReadUpTo = _setting(
        _one_of(ReadUpTo),
        ReadUpTo.VERIFIED,
        "Where reads of consumers end. verified: at the log's end; confirmed: at the end of what its slaves hold, so "
        "that no failover takes back what a consumer has seen. Then consumers wait while no slave is connected.",
        RunTime.UNTIL_RESTART,
    )
    long_polling_enable: bool = _setting(
        _boolean, True, "Whether a pull at a queue's end waits for the next message.", RunTime.CHANGES
    )
    short_polling_time_ms: int = _setting(
        MILLISECONDS,
        1_000,
        "How long such a pull waits if longPollingEnable is false.",
        RunTime.CHANGES,
        key="shortPollingTimeMills",
    )
    flush_consumer_offset_interval_ms: int = _setting(MILLISECONDS, 5_000, "How often consumer offsets are written.")
    default_query_max_num: int = _setting(
        COUNT, 32, "How many messages a query by key returns if the request does not say."
    )
    notify_consumer_ids_changed_enable: bool = _setting(
        _boolean, True, "Whether consumers are notified when one of their group connects or disconnects."
    )
    transaction_time_out_ms: int = _setting(
        MILLISECONDS, 6_000, "How old a half message must be before its producer is asked.", RunTime.CHANGES
    )
    transaction_check_max: int = _setting(
        COUNT, 15, "How often a producer is asked about one half message.", RunTime.CHANGES
    )
    transaction_check_interval_ms: int = _setting(MILLISECONDS, 60_000, "How often half messages are looked through.")
    tls_server_mode: TlsMode | None = _setting(
        _one_of(TlsMode),
        None,
        "What remoting ports accept if the node has a certificate. disabled: plain; permissive: both; enforcing: TLS.",
        key="tls.server.mode",
    )
    server_max_connections: int = _setting(
        COUNT,
        10_000,
        "Connections of each remoting port. It is never more than an eighth of the files that the process may open.",
    )
    server_connects_at_once_per_address: int = _setting(
        COUNT,
        2_000,
        "New connections of one address to a remoting port after a quiet time. For IPv6, a /64 counts as one address.",
    )
    server_connects_per_second_per_address: int = _setting(
        COUNT, 200, "New connections of one address to a remoting port in a second."
    )
    server_max_requests_in_progress: int = _setting(
        COUNT, 10_000, "Requests of one connection at a time, held pulls included."
    )
    server_max_request_bytes: int = _setting(
        _number(16 * 1024**2, 2**40),
        96 * 1024**2,
        "Bytes of requests and unfinished frames that all connections of a port hold together.",
        key="serverMaxRequestBytes",
    )
    server_max_answer_bytes: int = _setting(
        _number(16 * 1024**2, 2**40),
        128 * 1024**2,
        "Bytes of answers that the clients of a port, all together, have not read yet.",
        key="serverMaxAnswerBytes",
    )
    max_groups: int = _setting(
        COUNT,
        50_000,
        "Consumer groups of a broker. Known groups always work. The table must also fit into one frame of 16 MiB, in "
        "which slaves receive it: about 40,000 groups with names of 20 characters.",
    )
    max_new_groups_at_once: int = _setting(COUNT, 5_000, "New groups after a quiet time.")
    max_new_groups_per_second: int = _setting(COUNT, 100, "New groups in a second.")
    max_new_groups_at_once_per_connection: int = _setting(
        COUNT, 1_000, "New groups of one connection after a quiet time."
    )
    max_new_groups_per_second_per_connection: int = _setting(COUNT, 20, "New groups of one connection in a second.")
    max_topics: int = _setting(
        COUNT,
        100_000,
        "Topics of a broker. Known topics always work. The table must also fit into seven eighths of one frame of "
        "16 MiB, in which slaves receive it: about 70,000 topics with names of 20 characters.",
    )
    max_new_topics_at_once: int = _setting(COUNT, 5_000, "New topics after a quiet time.")
    max_new_topics_per_second: int = _setting(COUNT, 100, "New topics in a second.")
    max_new_topics_at_once_per_connection: int = _setting(
        COUNT, 1_000, "New topics of one connection after a quiet time."
    )
    max_new_topics_per_second_per_connection: int = _setting(COUNT, 20, "New topics of one connection in a second.")

    def memory_ratio(self, is_slave: bool) -> int:
        """accessMessageInMemoryMaxRatio in percent. The default is lower for a slave."""
        configured = self.access_message_in_memory_max_ratio
        return (30 if is_slave else 40) if configured is None else configured

    @property
    def commit_log_folder(self) -> Path:
        """The folder of the segments: storePathCommitLog, or ``commitlog`` in the root folder."""
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def ha_port(self) -> int:
        """haListenPort, or listenPort + 1. 0 means any free port."""
        if self.ha_listen_port is not None:
            return self.ha_listen_port
        return self.listen_port + 1 if self.listen_port else 0

    @property
    def fast_port(self) -> int:
        """The "VIP" port, two below listenPort. 0 means any free port."""
        return max(0, self.listen_port - 2)


SETTINGS = {setting.metadata["key"] or derived_key(setting.name): setting for setting in fields(Settings)}
"""The fields of all settings that rmqha uses, by RocketMQ's keys."""
SETTING_KEYS = frozenset(SETTINGS)
RUN_TIME_KEYS = {
    key: setting.metadata["run_time"]
    for key, setting in SETTINGS.items()
    if setting.metadata["run_time"] is not RunTime.FIXED
}
"""The settings that can change while a node runs, by RocketMQ's names."""

_BYTE_UNITS = {"k": 1024, "m": 1024**2, "g": 1024**3}


def parse_byte_count(text: str) -> int:
    """Parse a whole number of bytes; a final k, m or g stands for KiB, MiB or GiB. Raises ValueError."""
    number = text[:-1] if text[-1:].lower() in _BYTE_UNITS else text
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{text!r} is not a number of bytes, such as 65536, 64k, 10m or 1g")
    return int(number) * _BYTE_UNITS.get(text[len(number) :].lower(), 1)


def _without_contradictions(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Raises ValueError if a key has two values. (Java would silently take the last one.)"""
    found: dict[str, str] = {}
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            raise ValueError(f"{key} is there twice, with different values; keep one of them")
    return found


def read_properties(path: Path) -> dict[str, str]:
    """The keys and values of a Java properties file. Raises SettingsError, also if a key has two values."""
    import javaproperties  # it imports HTTP clients; most commands read no such file

    try:
        with path.open(encoding="utf-8") as file:
            return javaproperties.load(file, object_pairs_hook=_without_contradictions)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def make_settings(properties: Mapping[str, str]) -> Settings:
    """Settings from texts by RocketMQ's keys. Raises SettingsError naming the key and the reason."""
    return with_properties(Settings(), properties)


def with_properties(settings: Settings, properties: Mapping[str, str]) -> Settings:
    """The settings, overridden by ``properties``. Raises SettingsError naming the key and the reason."""
    settings = replace(settings, **_parse(properties))
    _check_together(settings)
    return settings


def properties_of(settings: Settings) -> dict[str, str]:
    """Texts by RocketMQ's keys, from which ``make_settings`` makes equal settings. Unset settings are left out."""
    values = {key: getattr(settings, setting.name) for key, setting in SETTINGS.items()}
    return {key: _text(value) for key, value in values.items() if value not in (None, "")}


def run_time_properties(settings: Settings) -> dict[str, str]:
    """The texts of the settings that can change while a node runs."""
    return {key: text for key, text in properties_of(settings).items() if key in RUN_TIME_KEYS}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ";".join(f"{hour:02d}" for hour in value)
    return str(value)


def with_defaults(settings: Settings, properties: Mapping[str, str]) -> Settings:
    """The settings, with those that are None taken from ``properties``. Raises SettingsError."""
    unset = {name: value for name, value in _parse(properties).items() if getattr(settings, name) is None}
    for key, name in ADOPTED_QUEUE_SIZES.items():
        size = unset.get(name)
        if size is not None and size < SMALLEST_ADOPTED_QUEUE_FILE:
            raise SettingsError(f"{key}={size} is less than {SMALLEST_ADOPTED_QUEUE_FILE}")
    settings = replace(settings, **unset)
    _check_index_file(settings)
    return settings


def _parse(properties: Mapping[str, str]) -> dict[str, Any]:
    """Values by the names of fields."""
    values: dict[str, Any] = {}
    for key, setting in SETTINGS.items():
        if key not in properties:
            continue
        text = properties[key].strip()
        try:
            values[setting.name] = setting.metadata["parse"](text)
        except ValueError as error:
            raise SettingsError(f"{key}={text} {error}") from error
    return values


def _check_index_file(settings: Settings) -> None:
    slots, entries = settings.max_hash_slot_num or 0, settings.max_index_num
    entries = slots * DEFAULT_ENTRIES_A_SLOT if entries is None else entries
    size = INDEX_HEADER_BYTES + HASH_SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries
    if size > MAX_SEGMENT:
        raise SettingsError(
            f"maxHashSlotNum={slots} and maxIndexNum={entries} make index files of {size} bytes; at most "
            f"{MAX_SEGMENT} can be mapped"
        )


def _check_together(settings: Settings) -> None:
    _check_index_file(settings)
    if settings.broker_role is BrokerRole.SLAVE and settings.broker_id == 0:
        raise SettingsError("brokerId=0 means a master; the brokerId of a slave is greater than 0")
    if settings.listen_port and settings.listen_port < 3:
        raise SettingsError(
            f"listenPort={settings.listen_port} leaves no room for the fast port, which is two below it"
        )
    if settings.ha_port > MAX_PORT:
        raise SettingsError(f"listenPort={settings.listen_port} leaves no room for haListenPort, which is one above it")
    ports = [settings.listen_port, settings.fast_port, settings.ha_port]
    if settings.listen_port and len({port for port in ports if port}) < sum(1 for port in ports if port):
        raise SettingsError(
            f"haListenPort={settings.ha_port} equals listenPort or the fast port, which is two below it"
        )
    in_flight, message_bytes = settings.ha_max_bytes_in_flight, settings.max_message_size_bytes
    if in_flight is not None and in_flight < 8 * 1024 * 1024 + 2 * message_bytes:
        raise SettingsError(
            f"haMaxBytesInFlight={in_flight} is less than 8 MiB and two messages (maxMessageSize={message_bytes}), "
            "which a slave may have to receive before it can acknowledge anything"
        )
    if settings.ha_housekeeping_interval_ms <= settings.ha_send_heartbeat_interval_ms:
        raise SettingsError(
            f"haHousekeepingInterval={settings.ha_housekeeping_interval_ms} must be longer than "
            f"haSendHeartbeatInterval={settings.ha_send_heartbeat_interval_ms}: every quiet peer would be dropped"
        )


def as_master(settings: Settings, role: BrokerRole) -> Settings:
    """The settings of the same node as a master with this role."""
    return replace(settings, broker_role=role, broker_id=0, ha_master_address="")
