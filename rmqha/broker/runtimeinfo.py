"""What a broker reports about itself: GET_BROKER_RUNTIME_INFO and GET_BROKER_CONFIG (spec/remoting.md 2.14, 2.15)."""

from collections.abc import Iterable, Iterator

import javaproperties
import orjson

from rmqha.broker.background.waitingreads import WaitingReads
from rmqha.broker.interfaces import IBrokersNode, IConfigured, IDelayLevels
from rmqha.broker.tables.stats import BrokerStats
from rmqha.kit.histogram import quantile
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.protocol import Processors
from rmqha.settings.settings import properties_of
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER
from rmqha.store.log.room import room_of
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import OUR_VERSION, RemotingCommand, RequestCode, ResponseCode

VERSION_NAME = "V4_9_3"
NO_TRANSIENT_STORE = 2**31 - 1
"""What a Java broker reports without transient buffers."""
THREAD_POOL_CAPACITIES = {"send": 10_000, "pull": 100_000, "query": 20_000}
"""The queues before the threads of a Java broker. We have no such threads, so they are always empty."""
PUT_TIMES = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
"""Java's classes of put times. We do not measure them: all counts and maxima are 0."""
PUT_LATENCIES = {"putLatency99": 0.99, "putLatency999": 0.999}
"""Percentiles, in ms, of all puts since the start. They include waits for the disk and slaves. 4.9.4 added them."""
TRANSFERRED = ("getTransferedTps", "getTransferredTps")
"""The name up to 4.9.8, and that of 5.x."""


class RuntimeInfo:
    """Makes the answer to GET_BROKER_RUNTIME_INFO, with the keys of 4.9.8 and 5.3.3 tools (spec/remoting.md 2.14)."""

    def __init__(
        self,
        store: MessageStore,
        stats: BrokerStats,
        schedule: IDelayLevels,
        wall: IWallClock,
        waiting_reads: WaitingReads | None = None,
    ) -> None:
        """``waiting_reads`` is given if reads have a limit. Its entries are our own."""
        self._waiting_reads = waiting_reads
        self._store = store
        self._stats = stats
        self._schedule = schedule
        self._now_ms = wall.now_ms

    def table(self) -> dict[str, str]:
        """Texts by name. Raises OSError."""
        return {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": str(OUR_VERSION),
            "brokerActive": "false" if self._store.is_slave else "true",
            "bootTimestamp": str(self._stats.boot_timestamp),
            "runtime": _duration(self._now_ms() - self._stats.boot_timestamp),
            "startAcceptSendRequestTimeStamp": str(self._store.settings.start_accept_send_request_time_stamp),
            **dict(self._log()),
            **dict(self._disks()),
            **dict(self._puts()),
            **dict(self._gets()),
            **dict(self._days()),
            **dict(_thread_pools()),
            **dict(self._waiting()),
            **{
                f"scheduleMessageOffset_{level}": f"{delivered},{end}"
                for level, (delivered, end) in self._schedule.progress().items()
            },
        }

    def _log(self) -> Iterator[tuple[str, str]]:
        log, store = self._store.commit_log, self._store
        is_empty = log.min_offset == log.verified_offset
        first = None if is_empty else store.reader.store_timestamp(log.min_offset)
        yield "commitLogMinOffset", "-1" if is_empty else str(log.min_offset)
        yield "commitLogMaxOffset", str(log.verified_offset)
        yield "earliestMessageTimeStamp", "-1" if first is None else str(first)
        yield "remainHowManyDataToFlush", byte_count(max(0, log.max_offset - log.flushed_offset))
        yield "dispatchBehindBytes", str(store.derived.dispatcher.behind_bytes)
        yield "dispatchMaxBuffer", "0"
        yield "pageCacheLockTimeMills", "0"
        yield "remainTransientStoreBufferNumbs", str(NO_TRANSIENT_STORE)

    def _waiting(self) -> Iterator[tuple[str, str]]:
        limit, waiting = self._store.read_limit, self._waiting_reads
        if limit is not None and waiting is not None and not limit.is_lifted:
            yield "readLimitOffset", str(limit.offset)
            yield "waitForSlaveBytes", str(waiting.bytes)
            yield "waitForSlaveMessages", str(waiting.messages)

    def _disks(self) -> Iterator[tuple[str, str]]:
        log_folder = self._store.commit_log.folder
        room = room_of(log_folder)
        ratio = str(room.used_ratio)
        yield "commitLogDirCapacity", f"Total : {byte_count(room.total)}, Free : {byte_count(room.free)}."
        yield "commitLogDiskRatio", ratio
        yield f"commitLogDiskRatio_{log_folder}", ratio
        yield "consumeQueueDiskRatio", str(room_of(self._store.root / CONSUME_QUEUE_FOLDER).used_ratio)

    def _puts(self) -> Iterator[tuple[str, str]]:
        puts = self._stats.puts
        yield "putTps", _texts(counted.per_second(counted.put) for counted in self._stats.recent())
        yield "putMessageTimesTotal", str(puts.messages)
        yield "putMessageFailedTimes", "0"
        yield "putMessageSizeTotal", str(puts.bytes)
        yield "putMessageAverageSize", str(puts.bytes / puts.messages if puts.messages else 0.0)
        yield "putMessageEntireTimeMax", "0"
        yield "putMessageDistributeTime", " ".join(f"[{times}]:0" for times in PUT_TIMES)
        counts = self._store.put_figures.durations.counts
        for name, share in PUT_LATENCIES.items():
            yield name, f"{1000 * (quantile(counts, share) or 0.0):.2f}"

    def _gets(self) -> Iterator[tuple[str, str]]:
        recent = self._stats.recent()
        yield "getFoundTps", _texts(counted.per_second(counted.found) for counted in recent)
        yield "getMissTps", _texts(counted.per_second(counted.missed) for counted in recent)
        yield "getTotalTps", _texts(counted.per_second(counted.found + counted.missed) for counted in recent)
        for name in TRANSFERRED:
            yield name, _texts(counted.per_second(counted.transferred) for counted in recent)
        yield "getMessageEntireTimeMax", "0"

    def _days(self) -> Iterator[tuple[str, str]]:
        for name, days, now in (
            ("msgPutTotal", self._stats.put_days, self._stats.puts.messages),
            ("msgGetTotal", self._stats.got_days, self._stats.gets.messages),
        ):
            yield f"{name}YesterdayMorning", str(days.yesterday_morning)
            yield f"{name}TodayMorning", str(days.today_morning)
            yield f"{name}TodayNow", str(now)


def runtime_processors(node: IBrokersNode, broker: IConfigured) -> Processors:
    """Answers both requests with what node and broker tell now."""
    return {
        RequestCode.GET_BROKER_RUNTIME_INFO: lambda _, __: RemotingCommand(
            ResponseCode.SUCCESS,
            body=orjson.dumps({"table": {"brokerVersion": str(OUR_VERSION), **node.runtime_info()}}),
        ),
        RequestCode.GET_BROKER_CONFIG: lambda _, __: RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={"version": '{"counter":0,"timestamp":0}'},
            body=javaproperties.dumps(broker.config(), timestamp=False, separator="=").encode("utf-8"),
        ),
    }


def _texts(rates: Iterable[float]) -> str:
    return " ".join(map(str, rates))


def _thread_pools() -> Iterator[tuple[str, str]]:
    for name, capacity in THREAD_POOL_CAPACITIES.items():
        yield f"{name}ThreadPoolQueueSize", "0"
        yield f"{name}ThreadPoolQueueCapacity", str(capacity)
        yield f"{name}ThreadPoolQueueHeadWaitTimeMills", "0"
    yield "EndTransactionQueueSize", "0"
    yield "EndTransactionThreadPoolQueueCapacity", "100000"


def _duration(ms: int) -> str:
    """Like Java's getFormatRuntime."""
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def byte_count(count: int) -> str:
    """Like Java's humanReadableByteCount: "0 B", "1.5 KiB"."""
    if count < 1024:
        return f"{count} B"
    exponent = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**exponent:.1f} {'KMGTPE'[exponent - 1]}iB"


def config_of(store: MessageStore) -> dict[str, str]:
    """A node's settings by RocketMQ's names, with the actual sizes of its files."""
    return {
        **properties_of(store.settings),
        "mappedFileSizeCommitLog": str(store.commit_log.segment_size),
        **store.derived.file_settings,
    }
