"""Metrics as text for Prometheus, one family at a step, so that no reactor turn gets long."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from isal import isal_zlib
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString as _number

from rmqha.kit.histogram import BOUNDS, Histogram
from rmqha.kit.printing import printable
from rmqha.kit.steps import Steps
from rmqha.web.catalogue import BY_NAME, COMMON_LABELS, OTHER

MAX_SERIES = 1000
"""Topics, pairs of group and topic, slaves: this many have a series of their own. The others share one."""
GZIP_WBITS = 16 + zlib.MAX_WBITS
OPENMETRICS_END = b"# EOF\n"


class TextFormat(NamedTuple):
    """How the text is written."""

    openmetrics: bool
    gzip: bool

    @property
    def content_type(self) -> str:
        return openmetrics.CONTENT_TYPE_LATEST if self.openmetrics else CONTENT_TYPE_LATEST


class Common:
    """Makes families with the labels that all series of this process have."""

    def __init__(self, cluster: str, node_type: str, node_id: str) -> None:
        self._values = tuple(map(label, (cluster, node_type, node_id)))

    def family(self, name: str, values: Mapping[Any, float]) -> Family:
        """A gauge or a counter with these values by its own labels. Without values it is left out of the text."""
        metric = BY_NAME[name]
        labels = (*COMMON_LABELS, *metric.labels)
        family: GaugeMetricFamily | CounterMetricFamily
        if metric.kind == "counter":
            family = CounterMetricFamily(name, metric.help, labels=labels)
        else:
            family = GaugeMetricFamily(name, metric.help, labels=labels)
        for own, value in values.items():
            family.add_metric((*self._values, *own), value)
        return family

    def many(self, name: str, values: Mapping[Any, float]) -> "ManySeries":
        """The same for very many values. The labels must be escaped by ``label``."""
        return ManySeries(self.family(name, {}), self._line_of(name), _order_of(name), values)

    def _line_of(self, name: str) -> str:
        """A line of the text, with a place for each own label and for the value."""
        known = dict(zip(COMMON_LABELS, map(_quoted, self._values), strict=True))
        labels = sorted((*COMMON_LABELS, *BY_NAME[name].labels))
        pairs = (f'{each}="{known[each].replace("%", "%%") if each in known else "%s"}"' for each in labels)
        return f"{name}{{{','.join(pairs)}}} %s\n"

    def value(self, name: str, value: float | None) -> Family:
        """A gauge without labels of its own; None if its value is not known."""
        return self.family(name, {} if value is None else {(): value})

    def choice(self, name: str, chosen: str, choices: Iterable[str]) -> Family:
        """A gauge that is 1 for one of the choices."""
        return self.family(name, {(each,): float(each == chosen) for each in {**dict.fromkeys(choices), chosen: None}})

    def histogram(self, name: str, histogram: Histogram | None) -> Family:
        """A histogram; None leaves it out."""
        family = HistogramMetricFamily(name, BY_NAME[name].help, labels=COMMON_LABELS)
        if histogram is not None:
            total, buckets = 0, list[tuple[str, float]]()
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(self._values, buckets, histogram.sum)
        return family


class ManySeries(NamedTuple):
    """A family with very many series, which prometheus_client alone would write far too slowly."""

    head: Family
    line: str
    order: Sequence[int]
    """Which own label has the first place in ``line``, which the second, and so on."""
    values: Mapping[Any, float]

    def lines(self) -> bytes:
        """The lines after the head, as prometheus_client writes them. A test compares both."""
        line, order = self.line, self.order
        if len(order) == 1:
            texts = [line % (_quoted(own[0]), _number(value)) for own, value in self.values.items()]
        else:
            texts = [line % (*[_quoted(own[at]) for at in order], _number(value)) for own, value in self.values.items()]
        return "".join(texts).encode()


def _order_of(name: str) -> Sequence[int]:
    labels = BY_NAME[name].labels
    return [labels.index(each) for each in sorted(labels)]


def _quoted(text: str) -> str:
    """The value of a label between its quotes. It has no line ends."""
    return text.replace("\\", r"\\").replace('"', r"\"") if "\\" in text or '"' in text else text


def label(text: str) -> str:
    """A name as the value of a label. prometheus_client escapes quotes, line ends and backslashes.

    Other unprintable characters, and bytes that are not UTF-8, are escaped here: people look at metrics in terminals.
    """
    return text if text.isprintable() else printable(text)


class CounterPlaces:
    """Chooses the names whose counters have series of their own, and counts all others together.

    A name keeps its place until it is gone. ``other`` never decreases: Prometheus would take that for a restart, and
    count everything again. So it is computed from the sum of all, and what belongs to names that are gone stays out.
    """

    def __init__(self, most: int = MAX_SERIES) -> None:
        self._most = most
        self._places: dict[Any, tuple[int, ...]] = {}
        self._gone: tuple[int, ...] = ()
        self._is_crowded = False

    def choose(
        self, names: Mapping[Any, Any], counts: Any, total: tuple[int, ...]
    ) -> tuple[dict[Any, tuple[int, ...]], tuple[int, ...] | None]:
        """The counts of the chosen names, and of all others together; None if there are none.

        ``counts(entry)`` gives the counts of an entry of ``names``, and ``total`` the counts of all there ever were.
        """
        gone = self._gone or (0,) * len(total)
        for name in [name for name in self._places if name not in names]:
            gone = _added(gone, self._places.pop(name))
        if len(names) <= self._most:
            self._is_crowded = False
        self._gone = gone
        if not self._is_crowded:
            for name in names:
                if len(self._places) >= self._most:
                    self._is_crowded = len(names) > self._most
                    break
                self._places.setdefault(name, (0,) * len(total))
        chosen = self._places = {name: counts(names[name]) for name in self._places}
        if not self._is_crowded:
            return chosen, None
        rest = total
        for found in (gone, *chosen.values()):
            rest = tuple(left - part for left, part in zip(rest, found, strict=True))
        return chosen, rest


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(left + right for left, right in zip(one, other, strict=True))


def capped(values: Mapping[Any, float], most: int = MAX_SERIES) -> dict[Any, float]:
    """The largest values, with their labels escaped. All others are one value, their sum, labelled ``other``.

    Names that look the same after escaping are added up: two equal series would spoil the whole answer.
    """
    chosen: dict[Any, float] = {}
    ordered = sorted(values, key=values.__getitem__, reverse=True) if len(values) > most else values
    for number, names in enumerate(ordered):
        key = tuple(map(label, names)) if number < most else (OTHER,) * len(names)
        chosen[key] = chosen.get(key, 0) + values[names]
    return chosen


class _One(Collector):
    """A registry of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


class MetricsText(ABC):
    """Makes the text of all metrics of a process."""

    @abstractmethod
    def text(self, form: TextFormat) -> Steps[bytes]:
        """The answer to a scrape, in steps."""


def exposing(families: Iterable[Family | ManySeries], form: TextFormat) -> Steps[bytes]:
    """The text of the families, a family at a step. ``families`` may take time for each of its items."""
    compress = isal_zlib.compressobj(1, wbits=GZIP_WBITS) if form.gzip else None
    pieces: list[bytes] = []
    for family in families:
        piece = _text_of(family, form.openmetrics)
        pieces.append(piece if compress is None else compress.compress(piece))
        yield
    end = OPENMETRICS_END if form.openmetrics else b""
    pieces += [end] if compress is None else [compress.compress(end), compress.flush()]
    return b"".join(pieces)


def _text_of(family: Family | ManySeries, is_openmetrics: bool) -> bytes:
    if isinstance(family, ManySeries):
        return _text_of_few(family.head, is_openmetrics) + family.lines() if family.values else b""
    return _text_of_few(family, is_openmetrics) if family.samples else b""


def _text_of_few(family: Family, is_openmetrics: bool) -> bytes:
    if is_openmetrics:
        text: bytes = openmetrics.generate_latest(_One(family))
        return text.removesuffix(OPENMETRICS_END)
    return generate_latest(_One(family))
