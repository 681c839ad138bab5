"""Metrics as text: what prometheus_client's parsers read back, hostile names, and which names have series."""

import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.histogram import BOUNDS, Histogram
from rmqha.kit.steps import at_once
from rmqha.web.catalogue import BY_NAME, OTHER
from rmqha.web.exposition import Common, CounterPlaces, TextFormat, capped, exposing, label

HOSTILE = (
    'a"b',
    "a\nb",
    "a\r\nb",
    "back\\slash",
    "\\n",
    "\x1b[2J\x1b]0;title\x07",
    "<script>alert(1)</script>",
    '"} 1\nrmqha_epoch 99\n#',
    "\x00",
    "\udc80\udcff",
    "\u202egnp.exe",
    "100%s%d",
    "{}",
    "",
)
NAMES = st.text(max_size=12) | st.sampled_from(HOSTILE)
TEXT, OPENMETRICS = TextFormat(False, False), TextFormat(True, False)


def values_in(text: bytes, is_openmetrics: bool = False) -> dict[tuple[str, ...], float]:
    """The values by the name of their sample and its own labels."""
    families = (parse_openmetrics if is_openmetrics else parse_text)(text.decode())
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key not in ("cluster", "node_id"))): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


class ExpositionTests(SynchronousTestCase):
    common = Common("C", "broker", "b")

    def test_all_kinds_in_both_formats(self) -> None:
        histogram = Histogram()
        for seconds in (0.00005, 0.3, 99.0):
            histogram.observe(seconds)
        for form in (TEXT, OPENMETRICS):
            families = [
                self.common.value("rmqha_epoch", 3),
                self.common.value("rmqha_lag_bytes", None),
                self.common.family("rmqha_puts_total", {("PUT_OK",): 7}),
                self.common.choice("rmqha_role", "SLAVE", ("SLAVE", "SYNC_MASTER")),
                self.common.histogram("rmqha_put_seconds", histogram),
                self.common.histogram("rmqha_flush_seconds", None),
            ]
            text = at_once(exposing(families, form))
            found = values_in(text, form.openmetrics)
            self.assertEqual(found["rmqha_epoch", "broker"], 3)
            self.assertEqual(found["rmqha_puts_total", "broker", "PUT_OK"], 7)
            self.assertEqual(found["rmqha_role", "broker", "SLAVE"], 1)
            self.assertEqual(found["rmqha_role", "broker", "SYNC_MASTER"], 0)
            self.assertEqual(found["rmqha_put_seconds_count", "broker"], 3)
            self.assertEqual(found["rmqha_put_seconds_bucket", str(BOUNDS[0]), "broker"], 1)
            self.assertNotIn(b"rmqha_lag_bytes", text)
            self.assertNotIn(b"rmqha_flush_seconds", text)
            self.assertEqual(text.endswith(b"# EOF\n"), form.openmetrics)

    def test_compressed_text_is_the_same(self) -> None:
        for is_openmetrics in (False, True):
            families = [self.common.value("rmqha_epoch", 3)]
            plain = at_once(exposing(families, TextFormat(is_openmetrics, False)))
            packed = at_once(exposing(families, TextFormat(is_openmetrics, True)))
            self.assertEqual(zlib.decompress(packed, 31), plain)

    @given(st.dictionaries(st.tuples(NAMES, NAMES), st.integers(0, 2**60) | st.floats(0, 1e9), max_size=8))
    def test_very_many_series_are_written_as_prometheus_client_writes_few(self, values: dict[Any, float]) -> None:
        name = "rocketmq_consumer_lag_messages"
        common = Common('cl"uster\n%s', "broker", "b\\")
        shown = {tuple(map(label, names)): value for names, value in values.items()}
        for form in (TEXT, OPENMETRICS):
            self.assertEqual(
                at_once(exposing([common.many(name, shown)], form)),
                at_once(exposing([common.family(name, shown)], form)),
            )

    @given(st.dictionaries(st.tuples(NAMES), st.integers(0, 2**40), min_size=1, max_size=8))
    def test_hostile_names_neither_add_lines_nor_control_a_terminal(self, values: dict[Any, float]) -> None:
        text = at_once(exposing([self.common.many("rocketmq_consumer_connections", capped(values))], TEXT))
        lines = text.decode().splitlines()
        self.assertTrue(all(line.isprintable() for line in lines))
        self.assertTrue(all(line.startswith(("# ", "rocketmq_consumer_connections{")) for line in lines))
        self.assertEqual(sum(values_in(text).values()), sum(values.values()))

    def test_names_that_look_the_same_are_one_series(self) -> None:
        self.assertEqual(capped({("a\x1b",): 1, ("a\\x1b",): 2}), {("a\\x1b",): 3})

    def test_the_largest_gauges_have_a_series_of_their_own(self) -> None:
        values = {(f"g{number}",): float(number) for number in range(10)}
        found = capped(values, most=3)
        self.assertEqual(found, {("g9",): 9, ("g8",): 8, ("g7",): 7, (OTHER,): sum(range(7))})

    def test_counters_have_totals_in_their_names(self) -> None:
        for metric in BY_NAME.values():
            self.assertEqual(metric.name.endswith("_total"), metric.kind == "counter", metric.name)


class CounterPlacesTests(SynchronousTestCase):
    """``self.counts`` are the counts of the names that exist; ``self.total`` never decreases."""

    def setUp(self) -> None:
        self.places = CounterPlaces(most=3)
        self.counts: dict[str, int] = {}
        self.total = 0

    def count(self, **more: int) -> None:
        for name, number in more.items():
            self.counts[name] = self.counts.get(name, 0) + number
            self.total += number

    def choose(self) -> tuple[dict[Any, int], int | None]:
        chosen, rest = self.places.choose(self.counts, lambda count: (count,), (self.total,))
        return {name: found for name, (found,) in chosen.items()}, None if rest is None else rest[0]

    def test_few_names_are_all_shown(self) -> None:
        self.count(a=1, b=2, c=3)
        self.assertEqual(self.choose(), ({"a": 1, "b": 2, "c": 3}, None))

    def test_a_name_keeps_its_place(self) -> None:
        self.count(a=1, b=2, c=3, d=4, e=5)
        self.assertEqual(self.choose(), ({"a": 1, "b": 2, "c": 3}, 9))
        self.count(e=100, a=1)
        self.assertEqual(self.choose(), ({"a": 2, "b": 2, "c": 3}, 109))

    def test_a_name_that_goes_takes_nothing_from_the_others(self) -> None:
        self.count(a=1, b=2, c=3, d=4, e=5)
        self.choose()
        del self.counts["b"], self.counts["d"]
        self.count(e=1, f=1)
        self.assertEqual(self.choose(), ({"a": 1, "c": 3}, 11))

    def test_when_all_fit_again_there_are_no_others(self) -> None:
        self.count(a=1, b=2, c=3, d=4)
        self.choose()
        del self.counts["b"]
        self.assertEqual(self.choose(), ({"a": 1, "c": 3, "d": 4}, None))

    @given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 9), st.booleans()), max_size=40))
    def test_the_others_never_decrease(self, history: list[tuple[str, int, bool]]) -> None:
        self.setUp()
        last: int | None = None
        for name, number, is_deleted in history:
            if is_deleted:
                self.counts.pop(name, None)
            else:
                self.count(**{name: number})
            _, rest = self.choose()
            if rest is not None and last is not None:
                self.assertGreaterEqual(rest, last)
            last = rest
