"""The job ``stats``: what a topic's messages come to, as a table and as a page."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from twisted.trial.unittest import SynchronousTestCase

from rmqha.pipeline.jobs.chart import MOST_COLUMNS, chart, table_rows
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.stats import LATENCY_BOUNDS_MS, Stats, TopicStats, stats
from rmqha.testing.records import make_record
from tests.fixtures import expected, new_folder, unpacked
from tests.pipeline import stores
from tests.pipeline.lake import options_of


def stats_of(store: Path, **texts: object) -> Stats:
    return stats(options_of(store, **texts), LocalEngine())


class StatsTests(SynchronousTestCase):
    def test_a_java_store_counts_as_java_reads_it(self) -> None:
        messages = [line for line in expected() if "blank" not in line]
        found = stats_of(unpacked("master-crash"), splitBytes="300k", batchBytes="50k")
        self.assertEqual(list(found), sorted({line["topic"] for line in messages}))
        for topic, one in found.items():
            mine = [line for line in messages if line["topic"] == topic]
            stored = [line["storeTimestamp"] for line in mine]
            latencies = [max(0, line["storeTimestamp"] - line["bornTimestamp"]) for line in mine]
            self.assertEqual(one.messages, len(mine), topic)
            self.assertEqual(one.bytes, sum(line["totalSize"] for line in mine), topic)
            self.assertEqual((one.first_store_ms, one.last_store_ms), (min(stored), max(stored)), topic)
            self.assertEqual((one.latency_sum_ms, one.latency_max_ms), (sum(latencies), max(latencies)), topic)
            self.assertEqual(one.queues, Counter(line["queueId"] for line in mine), topic)
            self.assertEqual(one.minutes, Counter(stamp // 60_000 for stamp in stored), topic)
            middle = sorted(latencies)[(len(latencies) - 1) // 2]
            self.assertLessEqual(one.latency_ms(0.5), middle, topic)
            self.assertGreaterEqual(one.latency_ms(0.5) * 1.11 + 1, middle, topic)

    def test_only_what_is_selected_is_counted(self) -> None:
        store = unpacked("master-crash")
        found = stats_of(store, topic="TOrder1")
        self.assertEqual(found, {"TOrder1": stats_of(store)["TOrder1"]})

    def test_an_empty_log_has_no_topics(self) -> None:
        store = new_folder(self) / "store"
        (store / "commitlog").mkdir(parents=True)
        self.assertEqual(stats_of(store), {})
        self.assertIn("no messages", chart({}, "empty"))

    def test_made_up_times_do_no_harm(self) -> None:
        store = new_folder(self) / "store"
        wild = [-(2**63), 0, 2**63 - 1]
        stores.make_store(
            store,
            [replace(make_record(0, b"b"), born_timestamp=born, store_timestamp=at) for born in wild for at in wild],
        )
        found = stats_of(store)["BenchTopic"]
        self.assertEqual(found.messages, 9)
        self.assertEqual(sum(found.latencies.values()), 9)
        chart({"BenchTopic": found}, "wild")

    def test_rates_are_those_between_the_first_and_the_last_message(self) -> None:
        one = TopicStats(messages=30, bytes=6000, first_store_ms=1000, last_store_ms=4000)
        self.assertEqual((one.as_json()["messagesPerSecond"], one.as_json()["bytesPerSecond"]), (10, 2000))

    def test_a_quantile_lies_in_the_bucket_that_reaches_it(self) -> None:
        one = TopicStats(messages=100, latencies=Counter({0: 50, 5: 40, 9: 10}))
        bounds = LATENCY_BOUNDS_MS
        self.assertEqual([one.latency_ms(q) for q in (0.5, 0.9, 0.99)], [bounds[0], bounds[5], bounds[9]])


class ChartTests(SynchronousTestCase):
    def test_the_page_shows_each_topic_and_is_well_formed(self) -> None:
        found = {
            "<T & Co>": TopicStats(messages=7, bytes=70, minutes=Counter({100: 3, 101: 4})),
            "Other": TopicStats(messages=14, bytes=7, minutes=Counter({100_000: 14})),
        }
        page = chart(found, "Messages of <store>")
        body = page[page.index("<body>") : page.index("</html>")]
        root = ElementTree.fromstring(body)
        svgs = [element for element in root.iter() if element.tag.endswith("svg")]
        self.assertEqual(len(svgs), 3)
        texts = [element.text for element in svgs[0] if element.tag.endswith("text")]
        self.assertEqual(texts, ["Other", "14", "<T & Co>", "7"])
        widths = [float(element.get("width", "")) for element in svgs[0] if element.tag.endswith("rect")]
        self.assertAlmostEqual(widths[0], 2 * widths[1], delta=0.2)

    def test_a_long_time_has_no_more_columns_than_can_be_seen(self) -> None:
        page = chart({"T": TopicStats(messages=5000, minutes=Counter(dict.fromkeys(range(5000), 1)))}, "long")
        timeline = page[page.index("over time") :]
        self.assertLessEqual(timeline.count("<rect"), MOST_COLUMNS)
        self.assertIn("columns of 42 min, highest 42", timeline)

    def test_the_table_has_a_row_for_each_topic(self) -> None:
        row = table_rows({"T": TopicStats(messages=1000, bytes=5, first_store_ms=0, last_store_ms=1000)})
        self.assertEqual(row, [("T", "1,000", "5", "0", "1,000.0", "5", "0", "0", "0")])
