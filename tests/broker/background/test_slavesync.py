"""A slave's copies of its master's tables (spec/remoting.md 9)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import execute

from rmqha.broker.addresses import MasterAddresses
from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.background.slavesync import MasterLookup, SlaveSynchronize
from rmqha.broker.background.timercheck import TimerCheckPoints
from rmqha.broker.interfaces import NO_NODE, NoNode
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.steps import at_once
from rmqha.store.deletions import NOTHING_DELETED, DeletedTopicTable, Deletion, read_deletions
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import (
    ConfigTable,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rmqha.store.restarts import restarts_path
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact, dumps_strict, loads_lenient
from rmqha.wire.record import Record, encode_record
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, SetWallClock, ToldRows, deleted_topics, own_addresses
from tests.ha.doubles import FakeEndpoint, LineTransport, content_of, log_lines
from tests.remoting.test_protocol import commands_in, frame
from tests.store.logs import sized_record

MASTER, FAST = "192.0.2.7:10911", "192.0.2.7:10909"
OTHER, OTHER_FAST = "192.0.2.8:20911", "192.0.2.8:20909"
OURS = "192.0.2.9:10911"
VERSION = DataVersion(41, 1_795_200_000_123)
CODES: dict[type[ConfigTable], RequestCode] = {
    TopicConfigTable: RequestCode.GET_ALL_TOPIC_CONFIG,
    ConsumerOffsetTable: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DelayOffsetTable: RequestCode.GET_ALL_DELAY_OFFSET,
    SubscriptionGroupTable: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}


def all_tables() -> tuple[ConfigTable, ...]:
    """What a master has."""
    return (
        TopicConfigTable(VERSION, {"T": TopicConfig("T", 4, 4), "U": TopicConfig("U", 1, 2, perm=4)}),
        ConsumerOffsetTable({"T@G": {0: 12, 1: 7}}),
        DelayOffsetTable({1: 3, 3: 2}),
        SubscriptionGroupTable(VERSION, {"G": SubscriptionGroupConfig("G", retry_max_times=3)}),
    )


def runtime_info(log_end: int) -> bytes:
    """What a master says whose log ends there."""
    return dumps_compact({"table": {"commitLogMinOffset": "0", "commitLogMaxOffset": str(log_end)}})


class Master:
    """Answers with what ``bodies`` has, at one port."""

    def __init__(self, bodies: Mapping[int, bytes]) -> None:
        self.bodies = dict(bodies)
        self.asked: list[int] = []
        self.unknown: set[int] = set()
        """Requests that it does not know."""
        self.forbidden: set[int] = set()
        """Requests that it does not allow."""
        self.versions: dict[str, str] | None = None
        """Of its tables, if it is a master of ours."""
        self.deleted = dumps_compact(NOTHING_DELETED.to_json())
        self.queues: dict[tuple[str, int], list[Record]] = {}
        """What it has in its queues; shown if it is a Java broker."""

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.AWAIT_TABLE_CHANGES:
            return self.tell_changes(request)
        if request.code in self.forbidden:
            return RemotingCommand(ResponseCode.NO_PERMISSION, request.opaque, 1, remark="the topic is not readable")
        if request.code in (RequestCode.GET_MAX_OFFSET, RequestCode.PULL_MESSAGE) and request.code not in self.unknown:
            return self.show_queue(request)
        self.asked.append(request.code)
        body = self.bodies.get(request.code)
        if request.code in self.unknown:
            return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, request.opaque, 1, remark="not supported")
        if body is None:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, request.opaque, 1, remark="No topic in this broker")
        return RemotingCommand(ResponseCode.SUCCESS, request.opaque, 1, body=body)

    def show_queue(self, request: RemotingCommand) -> RemotingCommand:
        """The end of a queue, or one message of it."""
        fields = request.ext_fields
        records = self.queues.get((fields["topic"], int(fields["queueId"])), [])
        if request.code == RequestCode.GET_MAX_OFFSET:
            return RemotingCommand(ResponseCode.SUCCESS, request.opaque, 1, ext_fields={"offset": str(len(records))})
        body = encode_record(records[int(fields["queueOffset"])])
        return RemotingCommand(ResponseCode.SUCCESS, request.opaque, 1, body=body)

    def tell_changes(self, request: RemotingCommand) -> RemotingCommand:
        """What a master of ours answers at once; a Java broker does not know the request."""
        if self.versions is None:
            return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, request.opaque, 1, remark="not supported")
        fields = {**self.versions, "minOffset": "0"}
        body = b"" if request.ext_fields.get("deleted") == self.versions["deleted"] else self.deleted
        return RemotingCommand(ResponseCode.SUCCESS, request.opaque, 1, ext_fields=fields, body=body)


class HearingNode(NoNode):
    """Remembers whether the tables were in sync after each change of that."""

    def __init__(self, case: "SlaveSyncTestCase") -> None:
        self._case = case
        self.changes: list[bool | None] = []

    def tables_in_sync_changed(self) -> None:
        self.changes.append(self._case.sync.facts()["inSync"])


class SlaveSyncTestCase(BrokerStoreTestCase):
    """Has a slave and, by their addresses, what masters answer there; nobody listens at other addresses."""

    def setUp(self) -> None:
        super().setUp()
        self.open_slave()
        self.masters: dict[str, Master] = {}
        self.endpoints: dict[str, list[FakeEndpoint]] = {}
        self.lines: dict[LineTransport, str] = {}
        self.own_address = OURS
        self.timers: TimerCheckPoints | None = None
        self.node: NoNode = NO_NODE

    def open_slave(self, **properties: str) -> None:
        """Open a slave's store, with its tables."""
        self.open("SLAVE", **properties)
        self.store.has_masters_log = True
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        self.groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        self.deleted = deleted_topics(self, self.topics, self.offsets)
        self.schedule = ScheduleMessageService(self.folder, self.store, self.settings, self.clock, SetWallClock())

    def follow(self, configured: str | None = None) -> None:
        """Begin to synchronise."""
        self.sync = SlaveSynchronize(
            self.store,
            CopiedTables(self.topics, self.groups, self.offsets, self.deleted),
            self.schedule,
            MasterLookup(self.connect, own_addresses(self.own_address), configured, node=self.node),
            self.clock,
            self.timers,
        )
        self.sync.startService()
        self.addCleanup(self.end)

    def end(self) -> None:
        stopped = self.sync.stopService()
        self.settle()
        self.successResultOf(stopped)

    def tell(self, address: str | None) -> None:
        """A name server's answer."""
        self.sync.master_found(MasterAddresses(address, None))

    def serve(self, address: str, *tables: ConfigTable) -> Master:
        """A master has these tables, and answers at this address."""
        bodies = {int(CODES[type(table)]): dumps_compact(table.to_json()) for table in tables}
        bodies[int(RequestCode.GET_BROKER_RUNTIME_INFO)] = runtime_info(0)
        self.masters[address] = Master(bodies)
        return self.masters[address]

    def connect(self, address: str) -> FakeEndpoint:
        if ":" not in address:
            raise ValueError(f"{address!r} is no address")
        endpoint = FakeEndpoint(self.clock)
        self.endpoints.setdefault(address, []).append(endpoint)
        return endpoint

    def settle(self) -> None:
        """Let everybody say what they have to say now."""
        for _ in range(20):
            for address, endpoints in self.endpoints.items():
                for endpoint in endpoints:
                    while endpoint.attempts:
                        attempt = endpoint.next()
                        if address in self.masters:
                            self.lines[attempt.accept()] = address
                        else:
                            attempt.refuse()
            for line, address in self.lines.items():
                for request in commands_in(line.take()):
                    line.deliver(frame(self.masters[address].answer(request)))
            self.clock.advance(0)

    def pass_by(self, seconds: float) -> None:
        """Time passes, and everybody answers in time."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.settle()

    def open_lines(self) -> list[str]:
        """Where connections are."""
        return sorted(address for line, address in self.lines.items() if not line.disconnecting)

    def held(self) -> tuple[ConfigTable, ...]:
        """The slave's tables."""
        return self.topics.table, self.offsets.table, self.schedule.table, self.groups.table

    def on_disk(self) -> tuple[ConfigTable, ...]:
        """The slave's tables as its next start will read them."""
        return tuple(kind.read(self.folder) for kind in CODES)


class CycleTests(SlaveSyncTestCase):
    def test_the_four_tables_are_the_masters_and_on_disk(self) -> None:
        self.serve(MASTER, *all_tables())
        self.serve(FAST, *all_tables())
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(self.held(), all_tables())
        self.assertEqual(self.on_disk(), all_tables())

    def test_a_java_master_is_asked_at_once_and_then_every_ten_seconds(self) -> None:
        master = self.serve(MASTER, *all_tables())
        fast = self.serve(FAST, *all_tables())
        self.node = node = HearingNode(self)
        changes = node.changes
        self.follow(MASTER)
        self.pass_by(1)
        self.assertEqual(changes, [True])
        self.assertEqual((fast.asked, master.asked), ([21], [43, 45, 28, 201]))
        self.pass_by(9)
        self.assertEqual((fast.asked, master.asked), ([21], [43, 45, 28, 201]))
        self.pass_by(0.5)
        self.assertEqual((fast.asked, master.asked), ([21] * 2, [43, 45, 28, 201] * 2))

    def test_delay_offsets_wait_for_the_log_that_they_belong_to(self) -> None:
        """They may call a message delivered that our disk does not have: a promotion would lose it."""
        master = self.serve(MASTER, *all_tables())
        master.bodies = {**master.bodies, int(RequestCode.GET_BROKER_RUNTIME_INFO): runtime_info(500)}
        self.follow(MASTER)
        self.pass_by(3)
        log = self.store.commit_log
        log.append(sized_record(499))
        self.pass_by(60)  # flushed up to there
        self.assertEqual(log.flushed_offset, 499)
        self.assertEqual(self.schedule.table, DelayOffsetTable())
        self.assertEqual(DelayOffsetTable.read(self.folder), DelayOffsetTable())
        log.append(sized_record(200, 1))
        self.assertEqual(self.schedule.table, DelayOffsetTable(), "the disk may not have that yet")
        self.pass_by(1)
        self.assertEqual(log.flushed_offset, 699)
        self.assertEqual(self.held(), all_tables())
        self.assertEqual(self.on_disk(), all_tables())

    def test_what_belongs_to_a_place_in_the_log_waits_until_ours_is_the_masters(self) -> None:
        """A former master that was not rewound has other bytes there, and lacks what the new one has delivered."""
        master = self.serve(MASTER, *all_tables())
        master.bodies = {**master.bodies, int(RequestCode.GET_BROKER_RUNTIME_INFO): runtime_info(400)}
        self.store.commit_log.append(sized_record(499))
        self.store.has_masters_log = False
        self.follow(MASTER)
        self.pass_by(60)
        self.assertEqual(self.store.commit_log.flushed_offset, 499)
        self.assertEqual(DelayOffsetTable.read(self.folder), DelayOffsetTable())
        self.assertIsNone(self.store.topics_up_to)
        self.store.has_masters_log = True
        self.pass_by(11)
        self.assertEqual(self.on_disk(), all_tables())
        self.assertEqual(self.store.topics_up_to, 499)

    def test_a_table_that_waits_is_not_for_the_log_of_another_master(self) -> None:
        master = self.serve(MASTER, *all_tables())
        master.bodies = {**master.bodies, int(RequestCode.GET_BROKER_RUNTIME_INFO): runtime_info(500)}
        self.follow(MASTER)
        self.pass_by(3)
        self.tell("192.0.2.8:10911")
        self.store.commit_log.append(sized_record(600))
        self.pass_by(60)
        self.assertEqual(self.store.commit_log.flushed_offset, 600)
        self.assertEqual(DelayOffsetTable.read(self.folder), DelayOffsetTable())

    def test_the_progress_of_transactions_waits_for_the_log_that_it_belongs_to(self) -> None:
        """It may have passed a half message that was put again, or ended, in what our log does not have yet.

        A promotion would forget that message, and nobody would ask about it.
        """
        half, operations = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS"

        master = self.serve(MASTER)
        self.serve(FAST)

        def serve(progress: int, log_end: int) -> None:
            rows = {half: {0: progress}, operations: {0: progress - 1}, "T@G": {0: progress}}
            master.bodies = {
                int(RequestCode.GET_ALL_CONSUMER_OFFSET): dumps_compact(ConsumerOffsetTable(rows).to_json()),
                int(RequestCode.GET_BROKER_RUNTIME_INFO): runtime_info(log_end),
            }

        def progress() -> list[int]:
            table = self.offsets.table.offset_table
            self.assertEqual(ConsumerOffsetTable.read(self.folder).offset_table, table)
            return [table.get(key, {}).get(0, 0) for key in (half, operations, "T@G")]

        log = self.store.commit_log
        serve(10, 500)
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(progress(), [0, 0, 10])
        log.append(sized_record(499))
        serve(20, 900)
        self.pass_by(10)
        self.assertEqual(progress(), [0, 0, 20])
        log.append(sized_record(300))
        self.pass_by(10)
        self.assertEqual(progress(), [10, 9, 20], "the one that waited goes first")
        self.pass_by(10)
        self.assertEqual(progress(), [10, 9, 20])
        log.append(sized_record(300))
        self.pass_by(10)
        self.assertEqual(progress(), [20, 19, 20])

    def test_the_connections_are_kept(self) -> None:
        self.serve(MASTER, *all_tables())
        self.serve(FAST, *all_tables())
        self.follow(MASTER)
        self.pass_by(60)
        self.assertEqual(sorted(self.lines.values()), [FAST, MASTER])
        self.assertEqual(self.open_lines(), [FAST, MASTER])

    def test_a_connection_that_breaks_is_made_anew(self) -> None:
        self.serve(MASTER, *all_tables())
        self.serve(FAST, *all_tables())
        self.follow(MASTER)
        self.pass_by(3)
        for line in list(self.lines):
            line.lose()
        topics, *_ = all_tables()
        assert isinstance(topics, TopicConfigTable)
        changed = TopicConfigTable(VERSION.next(NOW_MS), {**topics.topic_config_table, "V": TopicConfig("V")})
        self.serve(FAST, changed)
        self.pass_by(20)
        self.assertEqual(self.topics.table, changed)
        self.assertEqual(self.open_lines(), [FAST, MASTER])

    def test_topics_come_from_the_main_port_where_nobody_listens_at_the_fast_one(self) -> None:
        self.serve(MASTER, *all_tables())
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(self.held(), all_tables())

    def test_all_comes_from_the_main_port_of_an_address_that_tells_no_port(self) -> None:
        self.serve("unix:/run/broker", *all_tables())
        self.follow("unix:/run/broker")
        self.pass_by(3)
        self.assertEqual(self.held(), all_tables())

    def test_once_stopped_nothing_is_left(self) -> None:
        self.serve(MASTER)
        self.serve(FAST)
        for seconds in (0, 3, 10):
            before = self.clock.getDelayedCalls()
            self.follow(MASTER)
            self.pass_by(seconds)
            self.end()
            self.assertEqual(self.open_lines(), [])
            left = [str(call) for call in self.clock.getDelayedCalls() if call not in before]
            self.assertEqual(left, [])

    def test_it_may_be_stopped_while_it_waits_for_an_answer(self) -> None:
        self.follow(MASTER)
        self.clock.advance(3)
        (attempt,) = self.endpoints[MASTER][0].attempts
        line = attempt.accept()
        self.endpoints[MASTER][0].attempts.clear()
        self.clock.advance(1)
        stopped = self.sync.stopService()
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertTrue(line.disconnecting)


class ChangesTests(SlaveSyncTestCase):
    """A master of ours tells of changes, and a message of an unknown topic does so of a Java master's."""

    def serve_ours(self) -> Master:
        master = self.masters[FAST] = self.serve(MASTER, *all_tables())
        master.versions = {"topics": "r-1", "groups": "r-1", "deleted": "r-1", "offsets": "r-1"}
        return master

    def test_only_tables_that_have_changed_are_asked_for(self) -> None:
        master = self.serve_ours()
        self.follow(MASTER)
        self.pass_by(0.5)
        self.assertEqual(self.held(), all_tables())
        self.assertEqual(master.asked, [21, 43, 45, 28, 201])
        master.asked.clear()
        self.pass_by(2)
        self.assertEqual(set(master.asked), {45, 28}, "the delay offsets are few")
        assert master.versions is not None
        master.versions["groups"] = "r-2"
        master.asked.clear()
        self.pass_by(1)
        self.assertEqual(master.asked.count(201), 1)
        self.assertNotIn(21, master.asked)

    def test_a_table_that_could_not_be_taken_is_asked_for_again(self) -> None:
        master = self.serve_ours()
        body = master.bodies.pop(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        self.follow(MASTER)
        self.pass_by(2)
        self.assertFalse(self.sync.facts()["inSync"])
        master.bodies[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = body
        self.pass_by(11)
        self.assertEqual((self.held(), self.sync.facts()["inSync"]), (all_tables(), True))

    def test_deletions_are_taken_with_queues_and_offsets(self) -> None:
        """Also those that come after the first messages of the new topic: these had no place in the old queue."""
        source = self.store
        self.open("ASYNC_MASTER")
        old = self.put(b"1", b"2", b"3")
        mark = self.store.commit_log.max_offset
        at_once(self.store.setting_deleted(DeletedTopicTable((Deletion("T", self.store.close_topic("T")),))))
        new = self.put(b"4", b"5")
        content = content_of(self.store.commit_log)
        self.store = source
        self.store.commit_log.append_data(0, content)
        self.store.commit_log.verify()
        self.dispatch()
        queue = self.store.derived.queues.queues["T", 0]
        self.assertEqual(self.store.reader.message_in(queue, 0), old[0])
        self.offsets.merge(ConsumerOffsetTable({"T@G": {0: 3}, "%RETRY%H@H": {0: 1}, "U@H": {0: 2}, "U@G": {0: 4}}))

        master = self.serve_ours()
        table = DeletedTopicTable((Deletion("T", mark, 5), Deletion("%RETRY%H", mark, 6)))
        master.deleted = dumps_compact(table.to_json())
        master.bodies[int(RequestCode.GET_ALL_CONSUMER_OFFSET)] = dumps_compact(ConsumerOffsetTable().to_json())
        self.follow(MASTER)
        self.pass_by(2)
        self.dispatch()
        queue = self.store.derived.queues.queues["T", 0]
        self.assertEqual([self.store.reader.message_in(queue, at) for at in range(queue.max_offset)], new)
        self.assertEqual(self.offsets.table.offset_table, {"U@G": {0: 4}})
        self.assertEqual(read_deletions(self.store.root).deletions, table.deletions)

    def test_a_deletion_that_the_new_master_does_not_have_is_taken_back(self) -> None:
        """It was made on a master that another one has replaced since."""
        master_store = self.open("ASYNC_MASTER")
        records = self.put(b"1", b"2")
        slave = self.copy_to_slave()
        self.deleted = deleted_topics(self, self.topics, self.offsets)
        end = master_store.commit_log.max_offset
        self.successResultOf(self.deleted.follow(DeletedTopicTable((Deletion("T", end),)), 0))
        self.assertEqual(slave.reader.max_offset("T", 0), 0)
        self.successResultOf(self.deleted.follow(NOTHING_DELETED, 0))
        self.dispatch()
        queue = slave.derived.queues.queues["T", 0]
        self.assertEqual([slave.reader.message_in(queue, at) for at in range(queue.max_offset)], records)

    def test_the_table_of_topics_has_those_of_messages_that_came_before_the_question(self) -> None:
        """The master makes a topic after its answer, and the first message of it is faster than the answer."""
        master = self.serve_ours()
        ends = []

        def tell(request: RemotingCommand) -> RemotingCommand:
            ends.append(self.store.commit_log.max_offset)
            self.store.commit_log.append(replace(sized_record(200, len(ends)), topic="Young"))
            return Master.tell_changes(master, request)

        self.patch(master, "tell_changes", tell)
        self.follow(MASTER)
        self.pass_by(2)
        self.assertIn(self.store.topics_up_to, ends)

    def test_what_a_java_master_deleted_and_made_again_starts_again_here_too(self) -> None:
        """It says nothing of the deletion, but the queue offsets in its log begin with 0 again."""
        self.assert_starts_again(is_asked_before=True)

    def test_also_if_the_slave_finds_that_before_it_has_asked_the_master_anything(self) -> None:
        """It was stopped meanwhile, so the log has it all when the slave starts."""
        self.assert_starts_again(is_asked_before=False)

    def assert_starts_again(self, is_asked_before: bool) -> None:
        slave = self.store
        master = self.serve(MASTER, *all_tables()[:1], ConsumerOffsetTable({"U@G": {0: 1}}), *all_tables()[2:])
        self.offsets.merge(ConsumerOffsetTable({"T@G": {0: 3}}))
        self.follow(MASTER)
        slave.adopt_derived_file_settings({"mappedFileSizeConsumeQueue": "20000"})  # queues and index are others then
        if is_asked_before:
            self.pass_by(2)
        self.open("ASYNC_MASTER")
        self.put(b"old 1", b"old 2", b"old 3")
        self.put(b"old 4", b"old 5", queue_id=1)
        at_once(self.store.setting_deleted(DeletedTopicTable((Deletion("T", self.store.close_topic("T")),))))
        fresh = self.put(b"new", queue_id=2)
        new = {1: self.put(b"new 1"), 0: self.put(b"new 2", b"new 3", b"new 4", b"new 5")}
        new = {0: [*new[1], *new[0]], 1: self.put(b"new 6", queue_id=1), 2: fresh}
        master.queues = {("T", queue_id): records for queue_id, records in new.items()}
        self.copy_log_to(slave)
        self.pass_until(
            lambda: bool(slave.derived.dispatcher.deleted.deletions) and "U@G" in self.offsets.table.offset_table
        )
        self.dispatch()
        self.assertEqual(self.queues_of(slave), new)
        self.assertEqual(self.offsets.table.offset_table, {"U@G": {0: 1}}, "the group begins the new topic anew")

    def copy_log_to(self, slave: MessageStore) -> None:
        """The slave has what is in the open store, and is open instead of it."""
        content = content_of(self.store.commit_log)
        self.store = slave
        slave.commit_log.append_data(0, content)
        slave.commit_log.verify()
        self.dispatch()

    def pass_until(self, is_over: Callable[[], bool]) -> None:
        """Time passes. How many turns something takes depends on how busy the machine is."""
        for _ in range(100):
            self.pass_by(1)
            if is_over():
                return

    @staticmethod
    def queues_of(store: MessageStore) -> dict[int, list[Record | None]]:
        """The messages of each queue of the topic T."""
        return {
            queue_id: [store.reader.message_in(queue, at) for at in range(queue.min_offset, queue.max_offset)]
            for (topic, queue_id), queue in store.derived.queues.queues.items()
            if topic == "T"
        }

    def restart_queue(self) -> tuple[MessageStore, dict[int, list[Record]], list[Record]]:
        """The slave, what it has in two queues, and a message in its log with queue offset 0 that has no place there.

        A Java master gives queue offset 0 again if it has lost the files of a queue, or cleaned an expired one.
        """
        self.follow(MASTER)
        slave, self.slave_closing = self.store, self.close_store
        self.offsets.merge(ConsumerOffsetTable({"T@G": {0: 3}}))
        self.open("ASYNC_MASTER")
        old = {1: self.put(b"4", b"5", queue_id=1), 0: self.put(b"1", b"2", b"3")}
        del self.store.puts.appender.queue_offsets["T", 0]
        lone = self.put(b"6")
        self.put(b"other", topic="U")  # dispatch begins here after a clean stop
        self.assertEqual([record.queue_offset for record in lone], [0])
        self.copy_log_to(slave)
        return slave, old, lone

    def assert_deleted(self, lone: list[Record]) -> None:
        """After a while the topic begins anew in the open store, with this message."""
        self.pass_until(lambda: len(self.queues_of(self.store)) == 1)
        self.dispatch()
        self.assertEqual(self.queues_of(self.store), {0: lone})

    def assert_not_deleted(self, slave: MessageStore, old: dict[int, list[Record]], reason: str) -> None:
        with log_lines() as lines:
            self.pass_until(lambda: "starts again from 0" in lines())
            self.assertIn(f"but the master {reason}: the topic counts as not deleted", lines())
        self.assertEqual(self.queues_of(slave), old)
        self.assertEqual(slave.derived.dispatcher.deleted, NOTHING_DELETED)
        self.assertEqual(self.offsets.table.offset_table["T@G"], {0: 3})

    def test_a_queue_that_starts_again_alone_is_no_proof_of_a_deletion(self) -> None:
        master = self.serve(MASTER, all_tables()[0])
        slave, old, lone = self.restart_queue()
        master.queues = {("T", 0): lone, ("T", 1): old[1]}
        self.assert_not_deleted(slave, old, "has other messages of the topic from before")

    def test_nor_is_a_master_that_has_lost_all_queues_but_has_changed_no_topic(self) -> None:
        rows = {"T": TopicConfig("T", 4, 4)}
        master = self.serve(MASTER, TopicConfigTable(DataVersion(41, NOW_MS - 1), rows))
        slave, old, lone = self.restart_queue()
        master.queues = {("T", 0): lone}
        self.assert_not_deleted(slave, old, "has not changed its table of topics since then")

    def test_nor_is_a_master_that_has_the_messages_still(self) -> None:
        master = self.serve(MASTER, all_tables()[0])
        slave, old, lone = self.restart_queue()
        master.queues = {("T", 0): [*old[0], *lone], ("T", 1): old[1]}
        self.assert_not_deleted(slave, old, "has all messages that we have")

    def test_what_a_java_master_does_not_say_is_asked_again(self) -> None:
        """It may be busy, or not have come to the message itself. Until it answers nothing is dropped."""
        master = self.serve(MASTER, *all_tables())
        slave, old, lone = self.restart_queue()
        master.queues = {("T", 0): []}
        self.pass_by(12)
        self.assertEqual(self.queues_of(slave), old)
        master.queues = {("T", 0): [*lone, *old[0]]}  # more than the slave has, but other messages
        master.unknown.add(RequestCode.GET_MAX_OFFSET)
        self.pass_by(12)
        self.assertEqual(self.queues_of(slave), old)
        master.unknown.clear()
        self.assert_deleted(lone)

    def test_a_slave_that_stops_before_the_answer_asks_again_after_its_next_start(self) -> None:
        master = self.serve(MASTER, *all_tables())
        slave, old, lone = self.restart_queue()
        self.pass_by(2)
        self.end()
        slave_closing, self.store = self.slave_closing, slave
        slave_closing()
        self.open_slave(storePathRootDir=str(slave.root))
        self.assertEqual(self.queues_of(self.store), old)
        master.queues = {("T", 0): lone}
        self.follow(MASTER)
        self.assert_deleted(lone)
        self.close_store()
        self.assertFalse(restarts_path(slave.root).exists(), "it has its answer")

    def test_a_master_that_does_not_let_us_look_says_nothing_of_its_messages(self) -> None:
        """The topic may be closed for readers, or the slave's account. It is asked again, and the log says so once."""
        master = self.serve(MASTER, *all_tables())
        master.forbidden.add(RequestCode.PULL_MESSAGE)
        slave, old, lone = self.restart_queue()
        master.queues = {("T", 0): [*lone, *old[0]]}
        with log_lines() as lines:
            self.pass_by(30)
            self.assertEqual(lines().count("does not let us ask whether it has deleted T"), 1)
        self.assertEqual(self.queues_of(slave), old)
        master.forbidden.clear()
        self.assert_deleted(lone)

    def test_a_java_master_is_asked_within_a_second_after_a_message_of_an_unknown_topic(self) -> None:
        fast, master = self.serve(FAST, *all_tables()), self.serve(MASTER, *all_tables())
        self.follow(MASTER)
        self.pass_by(2)
        self.assertEqual(fast.asked, [21])
        for number in range(5):  # once for all messages of the topic, until the regular time
            self.store.commit_log.append(replace(sized_record(200, number), topic="Young"))
            self.pass_by(1)
        self.assertEqual((fast.asked, master.asked.count(201)), ([21, 21], 2))

    def test_also_if_the_message_comes_while_the_tables_are_copied(self) -> None:
        fast, master = self.serve(FAST, *all_tables()), self.serve(MASTER, *all_tables())

        def answer(request: RemotingCommand) -> RemotingCommand:
            if request.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG and not self.store.commit_log.max_offset:
                self.store.commit_log.append(replace(sized_record(200), topic="Young"))
                self.clock.advance(0.1)  # it comes into its queue
            return Master.answer(master, request)

        self.patch(master, "answer", answer)
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(fast.asked, [21, 21])


class AddressTests(SlaveSyncTestCase):
    def test_without_an_address_nobody_is_asked(self) -> None:
        self.follow()
        self.pass_by(20)
        self.assertEqual(self.endpoints, {})

    def test_a_name_server_tells_where(self) -> None:
        self.serve(MASTER, *all_tables())
        self.follow()
        self.tell(MASTER)
        self.pass_by(3)
        self.assertEqual(self.held(), all_tables())

    def test_what_a_name_server_tells_counts_more_than_what_was_configured(self) -> None:
        self.serve(MASTER)
        other = self.serve(OTHER, *all_tables())
        self.follow(MASTER)
        self.tell(OTHER)
        self.pass_by(3)
        self.assertEqual(self.held(), all_tables())
        self.assertEqual(len(other.asked), 5)

    def test_a_new_address_is_gone_to_and_the_old_one_left(self) -> None:
        for address in (MASTER, FAST, OTHER, OTHER_FAST):
            self.serve(address, *all_tables())
        self.follow()
        self.tell(MASTER)
        self.pass_by(3)
        self.assertEqual(self.open_lines(), [FAST, MASTER])
        self.tell(OTHER)
        self.pass_by(10)
        self.assertEqual(self.open_lines(), [OTHER_FAST, OTHER])

    def test_while_no_name_server_knows_a_master_nobody_is_asked(self) -> None:
        master = self.serve(MASTER, *all_tables())
        self.follow()
        self.tell(MASTER)
        self.pass_by(3)
        self.tell(None)
        self.pass_by(20)
        self.assertEqual(self.open_lines(), [])
        self.assertEqual(master.asked, [21, 43, 45, 28, 201])
        self.assertEqual(self.held(), all_tables(), "what it had it keeps")
        self.tell(MASTER)
        self.pass_by(10)
        self.assertEqual(master.asked, [21, 43, 45, 28, 201] * 2)

    def test_it_never_asks_itself(self) -> None:
        self.follow(OURS)
        self.tell(OURS)
        self.pass_by(20)
        self.assertEqual(self.endpoints, {})
        self.assertIsNone(self.sync.master_address)

    def test_an_address_that_is_none_is_told_once(self) -> None:
        self.follow()
        with log_lines() as lines:
            self.tell("nowhere")
            self.pass_by(60)
        self.assertEqual(lines().count("error: no tables are copied from nowhere: 'nowhere' is no address"), 1)
        self.serve(MASTER, *all_tables())
        self.tell(MASTER)
        self.pass_by(10)
        self.assertEqual(self.held(), all_tables())


class TableTests(SlaveSyncTestCase):
    """What is done with what comes."""

    def setUp(self) -> None:
        super().setUp()
        self.master = self.serve(MASTER, *all_tables())

    def answer_with(self, code: RequestCode, body: bytes) -> None:
        """The master answers this from now on."""
        self.master.bodies = {**self.master.bodies, code: body}

    def test_tables_of_a_java_master_are_read(self) -> None:
        """fastjson writes numbers as keys without quotes; 5.x adds fields."""
        self.answer_with(RequestCode.GET_ALL_CONSUMER_OFFSET, b'{"offsetTable":{"T@G":{0:5,11:6},"%RETRY%G@G":{}}}')
        self.answer_with(RequestCode.GET_ALL_DELAY_OFFSET, b'{"offsetTable":{1:3,3:2}}')
        self.answer_with(
            RequestCode.GET_ALL_TOPIC_CONFIG,
            b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":5},"mappingDataVersion":{},'
            b'"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":3,'
            b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":3}}}',
        )
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(self.offsets.table, ConsumerOffsetTable({"T@G": {0: 5, 11: 6}, "%RETRY%G@G": {}}))
        self.assertEqual(self.schedule.table, DelayOffsetTable({1: 3, 3: 2}))
        topic = TopicConfig("T", 3, 3, unknown={"attributes": {}})
        version = DataVersion(2, 5, unknown={"stateVersion": 0})
        expected = TopicConfigTable(version, {"T": topic}, unknown={"mappingDataVersion": {}})
        self.assertEqual(self.topics.table, expected)

    def test_fields_that_we_do_not_know_are_on_disk_and_followed(self) -> None:
        """Those of a table may change while its version stays; those of offsets have no version that we compare."""
        version = {"counter": 2, "stateVersion": 0, "timestamp": 5}
        group = SubscriptionGroupConfig("G").to_json() | {"consumeMessageOrderly": True, "attributes": {"a": None}}
        for forbidden in ({}, {"T@G": {"0": 1}}):
            tables = {
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
                    "dataVersion": version,
                    "forbiddenTable": forbidden,
                    "subscriptionGroupTable": {"G": group},
                },
                RequestCode.GET_ALL_CONSUMER_OFFSET: {"dataVersion": version, "offsetTable": {}, "x": forbidden},
                RequestCode.GET_ALL_DELAY_OFFSET: {"dataVersion": version, "offsetTable": {"1": 2}, "x": forbidden},
            }
            for code, content in tables.items():
                self.answer_with(code, dumps_strict(content))
            if not forbidden:
                self.follow(MASTER)
            self.pass_by(10)
            kinds: tuple[type[ConfigTable], ...] = (SubscriptionGroupTable, ConsumerOffsetTable, DelayOffsetTable)
            for kind, (code, content) in zip(kinds, tables.items(), strict=True):
                written = kind.read(self.folder).to_json()
                self.assertEqual(loads_lenient(dumps_strict(written)), content, code.name)

    def test_a_slave_that_once_dropped_the_attributes_fetches_them(self) -> None:
        ours = TopicConfigTable(DataVersion(2, 5), {"T": TopicConfig("T", 3, 3)})
        self.topics.replace(ours)
        version = {"counter": 2, "stateVersion": 0, "timestamp": 5}
        attributes = {"attributes": {"message.type": "FIFO"}}
        table = {
            "dataVersion": version,
            "topicConfigTable": {"T": TopicConfig("T", 3, 3, unknown=attributes).to_json()},
        }
        self.answer_with(RequestCode.GET_ALL_TOPIC_CONFIG, dumps_strict(table))
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(self.topics.table.rows["T"].unknown, attributes)

    def test_topics_and_groups_of_the_same_version_stay(self) -> None:
        topics = TopicConfigTable(VERSION, {"mine": TopicConfig("mine")})
        groups = SubscriptionGroupTable(VERSION, {"mine": SubscriptionGroupConfig("mine")})
        self.topics.replace(topics)
        self.groups.replace(groups)
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual((self.topics.table, self.groups.table), (topics, groups))
        self.assertEqual(self.offsets.query("G", "T", 0), 12, "which have no version")

    def test_name_servers_are_told_of_topics_that_changed_and_only_then(self) -> None:
        told = ToldRows()
        self.topics.subscribe(told)
        self.follow(MASTER)
        self.pass_by(33)
        self.assertEqual(told.rows, [None])

    def test_offsets_of_the_slave_alone_stay_and_those_of_a_shared_key_are_replaced(self) -> None:
        self.offsets.commit("G", "T", 2, 99, "a consumer")
        self.offsets.commit("H", "T", 0, 5, "a consumer")
        self.follow(MASTER)
        self.pass_by(3)
        self.assertEqual(self.offsets.table.offset_table, {"T@G": {0: 12, 1: 7}, "T@H": {0: 5}})

    def test_an_offset_that_moves_back_is_logged(self) -> None:
        self.offsets.commit("G", "T", 0, 20, "a consumer")
        self.follow(MASTER)
        with log_lines() as lines:
            self.pass_by(3)
        self.assertIn("warn: the master's offsets move T@G back: queue 0 from 20 to 12", lines())
        self.assertEqual(self.offsets.query("G", "T", 0), 12)

    def test_one_table_that_cannot_be_read_stays_and_the_others_are_taken_over(self) -> None:
        for body in (b"", b"{", b"[]", b"null", b'{"topicConfigTable":7}', b'{"topicConfigTable":{"T":7}}', b"\xff"):
            self.answer_with(RequestCode.GET_ALL_TOPIC_CONFIG, body)
            before = self.topics.table
            self.follow(MASTER)
            with log_lines() as lines:
                self.pass_by(3)
            self.assertIn(f"warn: GET_ALL_TOPIC_CONFIG of the master at {MASTER} is not copied: ", lines(), body)
            self.assertEqual(self.topics.table, before)
            self.assertEqual(self.held()[1:], all_tables()[1:])
            self.end()

    def test_a_master_that_has_no_such_table_says_so_and_the_slave_keeps_its_own(self) -> None:
        """As a Java master does that has no delay offsets."""
        self.serve(MASTER, *(table for table in all_tables() if not isinstance(table, DelayOffsetTable)))
        self.schedule.replace(DelayOffsetTable({1: 9}), 0)
        self.follow(MASTER)
        with log_lines() as lines:
            self.pass_by(3)
        self.assertIn("GET_ALL_DELAY_OFFSET of the master at 192.0.2.7:10911 is not copied: code 1", lines())
        self.assertEqual(self.schedule.table, DelayOffsetTable({1: 9}))
        self.assertEqual(self.groups.table, all_tables()[3])

    def test_a_failure_is_told_once_and_so_is_its_end(self) -> None:
        sound = self.master.bodies
        self.answer_with(RequestCode.GET_ALL_DELAY_OFFSET, b"{")
        self.follow(MASTER)
        with log_lines() as lines:
            self.pass_by(63)
            self.assertEqual(lines().count("GET_ALL_DELAY_OFFSET"), 1)
            self.master.bodies = sound
            self.pass_by(60)
        self.assertEqual(lines().count("info: copied from the master again: GET_ALL_DELAY_OFFSET"), 1)
        self.assertEqual(lines().count("GET_ALL_DELAY_OFFSET"), 2)

    def test_a_master_that_is_down_is_told_once_and_in_words(self) -> None:
        del self.masters[MASTER]
        self.follow(MASTER)
        self.assertIsNone(self.sync.facts()["inSync"])
        with log_lines() as lines:
            self.pass_by(63)
        told = [line for line in lines().splitlines() if line.startswith("warn: ")]
        self.assertLessEqual(len(told), 2, told)
        for code in CODES.values():
            self.assertEqual(sum(code.name in line for line in told), 1)
        self.assertNotIn("Deferred", lines())
        self.assertNotIn("reentrantly", lines())
        self.assertEqual(self.sync.facts()["inSync"], False)
        self.assertTrue(self.sync.facts()["reason"])
        self.serve(MASTER, *all_tables())
        self.pass_by(30)
        self.assertEqual(self.held(), all_tables())
        self.assertEqual((self.sync.facts()["inSync"], self.sync.facts()["reason"]), (True, None))

    def test_a_refusal_of_every_table_is_one_line_and_a_fact(self) -> None:
        """As by an ACL: the log is in sync, and its tables are not."""
        self.masters[MASTER].bodies = {}
        self.follow(MASTER)
        with log_lines() as lines:
            self.pass_by(33)
        self.assertEqual(lines().count("warn: "), 1)
        self.assertIn("are not copied: code 1: No topic in this broker", lines())
        facts = self.sync.facts()
        self.assertEqual((facts["inSync"], facts["reason"]), (False, "code 1: No topic in this broker"))

    def test_a_master_that_does_not_answer_does_not_hold_up_for_ever(self) -> None:
        silent = self.masters.pop(MASTER)
        self.follow(MASTER)
        self.clock.advance(3)
        line = self.endpoints[MASTER][0].next().accept()
        with log_lines() as lines:
            self.pass_by(15)
        self.assertIn("not copied: no answer within", lines())
        self.assertNotIn("Deferred", lines())
        line.lose()
        self.masters[MASTER] = silent
        self.pass_by(20)
        self.assertEqual(self.held(), all_tables())

    def test_a_disk_that_refuses_is_told_and_nothing_ends(self) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        self.follow(MASTER)
        with log_lines() as lines:
            patched = self.patch(Path, "rename", refuse)
            self.pass_by(3)
            patched.restore()
        for name in ("topics.json", "subscriptionGroup.json", "delayOffset.json"):
            self.assertIn(f"error: {name} is not written: [Errno 28]", lines())
        self.assertEqual(self.held(), all_tables())
