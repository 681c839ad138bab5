"""Metrics, status page and status.json of a node: they say what its live objects say, and hostile names do nothing."""

import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

from twisted.logger import Logger

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.ops.places import Place
from rmqha.store.nodestate import NodeState
from rmqha.store.retention import Slot
from rmqha.web.catalogue import NODE, OTHER
from rmqha.web.exposition import MAX_SERIES
from rmqha.web.page import SHOWN_GROUPS, shown
from rmqha.web.sampling import SAMPLE_SECONDS, DiskFacts
from rmqha.web.watchednode import STATES
from tests.web.nodes import NodeWebTestCase
from tests.web.test_exposition import HOSTILE, values_in

MARKUP = "<img src=x onerror=alert(1)>&\"'"


class Outline(HTMLParser):
    """Which elements a page has, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.elements}


class NodeMetricsTests(NodeWebTestCase):
    def scrape(self) -> dict[tuple[str, ...], float]:
        page = self.get("/metrics")
        self.assertEqual(page.code, 200)
        return values_in(page.body)

    def test_a_masters_metrics(self) -> None:
        node = self.begin()
        self.put(b"1", b"2", b"3")
        node.broker.stats.messages_put("T", 3, 300)
        node.broker.stats.messages_got("G", "T", 2, 200)
        node.broker.consumer_offsets.commit("G", "T", 0, 1, "client")
        found = self.scrape()
        end = self.store.commit_log.max_offset
        for key, value in {
            ("rmqha_role", "broker", "ASYNC_MASTER"): 1,
            ("rmqha_role", "broker", "SLAVE"): 0,
            ("rmqha_state", "broker", "SERVING"): 1,
            ("rmqha_state", "broker", "GAP"): 0,
            ("rmqha_log_offset_bytes", "written", "broker"): end,
            ("rmqha_puts_total", "broker", "PUT_OK"): 3,
            ("rmqha_put_seconds_count", "broker"): 1,
            ("rmqha_takes_puts", "broker"): 1,
            ("rmqha_timer_messages_waiting", "broker"): 0,
            ("rocketmq_messages_in_total", "broker", "T"): 3,
            ("rocketmq_throughput_in_total", "broker", "T"): 300,
            ("rocketmq_messages_out_total", "G", "broker", "T"): 2,
            ("rocketmq_consumer_lag_messages", "G", "broker", "T"): 2,
            ("rmqha_epoch", "broker"): 1,
        }.items():
            self.assertEqual(found.get(key), value, key)

    def test_a_slaves_metrics_and_what_is_not_known_is_missing(self) -> None:
        node = self.begin("SLAVE", "CATCHING_UP", brokerId="1")
        names = {name for name, *_ in self.scrape()}
        self.assertNotIn("rmqha_lag_bytes", names)
        self.assertNotIn("rmqha_takes_puts", names)
        self.assertNotIn("rmqha_timer_messages_waiting", names)
        node.state_facts.update(lag_bytes=7, lag_seconds=1.5, last_contact="2026-11-22T10:00:00.000Z")
        found = self.scrape()
        self.assertEqual(found["rmqha_lag_bytes", "broker"], 7)
        self.assertEqual(found["rmqha_lag_seconds", "broker"], 1.5)
        self.assertEqual(found["rmqha_master_last_seen_timestamp_seconds", "broker"], 1795341600)

    def test_a_change_shows_in_the_next_scrape(self) -> None:
        node = self.begin("SLAVE", brokerId="1")
        for state in ReplicaState:
            node.state_facts["state"] = state.name
            found = self.scrape()
            self.assertEqual(
                {key[2] for key, value in found.items() if key[0] == "rmqha_state" and value}, {state.name}
            )
        self.node, self.phase = None, "OPENING"
        found = self.scrape()
        self.assertEqual(found["rmqha_state", "broker", "OPENING"], 1)
        self.assertNotIn(("rmqha_epoch", "broker"), found)
        self.node, self.phase = node, "RUNNING"

    def test_every_name_is_in_the_catalogue_and_every_state_is_known(self) -> None:
        node = self.begin()
        node.broker.stats.messages_put("T", 3, 300)
        known = {metric.name for metric in NODE}
        names = {re.sub(r"_(bucket|sum|count)$", "", name) for name, *_ in self.scrape()}
        self.assertEqual(names - known, set())
        self.assertLessEqual({state.name for state in ReplicaState}, set(STATES))

    def test_slots(self) -> None:
        self.begin()
        self.put(b"1", b"2")
        self.sampler.disk = DiskFacts(slots=(Slot("10.0.0.2", 5),))
        found = self.scrape()
        self.assertEqual(
            found["rmqha_slot_retained_bytes", "broker", "10.0.0.2"], self.store.commit_log.verified_offset - 5
        )
        self.assertEqual(found["rmqha_slot_active", "broker", "10.0.0.2"], 0)

    def test_very_many_topics_and_groups_have_a_bounded_number_of_series(self) -> None:
        node = self.begin()
        for number in range(3 * MAX_SERIES):
            node.broker.stats.messages_put(f"T{number}", 1, 10)
            node.broker.consumer_offsets.table.offset_table[f"T{number}@G"] = dict.fromkeys(range(16), 0)
        found = self.scrape()
        names = [name for name, *_ in found]
        self.assertEqual(names.count("rocketmq_messages_in_total"), MAX_SERIES + 1)
        self.assertEqual(found["rocketmq_messages_in_total", "broker", OTHER], 2 * MAX_SERIES)
        self.assertEqual(found["rocketmq_throughput_in_total", "broker", OTHER], 20 * MAX_SERIES)
        self.assertEqual(names.count("rocketmq_consumer_lag_messages"), MAX_SERIES + 1)

    def test_hostile_names(self) -> None:
        node = self.begin()
        for name in HOSTILE:
            node.broker.stats.messages_put(name, 1, 10)
            node.broker.consumer_offsets.table.offset_table[f"{name}@{name}"] = {0: 0}
        text = self.get("/metrics").body.decode()
        self.assertTrue(all(line.isprintable() for line in text.splitlines()))
        self.assertEqual(values_in(text.encode())["rmqha_epoch", "broker"], 1)

    def test_openmetrics_and_compression(self) -> None:
        self.begin()
        page = self.get("/metrics", accept="application/openmetrics-text;version=1.0.0", takes_gzip=True)
        self.assertIn("openmetrics-text", page.content_type)
        self.assertEqual(page.headers["Content-Encoding"], "gzip")
        self.assertIn(("rmqha_epoch", "broker"), values_in(zlib.decompress(page.body, 31), is_openmetrics=True))


CLUSTER_FACTS: dict[str, Any] = {
    "state": "LEADER",
    "member": "b",
    "leader": "b",
    "epoch": 3,
    "reason": "it leads",
    "problem": None,
    "coordinator": True,
    "leaseSeconds": 8.7,
    "mode": "sync",
    "paused": False,
    "sync": ["a", "b"],
    "members": [],
    "history": [
        {
            "n": n,
            "node": node,
            "start": 0,
            "time": f"2026-11-25T18:{minute}:02.259+00:00",
            "cause": "the leader stopped",
        }
        for n, node, minute in ((2, "a", 18), (3, "b", 19))
    ],
}


class StatusPageTests(NodeWebTestCase):
    def page(self) -> Outline:
        page = self.get("/")
        self.assertEqual(page.code, 200)
        self.assertLess(len(page.body), 100 * 1024)
        return Outline(page.body)

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.get("/status.json").body)
        return found

    def test_the_page_and_the_json_say_the_same(self) -> None:
        node = self.begin()
        self.put(b"1", b"2")
        node.state_facts["warnings"] = ("something to know",)
        status, words = self.status(), self.page().words
        for text in (status["role"], status["state"], status["name"], "something to know", "rmqha_put_seconds"):
            self.assertIn(str(text), words)
        offsets = status["offsets"]
        assert isinstance(offsets, dict)
        self.assertEqual(offsets["written"], self.store.commit_log.max_offset)
        self.assertIn(f"{offsets['written']:,}", words)

    def test_a_member_of_a_cluster_shows_one_epoch_and_the_newest_leader_first(self) -> None:
        node = self.begin()
        node.state_facts["epoch"] = 41
        self.assertIn("epoch 41 rmqha_epoch", self.page().words)
        self.shown.cluster_facts = lambda _: CLUSTER_FACTS
        self.serve_pages()
        words = self.page().words
        self.assertIn("epoch 3 rmqha_failover_epoch", words)
        self.assertNotIn("epoch 41", words)
        newer, older = (words.index(f"2026-11-25 18:{minute}:02 UTC") for minute in (19, 18))
        self.assertLess(newer, older)
        self.assertNotIn("T18:19", words)

    def test_the_json_has_all_of_state_json(self) -> None:
        self.begin()
        self.assertLessEqual(
            set(NodeState.new().as_json()) - {"min", "confirmed", "flushed", "verified", "written", "peers"},
            set(self.status()),
        )

    def test_every_state_has_a_page_that_says_it(self) -> None:
        node = self.begin("SLAVE", brokerId="1")
        for state in ReplicaState:
            node.state_facts = {"state": state.name, "reason": f"why it is {state.name}", "master": "10.0.0.1:10912"}
            words = self.page().words
            self.assertIn(state.name, words)
            self.assertIn(f"why it is {state.name}", words)
        for phase in ("OPENING", "CHANGING", "STOPPING"):
            self.phase, self.node = phase, None
            self.assertIn(phase, self.page().words)
        self.node, self.phase = node, "RUNNING"

    def progress(self) -> dict[str, Any]:
        """How far a long work is, in status.json."""
        found = self.status()["progress"]
        assert isinstance(found, dict)
        return found

    def test_opening_a_store_shows_what_how_far_the_rate_and_the_time_left(self) -> None:
        node = self.begin()
        self.phase, self.node, self.place = "RECOVERING", None, Place("verifying the log", 0, 400 << 20, start=0)
        self.sampler._sample()
        self.assertEqual(
            self.status()["progress"],
            {"what": "verifying the log", "doneBytes": 0, "totalBytes": 400 << 20, "bytesPerSecond": None}
            | {"secondsLeft": None},
        )
        self.clock.advance(5.0)
        self.place = Place("verifying the log", 100 << 20, 400 << 20, start=0)
        found = self.progress()
        self.assertEqual(
            (found["doneBytes"], found["bytesPerSecond"], found["secondsLeft"]), (100 << 20, 20 << 20, 15.0)
        )
        outline = self.page()
        self.assertIn("verifying the log: 25 % (100.0 MiB of 400.0 MiB), 20.0 MiB/s, 15 s left", outline.words)
        (bar,) = (facts for name, facts in outline.elements if name == "progress")
        self.assertEqual((bar["value"], bar["max"]), (str(100 << 20), str(400 << 20)))
        scraped = values_in(self.get("/metrics").body)
        self.assertEqual(scraped["rmqha_progress_done_bytes", "broker"], 100 << 20)
        self.assertEqual(scraped["rmqha_progress_total_bytes", "broker"], 400 << 20)
        self.assertEqual(self.verdict("/liveness")[0], 200)
        self.assertEqual(self.verdict("/readiness")[0], 503)
        self.node, self.phase, self.place = node, "RUNNING", None
        self.assertNotIn(("rmqha_progress_done_bytes", "broker"), values_in(self.get("/metrics").body))
        self.assertIsNone(self.status()["progress"])
        self.assertEqual([name for name, _ in self.page().elements if name == "progress"], [])

    def test_the_rate_is_that_of_the_last_half_minute(self) -> None:
        self.begin("SLAVE", "CATCHING_UP", brokerId="1")
        for second in range(0, 300, 5):
            at = 1_000_000 + min(second, 200) * 1000 + max(0, second - 200) * 10
            self.place = Place("copying from the master", at, 2_000_000)
            self.sampler._sample()
            self.clock.advance(5.0)
        self.place = Place("copying from the master", 1_201_000, 2_000_000)
        found = self.progress()
        self.assertEqual((found["doneBytes"], found["totalBytes"]), (201_000, 1_000_000))
        self.assertEqual(found["bytesPerSecond"], 10.0)

    def test_another_work_begins_with_a_rate_of_its_own(self) -> None:
        self.begin()
        self.place = Place("verifying the log", 1000, 1000, start=0)
        self.sampler._sample()
        self.clock.advance(5.0)
        self.place = Place("building queues and index", 10, 500, start=0)
        self.assertIsNone(self.progress()["bytesPerSecond"])
        self.sampler._sample()
        self.clock.advance(1.0)
        self.place = Place("building queues and index", 20, 500, start=0)
        self.assertEqual(self.progress()["secondsLeft"], 48.0)

    def test_a_work_that_does_not_advance_has_no_time_left(self) -> None:
        self.begin()
        self.place = Place("verifying the log", 4, 1000, start=0)
        self.sampler._sample()
        self.clock.advance(5.0)
        found = self.progress()
        self.assertEqual((found["bytesPerSecond"], found["secondsLeft"]), (0.0, None))
        self.assertIn("verifying the log: 0 % (4 B of 1000 B), 0 B/s", self.page().words)

    def test_the_page_needs_no_scripts_and_nothing_from_elsewhere(self) -> None:
        self.begin()
        page = self.get("/")
        outline = Outline(page.body)
        self.assertEqual(outline.names & {"script", "link", "img", "iframe", "object", "form"}, set())
        self.assertNotIn(b"//", page.body)
        self.assertIn("default-src 'none'", page.headers["Content-Security-Policy"])
        for _, attributes in outline.elements:
            self.assertEqual([name for name in attributes if name == "style" or name.startswith("on")], [])

    def test_it_refreshes_itself_unless_it_must_not(self) -> None:
        self.begin()
        self.assertIn(b'http-equiv="refresh" content="2"', self.get("/").body)
        self.assertNotIn(b"http-equiv", self.get("/", refresh="0").body)

    def test_hostile_names_are_only_text(self) -> None:
        node = self.begin()
        names = (*HOSTILE, MARKUP, "x" * 5000)
        for number, name in enumerate(names):
            node.broker.consumer_offsets.table.offset_table[f"{name}@{name}"] = {0: -number}
        node.state_facts.update(reason=MARKUP, master=MARKUP, warnings=names)
        page = self.get("/")
        outline = Outline(page.body)
        self.assertEqual(outline.names & {"script", "img"}, set())
        self.assertIn(MARKUP, outline.words)
        self.assertLess(len(page.body), 100 * 1024)
        self.assertTrue(all(line.isprintable() for line in page.body.decode().splitlines()))
        self.assertIn("\\x1b[2J", json.dumps(self.status()["warnings"]).replace("\\\\", "\\"))

    def test_fifty_slaves_and_three_thousand_topics_fit(self) -> None:
        node = self.begin()
        assert node.serving is not None
        for number in range(3000):
            node.broker.consumer_offsets.table.offset_table[f"Topic-{number:0100}@Group-{number:0100}"] = {0: 0}
        for number in range(60):
            connection = node.serving.factory.buildProtocol(None)
            assert connection is not None
            connection.identity = connection.peer = f"slave-{number}.example.com:{number}"
        outline = self.page()
        self.assertIn("Slaves: 60 connected", outline.words)
        self.assertEqual(outline.words.count("Group-"), SHOWN_GROUPS)

    def test_rates_and_put_times_are_drawn(self) -> None:
        node = self.begin()
        self.sampler.startService()
        self.addCleanup(self.sampler.stopService)
        for count in (10, 20, 0, 5):
            node.broker.stats.messages_put("T", count, 100)
            for _ in range(count):
                self.store.put_figures.durations.observe(0.003)
            self.clock.advance(SAMPLE_SECONDS)
        history = self.status()["history"]
        assert isinstance(history, list)
        self.assertEqual([each["messagesPerSecond"] for each in history[-3:]], [4.0, 0.0, 1.0])
        self.assertIsNone(history[-2]["p99Seconds"])
        self.assertAlmostEqual(history[-1]["p99Seconds"], 0.005, places=3)
        paths = [attributes["d"] for name, attributes in self.page().elements if name == "path"]
        self.assertEqual(len(paths), 2)
        self.assertTrue(all(path is not None and path.startswith("M") for path in paths))

    def test_the_last_warnings(self) -> None:
        self.begin()
        self.warnings.start()
        self.addCleanup(self.warnings.stop)
        log = Logger(namespace="rmqha.tests")
        log.info("not this")
        for number in range(30):
            log.warn("trouble {number} {name}", number=number, name=MARKUP + "\x1b[2J")
        log.error("the disk is full", event=Event.PUT_REFUSED_DISK_FULL)
        log.warn("a stranger's", event="listening")
        outline = self.page()
        self.assertIn("the disk is full put_refused_disk_full", outline.words)
        found = self.status()["log"]
        assert isinstance(found, list)
        self.assertEqual([each["event"] for each in found[:3]], ["", "put_refused_disk_full", ""])
        self.assertIn("trouble 29", outline.words)
        self.assertNotIn("trouble 9 ", outline.words)
        self.assertNotIn("not this", outline.words)
        self.assertNotIn("img", outline.names)
        self.assertIn(("rmqha_log_events_total", "warn", "broker"), values_in(self.get("/metrics").body))

    def test_texts_are_shortened_and_printable(self) -> None:
        self.assertEqual(shown({"a\x1b": ["b\n", 1, None]}), {"a\\x1b": ["b\\n", 1, None]})


def _colours(style: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", style))


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class ColourTests(NodeWebTestCase):
    def test_text_can_be_read_in_light_and_dark(self) -> None:
        """WCAG's contrast of at least 4.5."""
        self.begin()
        light, _, dark = self.get("/").body.decode().partition("prefers-color-scheme: dark")
        for style in (light, dark):
            colours = _colours(style)
            pairs = [(text, "page") for text in ("text", "muted", "link", "good", "warn", "bad")]
            pairs += [(grade, f"{grade}-page") for grade in ("good", "warn", "bad")]
            for text, page in pairs:
                bright, deep = sorted((_luminance(colours[text]), _luminance(colours[page])), reverse=True)
                self.assertGreaterEqual((bright + 0.05) / (deep + 0.05), 4.5, (text, page))
