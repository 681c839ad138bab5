"""Counts of messages and their recent rates (spec/remoting.md 2.14, 2.18).

A message costs a few additions. Every ten seconds the sums are sampled. The count of a minute, an hour or a day is the
difference between two samples.
"""

from collections import Counter, deque
from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.turns import Turns
from rmqha.wire.sends.run import Declined

SAMPLING_SECONDS = 10.0
RATE_SECONDS = (10, 60, 600)
"""The periods for which runtime info has rates."""

PLACES_AT_ONCE = 5000
"""Counters handled per reactor turn."""
SAMPLED_AT_ONCE = 1000
"""Counters sampled per reactor turn, which takes some milliseconds."""

GroupAndTopic = tuple[str, str]


class StatsData(NamedTuple):
    """The content of one window: the sum (of messages or bytes), per second, and per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class Traffic:
    """What was counted in one place: calls, messages, and the bytes of their records."""

    __slots__ = ("bytes", "calls", "messages", "samples")

    def __init__(self) -> None:
        self.calls = self.messages = self.bytes = 0
        self.samples = [[Totals()] for _ in WINDOWS]
        """The latest samples of each window. Before the first sample the sums were equal to it."""

    def count(self, messages: int, size: int, calls: int = 1) -> None:
        """Count calls with this many messages and bytes."""
        self.calls += calls
        self.messages += messages
        self.bytes += size

    def sample(self, window: int, most: int) -> None:
        """Add a sample of the current sums to a window, which keeps ``most`` samples."""
        samples = self.samples[window]
        if samples[0].calls == self.calls:  # nothing was counted in the whole window, the usual case
            del samples[1:]
            return
        if len(samples) == most:
            del samples[0]
        samples.append(Totals(self.calls, self.messages, self.bytes))


class Totals(NamedTuple):
    """The sums at one time."""

    calls: int = 0
    messages: int = 0
    bytes: int = 0


class Window(NamedTuple):
    """Java's name of a window, the number of samplings between its samples, and the number of samples in it."""

    name: str
    every: int
    samples: int


WINDOWS = (Window("statsMinute", 1, 7), Window("statsHour", 60, 7), Window("statsDay", 360, 25))


class BrokerTotals(NamedTuple):
    """The sums of the whole broker at one time. ``found`` and ``missed`` count reads."""

    seconds: float
    put: int
    found: int
    missed: int
    transferred: int

    def since(self, before: "BrokerTotals") -> "BrokerTotals":
        """What was counted between two times. ``seconds`` is the time between them."""
        return BrokerTotals(
            self.seconds - before.seconds,
            self.put - before.put,
            self.found - before.found,
            self.missed - before.missed,
            self.transferred - before.transferred,
        )

    def per_second(self, count: int) -> float:
        """The rate of a count of these ``seconds``."""
        return count / self.seconds if self.seconds > 0 else 0.0


class Days(NamedTuple):
    """A sum at the last two midnights, or at the start of the broker if that was later."""

    yesterday_morning: int = 0
    today_morning: int = 0


class Counted(Enum):
    """What a statistic is about: a field of ``Totals``."""

    MESSAGES = "messages"
    BYTES = "bytes"

    def growth(self, before: Totals, now: Totals) -> int:
        """How much was counted between two times."""
        return int(getattr(now, self.value) - getattr(before, self.value))


class BrokerStats(PeriodicService):
    """Counts by topic, by group and topic, and for the whole broker. The windows move while the service runs."""

    def __init__(self, cluster_name: str, clock: IReactorTime, wall: IWallClock) -> None:
        super().__init__("taking statistics", SAMPLING_SECONDS, self._sample, clock)
        self._cluster_name = cluster_name
        self._clock = clock
        self._now_ms = wall.now_ms
        self.boot_timestamp = wall.now_ms()
        self.puts = Traffic()
        self.gets = Traffic()
        self.missed = 0
        """The number of reads that found nothing."""
        self.sends_taken = 0
        """How many sends were put by passes over a read."""
        self.sends_declined: Counter[Declined] = Counter()
        """How often a pass left a send to its processor, by the reason."""
        self._topic_puts: dict[str, Traffic] = {}
        self._group_gets: dict[GroupAndTopic, Traffic] = {}
        self._times = [deque[float](maxlen=window.samples) for window in WINDOWS]
        self._samplings = 0
        self._recent: deque[BrokerTotals] = deque(maxlen=int(RATE_SECONDS[-1] / SAMPLING_SECONDS) + 2)
        self._today = self._date()
        self.put_days = self.got_days = Days()
        self._turns = Turns(clock)

    @property
    def topic_puts(self) -> Mapping[str, Traffic]:
        """What was stored of each topic."""
        return self._topic_puts

    @property
    def group_gets(self) -> Mapping[GroupAndTopic, Traffic]:
        """What each group has read of a topic."""
        return self._group_gets

    def messages_put(self, topic: str, count: int, size: int, calls: int = 1) -> None:
        """Count requests that stored messages of a topic. ``size`` is in bytes."""
        traffic = self._topic_puts.get(topic)
        if traffic is None:
            traffic = self._topic_puts[topic] = Traffic()
        traffic.count(count, size, calls)
        self.puts.count(count, size, calls)

    def messages_got(self, group: str, topic: str, count: int, size: int) -> None:
        """Count a request that read messages for a group; ``count`` may be 0, ``size`` is in bytes."""
        if not count:
            self.missed += 1
            return
        traffic = self._group_gets.get((group, topic))
        if traffic is None:
            traffic = self._group_gets[group, topic] = Traffic()
        traffic.count(count, size)
        self.gets.count(count, size)

    def forgetting_topic(self, topic: str) -> Steps[None]:
        """Drop the counts of a topic, in steps."""
        self._topic_puts.pop(topic, None)
        return self._forgetting_gets(1, topic)

    def forgetting_group(self, group: str) -> Steps[None]:
        """Drop the counts of a group, in steps."""
        return self._forgetting_gets(0, group)

    def _forgetting_gets(self, part: int, name: str) -> Steps[None]:
        """Drop the counts of reads whose key has this name as its group (part 0) or its topic (part 1)."""
        keys = list(self._group_gets)
        for at in range(0, len(keys), PLACES_AT_ONCE):
            if at:
                yield
            for key in keys[at : at + PLACES_AT_ONCE]:
                if key[part] == name:
                    self._group_gets.pop(key, None)

    def _date(self) -> date:
        return date.fromtimestamp(self._now_ms() / 1000)

    def _sample(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._turns.run(self._sampling()))

    def _sampling(self) -> Steps[None]:
        """Sample all places: the sums at once, then topics and groups in steps."""
        now = self._clock.seconds()
        self._recent.append(self._totals())
        due = [(at, window.samples) for at, window in enumerate(WINDOWS) if self._samplings % window.every == 0]
        self._samplings += 1
        for at, _ in due:
            self._times[at].append(now)
        if self._date() != self._today:
            self._today = self._date()
            self.put_days = Days(self.put_days.today_morning, self.puts.messages)
            self.got_days = Days(self.got_days.today_morning, self.gets.messages)
        places = [self.puts, self.gets, *self._topic_puts.values(), *self._group_gets.values()]
        for start in range(0, len(places), SAMPLED_AT_ONCE):
            if start:
                yield
                if self.is_stopping:
                    return
            for traffic in places[start : start + SAMPLED_AT_ONCE]:
                for at, most in due:
                    traffic.sample(at, most)

    def _totals(self) -> BrokerTotals:
        return BrokerTotals(self._clock.seconds(), self.puts.messages, self.gets.calls, self.missed, self.gets.messages)

    def recent(self) -> list[BrokerTotals]:
        """The sums of the last 10, 60 and 600 s, or of a little more. Of less, if the broker started later."""
        now = self._totals()
        return [now.since(self._sample_before(now.seconds - seconds)) for seconds in RATE_SECONDS]

    def _sample_before(self, seconds: float) -> BrokerTotals:
        """The latest sample at or before that time, else the first sample."""
        for sample in reversed(self._recent):
            if sample.seconds <= seconds:
                return sample
        return self._recent[0] if self._recent else BrokerTotals(self._clock.seconds(), 0, 0, 0, 0)

    def view(self, name: str, key: str) -> dict[str, StatsData] | None:
        """The windows of a statistic, by its RocketMQ name, for a topic, ``topic@group`` or cluster; None if unknown.

        Statistics of single queues are not kept.
        """
        topic, _, group = key.partition("@")
        found: dict[str, tuple[Traffic | None, Counted]] = {
            "TOPIC_PUT_NUMS": (self._topic_puts.get(key), Counted.MESSAGES),
            "TOPIC_PUT_SIZE": (self._topic_puts.get(key), Counted.BYTES),
            "GROUP_GET_NUMS": (self._group_gets.get((group, topic)), Counted.MESSAGES),
            "GROUP_GET_SIZE": (self._group_gets.get((group, topic)), Counted.BYTES),
            "BROKER_PUT_NUMS": (self.puts if key == self._cluster_name else None, Counted.MESSAGES),
            "BROKER_GET_NUMS": (self.gets if key == self._cluster_name else None, Counted.MESSAGES),
        }
        traffic, counted = found.get(name, (None, Counted.MESSAGES))
        if traffic is None:
            return None
        return {window.name: self._stats(traffic, at, counted) for at, window in enumerate(WINDOWS)}

    def _stats(self, traffic: Traffic, window: int, counted: Counted) -> StatsData:
        first, last = traffic.samples[window][0], traffic.samples[window][-1]
        times = self._times[window]
        seconds = times[-1] - times[0] if times else 0.0
        total, calls = counted.growth(first, last), last.calls - first.calls
        return StatsData(total, total / seconds if seconds > 0 else 0.0, total / calls if calls else 0.0)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages of the topic that the group read in the last minute, per second."""
        traffic = self._group_gets.get((group, topic))
        return 0.0 if traffic is None else self._stats(traffic, 0, Counted.MESSAGES).tps
