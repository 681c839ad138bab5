"""The job ``stats``: what a topic's messages come to, as a table and as a drawing."""

import warnings
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread
from twisted.trial.unittest import SynchronousTestCase

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.chart import DOTS_PER_INCH, MAX_TOPICS, WIDTH_INCHES, chart_file, draw
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.stats import LATENCY_BOUNDS_MS, Stats, TopicStats, stats
from rmqha.pipeline.jobs.table import UNPRINTABLE, table_rows
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

    @pytest.mark.long
    def test_only_what_is_selected_is_counted(self) -> None:
        store = unpacked("master-crash")
        sizes = {"splitBytes": "300k", "batchBytes": "50k"}
        found = stats_of(store, topic="TOrder1", **sizes)
        self.assertEqual(found, {"TOrder1": stats_of(store, **sizes)["TOrder1"]})

    def test_an_empty_log_has_no_topics(self) -> None:
        store = new_folder(self) / "store"
        (store / "commitlog").mkdir(parents=True)
        self.assertEqual(stats_of(store), {})

    @pytest.mark.long
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
        self.assertIn("BenchTopic", texts_of(drawn({"BenchTopic": found}, ".svg")))

    def test_rates_are_those_between_the_first_and_the_last_message(self) -> None:
        one = TopicStats(messages=30, bytes=6000, first_store_ms=1000, last_store_ms=4000)
        self.assertEqual((one.as_json()["messagesPerSecond"], one.as_json()["bytesPerSecond"]), (10, 2000))

    def test_no_quantile_lies_outside_of_the_latencies(self) -> None:
        """Each message waited 240,000 ms or a little longer: the bucket begins at 221,337."""
        waited = [240_000, 240_001, 240_100]
        records = [
            replace(make_record(number, b"b"), born_timestamp=10**12, store_timestamp=10**12 + wait)
            for number, wait in enumerate(waited)
        ]
        store = new_folder(self) / "store"
        stores.make_store(store, records)
        (one,) = stats(options_of(store), LocalEngine()).values()
        self.assertEqual((one.latency_min_ms, one.latency_max_ms), (min(waited), max(waited)))
        for quantile in (0.0, 0.5, 0.9, 0.99, 1.0):
            self.assertTrue(min(waited) <= one.latency_ms(quantile) <= max(waited), quantile)

    def test_a_quantile_lies_in_the_bucket_that_reaches_it(self) -> None:
        one = TopicStats(messages=100, latencies=Counter({0: 50, 5: 40, 9: 10}), latency_max_ms=1000)
        bounds = LATENCY_BOUNDS_MS
        self.assertEqual([one.latency_ms(q) for q in (0.5, 0.9, 0.99)], [bounds[0], bounds[5], bounds[9]])


def drawn(found: Stats, suffix: str, title: str = "Messages") -> bytes:
    """The file of a chart."""
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(found, title, suffix, file)
    return file.getvalue()


def texts_of(xml: bytes) -> list[str]:
    """All texts of a drawing, or of the body of a page."""
    begin, end = (xml.index(b"<body>"), xml.index(b"</html>")) if b"<body>" in xml else (0, len(xml))
    return [text.strip() for text in ElementTree.fromstring(xml[begin:end]).itertext() if text.strip()]


def topic_stats(number: int, minutes: Counter[int] | None = None) -> TopicStats:
    """Of a topic that differs in everything from one with another number."""
    return TopicStats(
        messages=1000 + number,
        bytes=2_000_000 + number,
        latency_max_ms=30_000 + number,
        latencies=Counter({number % 100: 1000 + number}),
        minutes=minutes or Counter({29_000_000 + number: 1000 + number}),
    )


STRANGE = ("订单主题", "العربية", "$a_b^{c}$", "_hidden", "<T & Co>", "'\"", "T" * 255, "\x1b[31m\0\u202e")


class ChartTests(SynchronousTestCase):
    @pytest.mark.long
    def test_a_drawing_shows_each_topic_with_its_numbers(self) -> None:
        found = {f"Topic{number}": topic_stats(number) for number in range(MAX_TOPICS)}
        texts = texts_of(drawn(found, ".svg", "Messages of /store"))
        self.assertIn("Messages of /store", texts)
        for topic, one in found.items():
            self.assertEqual(texts.count(topic), 3, topic)
            latency = " / ".join(f"{ms:,}" for ms in (one.latency_ms(0.5), one.latency_ms(0.99), one.latency_max_ms))
            self.assertLessEqual({f"{one.messages:,}", f"{one.bytes:,}", latency}, set(texts), topic)

    @pytest.mark.long
    def test_a_page_holds_the_drawing_and_the_whole_table(self) -> None:
        found = {f"Topic{number}": topic_stats(number) for number in range(MAX_TOPICS + 5)}
        page = drawn(found, ".html")
        texts = texts_of(page)
        for row in table_rows(found):
            at = texts.index(row[0])
            self.assertEqual(tuple(texts[at : at + len(row)]), row)
        drawing = ElementTree.fromstring(page[page.index(b"<svg") : page.index(b"</svg>") + len(b"</svg>")])
        self.assertEqual(list(drawing.itertext()), list(ElementTree.fromstring(drawn(found, ".svg")).itertext()))

    @pytest.mark.long
    def test_of_many_topics_those_are_drawn_that_have_most(self) -> None:
        found = {f"Topic{number}": topic_stats(number) for number in range(MAX_TOPICS + 70)}
        texts = texts_of(drawn(found, ".svg"))
        self.assertIn(f"Messages by topic: the first {MAX_TOPICS} of {MAX_TOPICS + 70}", texts)
        at = texts.index("Topic99")
        self.assertEqual(texts[at : at + MAX_TOPICS], [f"Topic{99 - number}" for number in range(MAX_TOPICS)])

    @pytest.mark.long
    def test_a_picture_has_its_size_and_grows_with_the_topics(self) -> None:
        heights = []
        for topics in (0, 1, MAX_TOPICS, 3 * MAX_TOPICS):
            picture = imread(BytesIO(drawn({f"T{n}": topic_stats(n) for n in range(topics)}, ".png")))
            self.assertEqual(picture.shape[1], WIDTH_INCHES * DOTS_PER_INCH)
            self.assertLess(picture[..., :3].min(), 0.1, "there is black on it")
            self.assertGreater(picture[..., :3].max(), 0.9, "there is white on it")
            heights.append(picture.shape[0])
        self.assertEqual(heights, sorted(heights))
        self.assertEqual(heights[-2], heights[-1])

    @pytest.mark.long
    def test_two_bars_are_as_long_as_what_they_stand_for(self) -> None:
        """The blue of the first bar's row of dots against the second's."""
        minutes = Counter({29_000_000: 1})
        one, other = (replace(topic_stats(0, minutes), messages=messages) for messages in (3000, 1000))
        picture = imread(BytesIO(drawn({"A": one, "B": other}, ".png")))
        bars = (picture[..., 2] - picture[..., 0] > 0.5).sum(axis=1)
        lengths = {int(length) for length in bars if (bars == length).sum() > 5}  # text and edges are of few rows
        longest = max(lengths - {max(lengths)})  # the timeline's only column is wider than both
        self.assertTrue(any(abs(3 * length - longest) <= 6 for length in lengths), lengths)

    @pytest.mark.long
    def test_strange_names_are_only_names(self) -> None:
        found = {topic: topic_stats(number) for number, topic in enumerate(STRANGE)}
        for suffix in (".svg", ".html"):
            texts = texts_of(drawn(found, suffix, "Messages of <store> $x$"))
            self.assertIn("Messages of <store> $x$", texts)
            self.assertLessEqual({*STRANGE[:6], f"{UNPRINTABLE}[31m{UNPRINTABLE * 2}"}, set(texts))
        self.assertIn("T" * 255, texts, "the page's table has names whole")
        self.assertTrue(drawn(found, ".png"))

    def test_without_messages_it_is_said(self) -> None:
        self.assertIn("no messages", texts_of(drawn({}, ".svg")))
        self.assertIn("no messages", texts_of(drawn({}, ".html")))

    def test_a_long_time_has_no_more_columns_than_can_be_seen(self) -> None:
        minutes = Counter(dict.fromkeys(range(29_000_000, 29_005_000), 1))
        texts = texts_of(drawn({"T": topic_stats(0, minutes)}, ".svg"))
        self.assertIn("Messages over time (UTC), in columns of 25 min", texts)


class ChartFileTests(SynchronousTestCase):
    @pytest.mark.long
    def test_a_file_is_there_when_it_is_whole(self) -> None:
        folder = new_folder(self)
        for suffix in (".png", ".SVG", ".html"):
            path = folder / f"chart{suffix}"
            with chart_file(path) as draw_it:
                draw_it({"T": topic_stats(0)}, "title")
                self.assertFalse(path.exists())
            self.assertEqual([entry.name for entry in folder.iterdir()], [path.name])
            path.unlink()

    def test_a_failure_leaves_what_was_there(self) -> None:
        folder = new_folder(self)
        path = folder / "chart.html"
        path.write_text("of yesterday")
        with self.assertRaises(KeyboardInterrupt), chart_file(path) as draw_it:
            draw_it({}, "title")
            raise KeyboardInterrupt
        self.assertEqual([(entry.name, entry.read_text()) for entry in folder.iterdir()], [(path.name, "of yesterday")])

    def test_another_suffix_and_a_folder_that_is_missing_are_refused_at_once(self) -> None:
        folder = new_folder(self)
        for name in ("chart", "chart.pdf", "chart.png.gz"):
            with self.assertRaisesRegex(OptionError, r"named \.png, \.svg or \.html"), chart_file(folder / name):
                self.fail("nothing can be drawn there")
        with self.assertRaises(FileNotFoundError), chart_file(folder / "missing" / "chart.png"):
            self.fail("nothing can be drawn there")
        self.assertEqual(list(folder.iterdir()), [])


class TableTests(SynchronousTestCase):
    def test_the_table_has_a_row_for_each_topic(self) -> None:
        row = table_rows({"T": TopicStats(messages=1000, bytes=5, first_store_ms=0, last_store_ms=1000)})
        self.assertEqual(row, [("T", "1,000", "5", "0", "1,000.0", "5", "0", "0", "0")])

    def test_a_name_gives_a_terminal_no_orders(self) -> None:
        ((name, *_),) = table_rows({"A\x1b[31m\r": TopicStats()})
        self.assertEqual(name, f"A{UNPRINTABLE}[31m{UNPRINTABLE}")
