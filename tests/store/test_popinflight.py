"""What POP consumers of a 5.x master hold, by the notes that its log has of it."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import BrokerRole, make_settings
from rmqha.store.deletions import DeletedTopicTable, Deletion
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable
from rmqha.store.offline.promote import NotPromotable, check_popped, plan_promotion, promote
from rmqha.wire.timers import TIMER_TOPIC
from tests.fixtures import new_folder
from tests.store.queues import Writer

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
JAVAS_CHECKPOINT = (
    '{"bm":0,"bn":"bA","c":"GA","d":[0,1,2],"it":12000,"n":3,"pt":1795620227820,"q":0,"reviveTime":1795620239820,"ro":0,'
    '"so":0,"t":"TA"}'
)
JAVAS_ACK = '{"ao":0,"bn":"bA","c":"GA","pt":1795620227820,"q":0,"so":0,"t":"TA"}'
JAVAS_BATCH_ACK = '{"ao":-1,"aol":[1,2],"bn":"bA","c":"GA","pt":1795620227820,"q":0,"so":0,"t":"TA"}'
NOW_MS = 1_795_620_239_000


class PopInFlightTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = new_folder(self)
        self.settings = make_settings(
            {"storePathRootDir": str(self.root), "mappedFileSizeCommitLog": "65536", "brokerRole": "SLAVE"}
        )
        self.store = MessageStore(self.settings)
        self.addCleanup(lambda: self.store.abandon() if not self.is_closed else None)
        self.is_closed = False
        self.writer = Writer(self.store.commit_log)

    def note(self, tag: str, body: str, waits: bool = True, queue_id: int = 3) -> None:
        """A note of the master: one that waits in the timer topic, or one that has come to the revive topic."""
        place = (TIMER_TOPIC, 0) if waits else (REVIVE, queue_id)
        fields: dict[str, Any] = {"REAL_TOPIC": REVIVE, "REAL_QID": str(queue_id), "TIMER_OUT_MS": str(NOW_MS)}
        self.writer.put(*place, body.encode(), TAGS=tag, **fields)

    def held(self) -> dict[tuple[str, str], int]:
        """The messages in flight by group and topic, as a promotion foretells it."""
        self.close()
        return dict(plan_promotion(self.settings, BrokerRole.ASYNC_MASTER, None).popped.groups)

    def close(self) -> None:
        if not self.is_closed:
            self.store.derived.dispatcher.catch_up()
            self.store.close_now()
            self.is_closed = True

    def test_what_was_handed_out_and_not_acknowledged_is_held(self) -> None:
        self.note("ck", JAVAS_CHECKPOINT)
        self.note("ack", JAVAS_ACK)
        self.assertEqual(self.held(), {("GA", "TA"): 2})

    def test_nothing_is_held_once_all_are_acknowledged_in_whatever_order(self) -> None:
        self.note("bAck", JAVAS_BATCH_ACK, waits=False)
        self.note("ck", JAVAS_CHECKPOINT)
        self.note("ack", JAVAS_ACK)
        self.assertEqual(self.held(), {})
        check_popped(self.settings, BrokerRole.ASYNC_MASTER, None)

    def test_what_the_master_has_dealt_with_is_not_held(self) -> None:
        """Its offset is that of the last checkpoint that it has dealt with."""
        other = JAVAS_CHECKPOINT.replace('"GA"', '"GB"')
        self.note("ck", JAVAS_CHECKPOINT, waits=False)
        self.note("ck", other, waits=False)
        offsets = {f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {3: 0}}
        ConsumerOffsetTable(offsets).write(self.root / CONFIG_FOLDER)
        self.assertEqual(self.held(), {("GB", "TA"): 3})

    def test_a_note_of_a_topic_that_was_deleted_since_does_not_count(self) -> None:
        self.note("ck", JAVAS_CHECKPOINT)
        DeletedTopicTable((Deletion("TA", self.store.commit_log.max_offset),)).write(self.root / CONFIG_FOLDER)
        self.assertEqual(self.held(), {})

    def test_a_message_whose_time_was_changed_counts_once(self) -> None:
        """A change is a new checkpoint of one message, and an acknowledgement of the old one."""
        changed = {"t": "TA", "c": "GA", "q": 0, "so": 1, "d": [0], "n": 1, "bm": 0, "pt": 1795620228000, "it": 9}
        self.note("ck", JAVAS_CHECKPOINT)
        self.note("ck", json.dumps(changed))
        self.note("ack", JAVAS_ACK.replace('"ao":0', '"ao":1'))
        self.assertEqual(self.held(), {("GA", "TA"): 3})

    @given(st.text() | st.dictionaries(st.sampled_from(["t", "c", "q", "so", "pt", "n", "d", "bm"]), st.integers()))
    def test_notes_that_are_none_are_passed_over(self, content: object) -> None:
        self.setUp()
        self.note("ck", content if isinstance(content, str) else json.dumps(content))
        self.assertEqual(self.held(), {})
        self.doCleanups()

    def test_a_hostile_count_is_bounded(self) -> None:
        self.note("ck", JAVAS_CHECKPOINT.replace('"d":[0,1,2],', "").replace('"n":3', '"n":1000000000'))
        self.assertEqual(self.held(), {("GA", "TA"): 128})

    def test_a_promotion_wants_a_switch_of_its_own(self) -> None:
        self.note("ck", JAVAS_CHECKPOINT)
        self.close()
        with self.assertRaisesRegex(NotPromotable, r"3 messages .* \(3 of TA by GA\).*--abandon-popped") as caught:
            check_popped(self.settings, BrokerRole.ASYNC_MASTER, None)
        self.assertEqual(caught.exception.code, ExitCode.IN_USE)
        self.assertEqual(promote(self.settings, BrokerRole.ASYNC_MASTER, NOW_MS).popped.count, 3)
