"""A master tells its slaves when tables have changed (spec/remoting.md 2.25)."""

from twisted.internet.defer import execute

from rmqha.broker.requests import tablechanges
from rmqha.broker.requests.tablechanges import MAX_HOLD_MS, TableChangesProcessor
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.store.deletions import DeletedTopicTable
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.slavefields import AWAITED
from tests.broker.brokerstore import BrokerStoreTestCase, SetWallClock, deleted_topics


class TableChangesTests(BrokerStoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        offsets = ConsumerOffsetManager(self.folder, self.clock, 5_000, execute)
        self.offsets, self.deleted = offsets, deleted_topics(self, self.topics, offsets)
        tables = CopiedTables(self.topics, groups, offsets, self.deleted)
        self.processor = TableChangesProcessor(tables, self.store, self.clock)
        self.peer = self.client(self.processor.processors())

    def ask(self, known: RemotingCommand | None = None, hold_ms: int = 1000) -> list[RemotingCommand]:
        """Ask with the versions of an earlier answer; what is answered in this turn."""
        fields = {} if known is None else {name: known.ext_fields[name] for name in AWAITED}
        self.peer.send(RequestCode.AWAIT_TABLE_CHANGES, {**fields, "holdMs": hold_ms})
        self.clock.advance(0)
        return self.peer.answers()

    def test_who_knows_nothing_is_answered_at_once_with_the_deletions(self) -> None:
        self.topics.update(TopicConfig("T"))
        self.put(b"1")
        self.successResultOf(self.deleted.delete("T"))
        self.patch(CommitLog, "min_offset", 7)
        (answer,) = self.ask()
        self.assertEqual((answer.code, answer.ext_fields["minOffset"]), (ResponseCode.SUCCESS, "7"))
        self.assertEqual(DeletedTopicTable.from_json(loads_lenient(answer.body)), self.deleted.table)

    def test_a_question_is_held_until_something_changes(self) -> None:
        (before,) = self.ask()
        self.assertEqual(self.ask(before), [])
        self.offsets.commit("G", "T", 0, 1, "test")
        self.clock.advance(0.5)
        self.assertEqual(self.peer.answers(), [], "offsets change all the time")
        self.topics.update(TopicConfig("T"))
        self.topics.update(TopicConfig("U"))
        self.clock.advance(0)
        (after,) = self.peer.answers()
        changed = {name for name in AWAITED if after.ext_fields[name] != before.ext_fields[name]}
        self.assertEqual((changed, after.body), ({"topics"}, b""))
        self.assertNotEqual(after.ext_fields["offsets"], before.ext_fields["offsets"])

    def test_a_question_is_not_held_for_longer_than_was_asked_for_or_five_seconds(self) -> None:
        (before,) = self.ask()
        self.assertEqual(self.ask(before, 300), [])
        self.clock.advance(0.3)
        self.assertEqual(len(self.peer.answers()), 1)
        self.assertEqual(self.ask(before, 10**9), [])
        self.clock.advance(MAX_HOLD_MS / 1000)
        self.assertEqual(len(self.peer.answers()), 1)
        self.assertEqual(len(self.ask(before, 0)), 1)

    def test_not_too_many_are_held(self) -> None:
        self.patch(tablechanges, "MAX_HELD_QUESTIONS", 3)
        (before,) = self.ask()
        for _ in range(3):
            self.assertEqual(self.ask(before), [])
        self.assertEqual(len(self.ask(before)), 1)
        self.clock.advance(1)
        self.assertEqual(len(self.peer.answers()), 3)

    def test_another_run_of_the_broker_has_other_versions(self) -> None:
        """Its numbers of changes begin anew, and may be the same."""
        (before,) = self.ask()
        self.setUp()
        self.assertEqual(len(self.ask(before)), 1)
