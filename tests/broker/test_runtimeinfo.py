"""What a broker says of itself, and what a slave makes of what other brokers say."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import javaproperties
import orjson
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.broker.interfaces import IDelayLevels
from rmqha.broker.runtimeinfo import RuntimeInfo, byte_count, config_of
from rmqha.broker.tables.stats import BrokerStats
from rmqha.ha.slave.replica import MasterView, UnsupportedMaster
from rmqha.remoting.asking import ask_config, ask_master_range, ask_runtime_info, log_range, view_of_master
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.protocol import Processors, RemotingProtocol
from rmqha.wire.brokerinfo import MasterRange
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from tests.broker.brokerstore import NOW_MS, SEGMENT_SIZE, BrokerStoreTestCase, TellingNode
from tests.ha.doubles import FakeEndpoint, LineTransport

T = TypeVar("T")

NUMBERS = """sendThreadPoolQueueSize pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio
msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow"""
"""What mqadmin clusterList parses, beside rates (spec/remoting.md 2.14)."""
JAVA_TABLE = f"""{NUMBERS} brokerVersionDesc brokerVersion bootTimestamp runtime startAcceptSendRequestTimeStamp
commitLogMinOffset commitLogMaxOffset commitLogDirCapacity commitLogDiskRatio_LOG consumeQueueDiskRatio
dispatchBehindBytes dispatchMaxBuffer remainHowManyDataToFlush remainTransientStoreBufferNumbs
putTps putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal putMessageAverageSize
putMessageEntireTimeMax putMessageDistributeTime
getFoundTps getMissTps getTotalTps getTransferedTps getMessageEntireTimeMax
sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity queryThreadPoolQueueSize queryThreadPoolQueueCapacity
queryThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity
scheduleMessageOffset_3 putLatency99 putLatency999 getTransferredTps brokerActive"""
"""What 4.9.8 and 5.3.3 brokers tell to tools that parse it, LOG being the folder of its log."""


def a_broker(min_offset: str, max_offset: str, segment_size: str = "1073741824") -> Processors:
    """Answers as a broker with this log does."""
    table = {"commitLogMinOffset": min_offset, "commitLogMaxOffset": max_offset, "bootTimestamp": "1"}
    return TellingNode(table, {"mappedFileSizeCommitLog": segment_size}).runtime_processors()


def a_broker_with(**config: str) -> Processors:
    """Answers as a broker with these settings does."""
    return TellingNode({"commitLogMinOffset": "0", "commitLogMaxOffset": "1"}, config).runtime_processors()


def a_broker_that_says(body: bytes) -> Processors:
    """Answers everything with this body."""
    answer = RemotingCommand(ResponseCode.SUCCESS, body=body)
    return {code: lambda *_: answer for code in (RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG)}


def answer_of(processors: Processors, code: int) -> RemotingCommand:
    """What a request without anything is answered, at once."""
    answer = processors[code](RemotingProtocol(processors, Clock()), RemotingCommand(code))
    assert isinstance(answer, RemotingCommand)
    return answer


class RuntimeInfoTestCase(SynchronousTestCase):
    """Questions to a broker over a line in memory."""

    def ask(self, question: Callable[[FakeEndpoint, Clock], Awaitable[T]], processors: Processors) -> Deferred[T]:
        """Ask a broker that answers so."""
        clock = Clock()
        endpoint = FakeEndpoint(clock)
        answer: Deferred[T] = Deferred.fromCoroutine(question(endpoint, clock))  # type: ignore[arg-type]
        while endpoint.attempts:
            line, other = endpoint.next().accept(), LineTransport(clock)
            other.attach(RemotingProtocol(processors, clock))
            other.deliver(line.take())
            line.deliver(other.take())
            other.lose()
            clock.advance(0)
        self.assertEqual(clock.getDelayedCalls(), [])
        return answer

    def view(self, processors: Processors, with_segment_size: bool = True) -> MasterView:
        """What a slave makes of such a broker."""
        return self.successResultOf(
            self.ask(lambda endpoint, clock: view_of_master(endpoint, clock, with_segment_size), processors)
        )


class ProcessorsTests(RuntimeInfoTestCase):
    """What we answer."""

    def test_the_table_is_asked_for_each_time_and_has_our_version(self) -> None:
        table = {"a": "1"}
        processors = TellingNode(table).runtime_processors()
        self.assertEqual(
            self.successResultOf(self.ask(ask_runtime_info, processors)), {"brokerVersion": "399", "a": "1"}
        )
        table["a"] = "2"
        self.assertEqual(self.successResultOf(self.ask(ask_runtime_info, processors))["a"], "2")

    def test_the_body_is_a_table_as_javas(self) -> None:
        answer = answer_of(a_broker("0", "10"), RequestCode.GET_BROKER_RUNTIME_INFO)
        self.assertEqual(set(orjson.loads(answer.body)), {"table"})

    def test_the_config_is_properties_with_a_data_version(self) -> None:
        config = {"brokerName": "broker-a", "odd": "a=b\nc \u20ac"}
        processors = TellingNode(config=config).runtime_processors()
        self.assertEqual(self.successResultOf(self.ask(ask_config, processors)), config)
        answer = answer_of(processors, RequestCode.GET_BROKER_CONFIG)
        self.assertEqual(orjson.loads(answer.ext_fields["version"]), {"counter": 0, "timestamp": 0})
        self.assertNotIn("#", answer.body.decode(), "no date: equal settings are equal bytes")

    def test_a_config_of_java_is_read(self) -> None:
        body = b"#Tue Nov 17 12:00:00 UTC 2026\nhaListenPort=10912\nstorePathRootDir=/tmp\\:x\n"
        config = self.successResultOf(self.ask(ask_config, a_broker_that_says(body)))
        self.assertEqual(config, {"haListenPort": "10912", "storePathRootDir": "/tmp:x"})
        self.assertEqual(config, javaproperties.loads(body.decode()))


@implementer(IDelayLevels)
class DelayLevels:
    """Has come so far."""

    def __init__(self, levels: Mapping[int, tuple[int, int]]) -> None:
        self._levels = levels

    def progress(self) -> Mapping[int, tuple[int, int]]:
        return self._levels


class TableTests(BrokerStoreTestCase):
    """The table of a broker of ours."""

    def setUp(self) -> None:
        super().setUp()
        self.progress = dict[int, tuple[int, int]]()

    def make(self, role: str = "ASYNC_MASTER", **properties: str) -> None:
        """What a new store's broker says."""
        self.open(role, **properties)
        self.stats = BrokerStats("C", self.clock, self.wall)
        self.stats.startService()
        self.addCleanup(self.stats.stopService)
        self.info = RuntimeInfo(self.store, self.stats, DelayLevels(self.progress), self.wall)

    def test_all_is_there_that_a_java_broker_tells(self) -> None:
        self.make()
        self.progress[3] = (2, 5)
        names = {name.replace(str(self.store.commit_log.folder), "LOG") for name in self.info.table()}
        self.assertEqual(names, set(JAVA_TABLE.split()))

    def test_put_latencies_are_those_of_the_puts_since_the_start_in_ms(self) -> None:
        self.make()
        self.assertEqual((self.info.table()["putLatency99"], self.info.table()["putLatency999"]), ("0.00", "0.00"))
        durations = self.store.put_figures.durations
        for seconds, count in ((0.0009, 985), (0.04, 10), (0.4, 5)):
            for _ in range(count):
                durations.observe(seconds)
        latency = {share: float(self.info.table()[f"putLatency{share}"]) for share in (99, 999)}
        self.assertTrue(25 < latency[99] <= 50, latency)
        self.assertTrue(250 < latency[999] <= 500, latency)

    def test_all_are_texts_and_what_mqadmin_parses_are_numbers(self) -> None:
        """Of what is missing, or is no number, clusterList prints a stack trace."""
        self.make()
        self.put(b"1")
        for seconds in (0, 5, 600):
            self.clock.pump([5] * (seconds // 5))
            table = self.info.table()
            for name in NUMBERS.split():
                float(table[name])
            for name in ("putTps", "getTransferedTps", "getFoundTps", "getMissTps", "getTotalTps"):
                self.assertEqual(len([float(rate) for rate in table[name].split(" ")]), 3)
            self.assertLessEqual({type(value) for value in table.values()}, {str})

    def test_an_empty_log_says_minus_1_as_javas(self) -> None:
        self.make()
        table = self.info.table()
        found = [table[name] for name in ("commitLogMinOffset", "commitLogMaxOffset", "earliestMessageTimeStamp")]
        self.assertEqual(found, ["-1", "0", "-1"])

    def test_a_new_slave_has_no_folders_yet_and_tells_of_their_disk(self) -> None:
        self.make("SLAVE", storePathCommitLog=f"{self.mktemp()}/not/there")
        table = self.info.table()
        for name in ("commitLogDiskRatio", "consumeQueueDiskRatio"):
            self.assertTrue(0 < float(table[name]) < 1, table[name])

    def test_the_log_and_its_first_message(self) -> None:
        self.make()
        first, _ = self.put(b"1", b"2")
        table = self.info.table()
        self.assertEqual(log_range(table), (0, self.store.commit_log.verified_offset))
        self.assertEqual(table["earliestMessageTimeStamp"], str(first.store_timestamp))
        self.assertEqual(table["dispatchBehindBytes"], "0")
        unflushed = self.store.commit_log.max_offset - self.store.commit_log.flushed_offset
        self.assertEqual(table["remainHowManyDataToFlush"], f"{unflushed} B")

    def test_what_came_and_went(self) -> None:
        self.make()
        self.stats.messages_put("T", 20, 5000)
        self.stats.messages_got("G", "T", 40, 1)
        self.stats.messages_got("G", "T", 0, 0)
        self.clock.advance(10)
        table = self.info.table()
        expected = {
            "putTps": "2.0 2.0 2.0",
            "getTransferedTps": "4.0 4.0 4.0",
            "getFoundTps": "0.1 0.1 0.1",
            "getTotalTps": "0.2 0.2 0.2",
            "putMessageTimesTotal": "20",
            "putMessageSizeTotal": "5000",
            "putMessageAverageSize": "250.0",
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayNow": "20",
            "msgGetTotalTodayNow": "40",
        }
        self.assertEqual({name: table[name] for name in expected}, expected)

    def test_how_long_it_has_run(self) -> None:
        self.make()
        boot = self.info.table()["bootTimestamp"]
        self.assertEqual(self.info.table()["runtime"], "[ 0 days, 0 hours, 0 minutes, 0 seconds ]")
        self.clock.advance(2 * 86400 + 3 * 3600 + 4 * 60 + 5)
        table = self.info.table()
        self.assertEqual(table["runtime"], "[ 2 days, 3 hours, 4 minutes, 5 seconds ]")
        self.assertEqual((table["bootTimestamp"], boot), (str(NOW_MS), str(NOW_MS)))

    def test_how_far_delayed_messages_are(self) -> None:
        self.make()
        self.progress.update({1: (2, 5), 18: (0, 1)})
        found = {name: value for name, value in self.info.table().items() if name.startswith("schedule")}
        self.assertEqual(found, {"scheduleMessageOffset_1": "2,5", "scheduleMessageOffset_18": "0,1"})

    def test_bytes_are_told_as_java_tells_them(self) -> None:
        for count, text in (
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 * 1024**3, "5.0 GiB"),
            (2**70, "1024.0 EiB"),
        ):
            self.assertEqual(byte_count(count), text)

    def test_the_config_has_the_sizes_that_the_files_really_have(self) -> None:
        self.make(brokerName="b", maxHashSlotNum="7")
        config = config_of(self.store)
        expected = {
            "brokerName": "b",
            "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
            "mappedFileSizeConsumeQueue": "6000000",
            "maxHashSlotNum": "7",
            "maxIndexNum": "28",
            "autoCreateTopicEnable": "true",
        }
        self.assertEqual({key: config[key] for key in expected}, expected)


class LogRangeTests(SynchronousTestCase):
    """The range of the log, out of the table's texts."""

    def range(self, smallest: str, largest: str) -> tuple[int, int]:
        return log_range({"commitLogMinOffset": smallest, "commitLogMaxOffset": largest})

    def test_a_log_has_a_range(self) -> None:
        self.assertEqual(self.range("1073741824", "2000000000"), (1073741824, 2000000000))

    def test_an_empty_log_of_java_says_minus_1_and_0(self) -> None:
        self.assertEqual(self.range("-1", "0"), (0, 0))

    def test_an_emptied_log_begins_where_it_ends(self) -> None:
        """A slave that took 0 for its min would ask for bytes that are gone."""
        self.assertEqual(self.range("-1", "8192"), (8192, 8192))

    def test_what_is_no_range_is_refused(self) -> None:
        tables: list[Mapping[str, str]] = [
            {},
            {"commitLogMinOffset": "0"},
            {"commitLogMaxOffset": "0"},
            {"commitLogMinOffset": "", "commitLogMaxOffset": "0"},
            {"commitLogMinOffset": "0", "commitLogMaxOffset": "many"},
            {"commitLogMinOffset": "-1", "commitLogMaxOffset": "-1"},
            {"commitLogMinOffset": "10", "commitLogMaxOffset": "9"},
        ]
        for table in tables:
            self.assertRaises(RemotingError, log_range, table)


class ViewTests(RuntimeInfoTestCase):
    """What a slave learns of its master."""

    def test_range_and_segment_size(self) -> None:
        self.assertEqual(
            self.view(a_broker("4096", "9000", "4096")), MasterView(4096, 9000, segment_size=4096, settling_seconds=6.0)
        )

    def test_the_config_is_asked_for_only_when_it_is_wanted(self) -> None:
        only_table: Processors = {
            RequestCode.GET_BROKER_RUNTIME_INFO: a_broker("0", "1")[RequestCode.GET_BROKER_RUNTIME_INFO]
        }
        self.assertEqual(self.view(only_table, with_segment_size=False), MasterView(0, 1))
        question = self.ask(lambda endpoint, clock: view_of_master(endpoint, clock, True), only_table)
        self.failureResultOf(question, RemotingError)

    def test_a_segment_size_that_is_none_is_not_known(self) -> None:
        """Nothing is adopted that no segment could have."""
        for size in ("", "0", "-4096", "1e9", "4k", str(2**31), "9" * 30):
            self.assertIsNone(self.view(a_broker("0", "1", size)).segment_size, size)

    def test_how_long_puts_wait_for_slaves(self) -> None:
        """The longer one of the two settings, of which a release uses one, and a second more."""
        for slave_timeout, sync_flush_timeout, seconds in (
            ("3000", "5000", 6.0),
            ("60000", "5000", 61.0),
            ("3000", "9500", 10.5),
            ("", "x", 6.0),
            ("-1", "٣", 6.0),
        ):
            settings = {"slaveTimeout": slave_timeout, "syncFlushTimeout": sync_flush_timeout}
            self.assertEqual(self.view(a_broker_with(**settings)).settling_seconds, seconds, settings)

    def test_a_range_says_how_long_puts_of_a_java_master_wait(self) -> None:
        question = self.ask(ask_master_range, a_broker_with(slaveTimeout="60000"))
        self.assertEqual(self.successResultOf(question), MasterRange(0, 1, is_ours=False, settling_seconds=61.0))

    def test_a_master_of_another_replication_is_refused(self) -> None:
        for key, mode in (("enableDLegerCommitLog", "DLedger mode"), ("enableControllerMode", "controller mode")):
            self.assertIsNone(self.view(a_broker_with(**{key: "false"})).warning)
            question = self.ask(
                lambda endpoint, clock: view_of_master(endpoint, clock, True), a_broker_with(**{key: "true"})
            )
            refusal = str(self.failureResultOf(question, UnsupportedMaster).value)
            self.assertIn(f"the master is in {mode} ({key}=true), which has its own replication", refusal)

    def test_a_sync_master_that_waits_for_nobody_is_warned_of(self) -> None:
        for role, replicas, warns in (
            ("SYNC_MASTER", "1", True),
            ("SYNC_MASTER", "0", True),
            ("SYNC_MASTER", "2", False),
            ("SYNC_MASTER", "", False),
            ("SYNC_MASTER", "x", False),
            ("ASYNC_MASTER", "1", False),
        ):
            warning = self.view(a_broker_with(brokerRole=role, inSyncReplicas=replicas)).warning
            self.assertEqual("Set inSyncReplicas=2" in (warning or ""), warns, (role, replicas))
        self.assertIsNone(self.view(a_broker_with(brokerRole="SYNC_MASTER")).warning, "4.x always waits")

    def test_garbage_instead_of_a_table_is_refused(self) -> None:
        for body in (b"", b"{", b"[]", b"{}", b"null", b'{"table":[]}', b'{"table":null}', b'{"table":3}', b"\xff\xfe"):
            question = self.ask(ask_runtime_info, a_broker_that_says(body))
            self.assertIn(
                "the runtime info is not a table", str(self.failureResultOf(question, RemotingError).value), body
            )

    def test_a_table_of_other_things_than_texts_is_read(self) -> None:
        body = b'{"table":{"commitLogMinOffset":0,"commitLogMaxOffset":"7","x":null}}'
        table = self.successResultOf(self.ask(ask_runtime_info, a_broker_that_says(body)))
        self.assertEqual(log_range(table), (0, 7))

    def test_garbage_instead_of_a_config_is_refused(self) -> None:
        for body in (b"\xff\xfe", b"a=\\u12"):
            question = self.ask(ask_config, a_broker_that_says(body))
            self.assertIn(
                "the broker's config is not in properties format",
                str(self.failureResultOf(question, RemotingError).value),
            )

    def test_a_broker_without_the_request_is_an_error(self) -> None:
        error = self.failureResultOf(self.ask(ask_runtime_info, {}), RemotingError).value
        self.assertEqual(str(error), "code 3:  request type 28 not supported")
