"""What is looked at regularly rather than at each request: rates of puts, the disk, warnings, the reactor's turns."""

import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from zope.interface import implementer

from rmqha.ha.slave.contact import iso_of
from rmqha.kit.events import Event
from rmqha.kit.histogram import Histogram, quantile
from rmqha.kit.printing import printable
from rmqha.kit.services import PeriodicService
from rmqha.ops.places import Place
from rmqha.store.errors import StoreError
from rmqha.store.log.room import room_of
from rmqha.store.retention import Slot, SlotFolder
from rmqha.web.interfaces import ILiveNode, IShownNode

SAMPLE_SECONDS = 5.0
PACE_SECONDS = 30.0
HISTORY_SECONDS = 15 * 60.0
KEPT_WARNINGS = 20
MAX_WARNING = 300
MAX_SLOTS = 1000


class Sample(NamedTuple):
    """Sums at one time: messages stored, the classes of put times, and the end of the proved log in bytes."""

    seconds: float
    messages: int
    put_counts: Sequence[int]
    end: int


class Rates(NamedTuple):
    """What happened between two samples: messages stored a second, bytes of the log a second, and the puts' p99."""

    seconds: float
    messages: float
    bytes: float
    p99: float | None


class PutHistory:
    """The samples of the last 15 minutes."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=int(HISTORY_SECONDS / SAMPLE_SECONDS) + 1)

    def add(self, sample: Sample) -> None:
        """Add a sample. If its sums are lower than the last ones, the node has opened its store again: begin again."""
        if self._samples and (
            sample.messages < self._samples[-1].messages or sum(sample.put_counts) < sum(self._samples[-1].put_counts)
        ):
            self._samples.clear()
        self._samples.append(sample)

    def rates(self) -> list[Rates]:
        """Between each two samples, the oldest first."""
        samples = list(self._samples)
        return [_rates(old, new) for old, new in itertools.pairwise(samples) if new.seconds > old.seconds]

    def overall(self, seconds: float) -> Rates | None:
        """Over about the last ``seconds``; None with fewer than two samples."""
        last = self._samples[-1] if self._samples else None
        first = next((each for each in self._samples if last and each.seconds >= last.seconds - seconds), None)
        if first is None or last is None or last.seconds <= first.seconds:
            return None
        return _rates(first, last)


def _rates(old: Sample, new: Sample) -> Rates:
    seconds = new.seconds - old.seconds
    counts = [after - before for before, after in zip(old.put_counts, new.put_counts, strict=True)]
    return Rates(
        seconds,
        (new.messages - old.messages) / seconds,
        max(0, new.end - old.end) / seconds,
        quantile(counts, 0.99),
    )


class WorkProgress(NamedTuple):
    """How far a long work is. The rate is None before a second look, and the time left while that is not known."""

    what: str
    done_bytes: int
    total_bytes: int
    bytes_per_second: float | None
    seconds_left: float | None


class WorkPace:
    """The rate of a long work, over about the last ``PACE_SECONDS``."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Place]] = deque()
        self._start = 0

    def look(self, place: Place | None, now: float) -> None:
        """Note how far the work is. None: there is none."""
        if place is None or not self._goes_on(place):
            self._marks.clear()
        if place is None:
            return
        if not self._marks:
            self._start = _start_of(place)
        self._marks.append((now, place))
        while len(self._marks) > 1 and self._marks[0][0] < now - PACE_SECONDS:
            self._marks.popleft()

    def _goes_on(self, place: Place) -> bool:
        """Whether it is the work of the last look, which has not gone back."""
        return bool(self._marks) and self._marks[-1][1].title == place.title and self._marks[-1][1].at <= place.at

    def progress(self, place: Place | None, now: float) -> WorkProgress | None:
        """What is known of a work that is at ``place`` now."""
        if place is None:
            return None
        if not self._goes_on(place):
            start = _start_of(place)
            return WorkProgress(place.title, place.at - start, place.end - start, None, None)
        then, before = self._marks[0]
        rate = (place.at - before.at) / (now - then) if now > then else None
        left = (place.end - place.at) / rate if rate else None
        return WorkProgress(place.title, place.at - self._start, place.end - self._start, rate, left)


def _start_of(place: Place) -> int:
    return place.at if place.start is None else place.start


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk of the log, and the slots of the store. ``problem`` says why something is not known."""

    used_ratio: float | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    slots: tuple[Slot, ...] = ()
    problem: str | None = None

    @classmethod
    def of(cls, log_folder: Path, store: Path) -> "DiskFacts":
        """Look at the disk. Runs in a thread, because a disk may hang."""
        try:
            room = room_of(log_folder)
            slots = tuple(SlotFolder(store).slots()[:MAX_SLOTS])
        except (OSError, StoreError) as error:
            return cls(problem=str(error))
        return cls(room.used_ratio, room.free, room.total, slots)


class Sampler(PeriodicService):
    """Samples a node every 5 s. While its disk hangs, the facts about it stay as they were."""

    def __init__(self, node: IShownNode, clock: IReactorTime) -> None:
        super().__init__("sampling for the status page", SAMPLE_SECONDS, self._sample, clock)
        self._now = clock.seconds
        self._pace = WorkPace()
        self._node = node
        self._looking: Deferred[None] | None = None
        self.history = PutHistory()
        self.disk = DiskFacts()

    @property
    def progress(self) -> WorkProgress | None:
        """How far a long work of the node is now; None if there is none."""
        return self._pace.progress(self._node.how_far(), self._now())

    def _sample(self) -> None:
        self._pace.look(self._node.how_far(), self._now())
        sample = sample_of(self._node.live_node(), self._now())
        if sample is not None:
            self.history.add(sample)
        if self._looking is None:
            settings = self._node.settings
            look = partial(DiskFacts.of, settings.commit_log_folder, settings.store_path_root_dir)
            self._looking = self._node.run_in_table_thread(look).addCallback(self._seen)
            self._looking.addBoth(self._looked)

    def _seen(self, facts: DiskFacts) -> None:
        self.disk = facts

    def _looked(self, result: Any) -> Any:
        self._looking = None
        return result if result is None else None


class Warning(NamedTuple):
    """A logged event from level warn up. ``event`` is its name, empty for one of another library."""

    time: str
    level: str
    event: str
    text: str


@implementer(ILogObserver)
class RecentWarnings:
    """Keeps the last logged events from level warn up, and counts all of them."""

    def __init__(self) -> None:
        self.last: deque[Warning] = deque(maxlen=KEPT_WARNINGS)
        self.counts: Counter[str] = Counter(
            {level.name: 0 for level in (LogLevel.warn, LogLevel.error, LogLevel.critical)}
        )

    def __call__(self, event: LogEvent) -> None:
        level = event.get("log_level")
        if level is None or level < LogLevel.warn:
            return
        self.counts[level.name] += 1
        text = printable(formatEvent(event))
        shown = text if len(text) <= MAX_WARNING else f"{text[: MAX_WARNING - 1]}…"
        name = event.get("event")
        kind = name.value if isinstance(name, Event) else ""
        self.last.append(Warning(iso_of(event.get("log_time", 0.0)), level.name, kind, shown))

    def start(self) -> None:
        """See all events of this process from now on."""
        globalLogPublisher.addObserver(self)

    def stop(self) -> None:
        """See no more events."""
        globalLogPublisher.removeObserver(self)


class TimedPoller:
    """Stands before the reactor's poller, and times what happens between its polls: the reactor's turns."""

    def __init__(self, poller: Any, durations: Histogram) -> None:
        self._poll = poller.poll
        self._poller = poller
        self._observe = durations.observe
        self._ended: float | None = None
        for name in ("register", "modify", "unregister"):  # frequent, so without ``__getattr__``
            if hasattr(poller, name):
                setattr(self, name, getattr(poller, name))

    def poll(self, *args: Any, **options: Any) -> Any:
        """Poll, after noting how long this turn took."""
        if self._ended is not None:
            self._observe(perf_counter() - self._ended)
        found = self._poll(*args, **options)
        self._ended = perf_counter()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


def sample_of(live: ILiveNode | None, seconds: float) -> Sample | None:
    """The sums of an open node; None while its store is closed."""
    if live is None:
        return None
    messages = 0 if live.broker is None else live.broker.stats.puts.messages
    return Sample(
        seconds, messages, list(live.store.put_figures.durations.counts), live.store.commit_log.verified_offset
    )


def time_turns(reactor: Any) -> Histogram | None:
    """Time the reactor's turns from now on; None if this reactor has no poller."""
    poller = getattr(reactor, "_poller", None)
    if poller is None:
        return None
    durations = Histogram()
    reactor._poller = TimedPoller(getattr(poller, "_poller", poller), durations)
    return durations
