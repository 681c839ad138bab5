"""Parts of a cluster's node: promises, what it keeps of its cluster, its options, and its pages."""

import json
from dataclasses import replace
from enum import Enum
from itertools import product
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmqha.failover.facts import facts_of
from rmqha.failover.keys import EpochEntry, History
from rmqha.failover.knownfile import known_path, note_flushed, read_known, write_known
from rmqha.failover.member import Known, Promise
from rmqha.node.promising import PromiseProcessor
from rmqha.settings.settings import ReadUpTo
from rmqha.store.errors import StoreError
from rmqha.store.metadata import TopicConfig, TopicConfigTable
from rmqha.store.offline.promote import new_topics
from rmqha.wire.command import RequestCode, ResponseCode
from tests.broker.brokerstore import BrokerStoreTestCase
from tests.fixtures import new_folder
from tests.node.doubles import Promising
from tests.test_tap import OptionsTestCase
from tests.web.nodes import NodeWebTestCase

ETCD = "--failover=etcd:http://127.0.0.1:2379"
CHANGE = {"n": 3, "node": "a", "start": 7, "time": "2026-11-23T08:00:00.000+00:00", "cause": "switchover"}


class PromiseTests(BrokerStoreTestCase):
    """The answer to PROMISE_TO_FOLLOW."""

    def setUp(self) -> None:
        super().setUp()
        self.member = Promising()
        self.peer = self.client(PromiseProcessor(self.member).processors())

    def ask(self, **fields: object) -> int:
        content = {"leader": "a", "epoch": 7, "session": "5e55", "ms": 15_000, **fields}
        return int(self.peer.ask(RequestCode.PROMISE_TO_FOLLOW, **content).code)

    def test_a_member_promises_what_its_agent_says(self) -> None:
        self.assertEqual(self.ask(), ResponseCode.SUCCESS)
        self.assertEqual(self.member.asked, [Promise("a", 7, "5e55", 15.0)])
        self.member.is_given = False
        self.assertEqual(self.ask(), ResponseCode.NO_PERMISSION)

    def test_a_request_that_cannot_be_read_is_no_promise(self) -> None:
        self.assertNotEqual(self.ask(epoch="seven"), ResponseCode.SUCCESS)
        self.assertNotEqual(self.ask(ms=""), ResponseCode.SUCCESS)
        self.assertEqual(self.member.asked, [])


class Life(Enum):
    """What a node did while its machine ran, until that lost power."""

    NONE = "was not started"
    RUNS = "ran to the end"
    STOPPED = "had stopped cleanly"
    KILLED_AND_STOPPED = "was killed, started again, and had stopped cleanly"


class KnownFileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self)
        (self.store / "rmqha").mkdir()

    def test_what_was_written_is_read(self) -> None:
        self.assertEqual(read_known(self.store), Known())
        history = History((EpochEntry(1, "a", 0, "now", "x", "stamp", 3, {"other": 4}), EpochEntry(2, "b", 9, "", "")))
        newest = Known(8, "b", 1, "boot-1", "boot-2", True, history, 7, ("a", "b"), '{"ttl": 20}', "b.8")
        for known in (Known(7, "a", 123), Known(8, "b", None), newest):
            write_known(self.store, known)
            self.assertEqual(read_known(self.store), known)

    def test_what_an_earlier_version_wrote_says_nothing_of_boots(self) -> None:
        known_path(self.store).write_text('{"epoch": 7, "leader": "a", "cluster_id": 123}')
        self.assertEqual(read_known(self.store), Known(7, "a", 123))
        self.assertEqual(Known(7, "a", 123).started("boot-2"), Known(7, "a", 123, "boot-2", "boot-2"))

    def test_a_process_notes_its_flush_only_if_it_has_noted_its_start(self) -> None:
        write_known(self.store, Known(7, "a", 123, "boot-1", "boot-1"))
        note_flushed(self.store, "boot-2")
        self.assertFalse(read_known(self.store).is_flushed)
        note_flushed(self.store, "boot-1")
        self.assertEqual(read_known(self.store), Known(7, "a", 123, "boot-1", "boot-1", True))

    def test_since_when_a_log_is_whole(self) -> None:
        """Compared with a list of all that happened: of each boot, whether a process ran when it ended."""
        for lives in product((Life.NONE, Life.RUNS, Life.STOPPED, Life.KILLED_AND_STOPPED), repeat=4):
            known, whole_since, was_lost = Known(), 0, True
            for number, life in enumerate(lives):
                boot = str(number + 1)
                if life is Life.NONE:
                    continue
                known = known.started(boot)
                whole_since = number + 1 if was_lost else whole_since
                self.assertEqual(known.whole_since, str(whole_since), lives)
                if life is Life.KILLED_AND_STOPPED:
                    known = known.started(boot)
                    self.assertEqual(known.whole_since, str(whole_since), lives)
                was_lost = life is Life.RUNS
                known = replace(known, is_flushed=not was_lost)

    def test_another_content_is_an_error_with_a_remedy(self) -> None:
        for content in (b"", b"{}", b"[]", b'{"epoch": "x", "leader": "a", "cluster_id": 1}', b"\xff"):
            known_path(self.store).write_bytes(content)
            with self.assertRaisesRegex(StoreError, "cluster.json .* Move the file away"):
                read_known(self.store)


class OptionTests(OptionsTestCase):
    def test_a_member_needs_no_master_and_only_one_with_a_masters_role_founds_a_cluster(self) -> None:
        for role, is_founder in (((), False), (("--role=slave",), False), (("--role=async-master",), True)):
            given = (*role, "--name=x", ETCD, "--member=a", "--failover-priority=7", "--nofailover")
            found = self.options(f"--store={new_folder(self)}", *given).failover
            assert found is not None
            self.assertEqual((found.member, found.is_founder, found.priority), ("a", is_founder, 7))
            self.assertTrue(found.no_failover)
            self.assertEqual(str(found.address), "etcd:127.0.0.1:2379")

    def test_contradictions_are_told(self) -> None:
        for given, text in (
            (("--role=slave", "--once", ETCD, "--name=x"), "--failover and --once"),
            (("--role=slave", "--observer", ETCD, "--name=x"), "--failover and --observer"),
            (("--role=slave", "--from=last", ETCD, "--name=x"), "--failover and --from"),
            (("--role=slave", "--master=h:1", ETCD, "--name=x"), "--failover and --master"),
            (("--role=slave", ETCD), "needs --name"),
            (("--role=slave", ETCD, "--name=a b"), "no blanks"),
            (("--role=slave", ETCD, "--name=x", "--member=a/b"), "member='a/b'"),
            (("--role=slave", ETCD, "--name=x", "--failover-priority=-1"), "failover-priority=-1"),
            (("--role=slave", "--failover=zoo:h:1", "--name=x"), "a coordinator is written like"),
            (("--role=slave", ETCD, "--name=x", "--set=failoverCaFile=/nowhere"), "uses no TLS"),
            (("--role=slave", ETCD, "--name=x", "--set=failoverLoginFile=/nowhere"), "/nowhere"),
            (("--role=async-master", "--member=a"), "--member needs --failover"),
            (("--role=async-master", "--nofailover"), "--nofailover needs --failover"),
            (("--role=async-master", "--failover-priority=3"), "--failover-priority needs --failover"),
        ):
            with self.subTest(given=given):
                self.assertIn(text, self.refusal(f"--store={new_folder(self)}", *given))

    def test_a_setting_without_effect_is_told(self) -> None:
        store = f"--store={new_folder(self)}"
        found = self.options(store, "--role=slave", ETCD, "--name=x", "--set=readUpTo=verified")
        self.assertTrue(any("readUpTo has no effect" in warning for warning in found.setting_warnings))
        self.assertIs(found.settings.read_up_to, ReadUpTo.CONFIRMED)
        self.assertEqual(self.options(store, "--role=slave", ETCD, "--name=x").setting_warnings, [])


class PageTests(NodeWebTestCase):
    """What a member's pages say about its cluster."""

    def cluster(self, **facts: Any) -> None:
        found = {**facts_of(None, 0), "member": "b", "sync": ["a", "b"], "leader": "a", "coordinator": True, **facts}
        self.shown.cluster_facts = lambda changes: {**found, "history": [CHANGE] * min(changes, 9)}
        self.serve_pages()

    def test_cluster_and_history_are_json_and_say_whether_somebody_leads(self) -> None:
        self.begin("SLAVE", "IN_SYNC", brokerId="1")
        self.assertNotIn("/cluster", self.server.pages._handlers)
        self.cluster()
        page = self.get("/cluster")
        self.assertEqual((page.code, json.loads(page.body)["leader"]), (200, "a"))
        self.assertEqual(json.loads(self.get("/history").body), [CHANGE] * 9)
        self.cluster(leader=None)
        self.assertEqual([self.get(path).code for path in ("/cluster", "/history")], [503, 503])
        self.cluster(coordinator=False)
        self.assertEqual(self.get("/cluster").code, 503)

    def test_sync_is_yes_for_a_member_that_may_lead_next(self) -> None:
        self.begin("SLAVE", "CATCHING_UP", brokerId="1")
        self.cluster()
        self.assertEqual(self.get("/sync").code, 200)
        self.cluster(sync=["a"])
        self.assertEqual(self.get("/sync").code, 503)

    def test_the_status_page_and_the_metrics_show_the_cluster(self) -> None:
        self.begin("SLAVE", "IN_SYNC", brokerId="1")
        member = {"name": "a", "leads": True, "state": "LEADER", "end": 5, "remoting": "h:1", "noFailover": False}
        self.cluster(members=[member], epoch=4, problem="no endpoint answers", leaseSeconds=None)
        page = self.get("/").body.decode()
        self.assertIn("a leads", page)
        self.assertIn("epoch 4 <code>rmqha_failover_epoch", page)
        self.assertIn("a (leader)", page)
        metrics = self.get("/metrics").body.decode()
        for line in ("rmqha_failover_epoch{", "rmqha_failover_leader{", "rmqha_coordinator_up{"):
            self.assertIn(line, metrics)
        self.assertNotIn("rmqha_failover_lease_seconds{", metrics)


class NewTopicTests(BrokerStoreTestCase):
    """A promoted node has the topics that its master made after it copied the table."""

    def test_a_topic_of_new_messages_gets_a_row_and_one_of_old_messages_does_not(self) -> None:
        self.open("ASYNC_MASTER")
        self.put(b"1", topic="Old", queue_id=1)
        self.clock.advance(600)
        for topic, queue_id in (("New", 2), ("New", 0), ("Known", 1), ("rmq_sys_x", 0), ("SCHEDULE_TOPIC_XXXX", 3)):
            self.put(b"1", topic=topic, queue_id=queue_id)
        known = TopicConfigTable(topic_config_table={"Known": TopicConfig("Known")})
        self.assertEqual(new_topics(self.store, known, None), {"New": TopicConfig("New", 3, 3)})
