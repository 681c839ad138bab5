"""What checking a log can find, and the words for it. ``rmqha verify`` and ``rmqha job`` share this module."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqha.store.log.stretches import NOT_WHOLE, BadStretch, Survey

MAX_STRETCHES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of proving a log: offsets in the log, and the number of messages.

    ``end`` follows the last sound message. ``stretches`` are the bad ones. If there are very many, only the first are
    listed; ``stretch_count`` and ``bad_bytes`` count all. ``problem`` says what is wrong at the first one; it is None
    if there is none. ``torn_end`` is what the next start will cut: bytes that an unclean stop left. ``gone_bytes`` were
    confirmed by the store's node, but are missing. In a copy that was made while the node ran this is normal. ``live``
    is true if another process has the store open. What that process has not finished is not a problem.
    """

    min_offset: int
    end: int
    messages: int
    problem: str | None
    live: bool
    stretches: tuple[BadStretch, ...] = ()
    stretch_count: int = 0
    bad_bytes: int = 0
    torn_end: BadStretch | None = None
    gone_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides how the bytes after a log's last sound message are judged.

    ``written_end`` follows the last byte that may be judged and is not zero. The node has ``confirmed`` the log up to
    that offset; 0 if no node of ours says so.
    """

    live: bool
    stopped_uncleanly: bool
    confirmed: int
    written_end: int
    has_segments: bool = True


def judge(looked: Survey, known: Circumstances) -> Verification:
    """The verdict on a log, from what a survey of it found."""
    stretches, count, bad_bytes = list(looked.stretches), looked.stretch_count, looked.bad_bytes
    torn_end = rest = None
    if known.written_end > looked.end:
        rest = BadStretch(looked.end, known.written_end, looked.problem or NOT_WHOLE, 0, 0, looked.anchor)
        if known.stopped_uncleanly and not known.live and rest.start >= known.confirmed:
            torn_end = rest
        else:
            stretches, count, bad_bytes = [*stretches, rest], count + 1, bad_bytes + rest.size
    is_judged_whole = rest is None and not known.live and known.has_segments
    return Verification(
        looked.start,
        looked.end,
        looked.messages,
        stretches[0].problem if stretches else None,
        known.live,
        tuple(stretches),
        count,
        bad_bytes,
        torn_end,
        max(0, known.confirmed - looked.end) if is_judged_whole else 0,
    )


def sound_line(proof: Verification) -> str:
    """How many messages are sound."""
    return f"{proof.messages} sound messages from {proof.min_offset} to {proof.end}"


def stretch_lines(path: Path, proof: Verification) -> Iterator[str]:
    """What was found in the log of the store ``path``, a line each."""
    for bad in proof.stretches[:MAX_STRETCHES_SHOWN]:
        yield (
            f"damaged at {bad.start}: {bad.size} bytes up to {bad.end} are not records ({bad.problem}); "
            f"{bad.messages_after} sound messages follow"
        )
    if proof.stretch_count > MAX_STRETCHES_SHOWN:
        yield f"… and {proof.stretch_count - MAX_STRETCHES_SHOWN} more such stretches, {proof.bad_bytes} bytes in all"
    if proof.torn_end is not None:
        torn = proof.torn_end
        yield (
            f"a torn end at {torn.start}: {torn.size} bytes ({torn.problem}); the next start cuts it, "
            "and keeps the bytes"
        )
    if proof.gone_bytes and not is_loss(path, proof):
        yield (
            f"its node had confirmed {proof.gone_bytes} bytes more. In a copy of a running store this is normal; "
            f"otherwise the end is lost ('rmqha repair {path} --from REPLICA' brings it back)"
        )


def log_problems(path: Path, proof: Verification) -> Iterator[str]:
    """What makes the exit status 1: one phrase for all bad stretches, or for a lost end."""
    if proof.stretches:
        first = proof.stretches[0]
        more = f", and {proof.stretch_count - 1} more bad stretches" if proof.stretch_count > 1 else ""
        yield (
            f"{path} at {first.start}: {first.problem} ({first.size} bytes{more}): 'rmqha repair {path} --from "
            f"REPLICA' brings them back, 'rmqha recover {path}' shows what a start would do"
        )
    elif is_loss(path, proof):
        yield (
            f"{path} ends at {proof.end} after a clean stop, but {proof.gone_bytes} more bytes were confirmed: "
            f"'rmqha repair {path} --from REPLICA' brings them back"
        )


def is_loss(path: Path, proof: Verification) -> bool:
    """Whether confirmed bytes are missing from a cleanly closed store. A copy of a running store does not count."""
    return proof.gone_bytes > 0 and not (path / "abort").exists()


def verification_as_json(proof: Verification) -> dict[str, Any]:
    """The findings of ``rmqha verify --json`` and ``rmqha job verify --json`` in the log."""
    return {
        "min": proof.min_offset,
        "end": proof.end,
        "messages": proof.messages,
        "problem": proof.problem,
        "live": proof.live,
        "badStretches": [_stretch_as_json(bad) for bad in proof.stretches[:MAX_STRETCHES_SHOWN]],
        "badStretchCount": proof.stretch_count,
        "badBytes": proof.bad_bytes,
        "tornEnd": None if proof.torn_end is None else _stretch_as_json(proof.torn_end),
        "goneBytes": proof.gone_bytes,
    }


def _stretch_as_json(bad: BadStretch) -> dict[str, Any]:
    return {
        "start": bad.start,
        "end": bad.end,
        "bytes": bad.size,
        "problem": bad.problem,
        "messagesAfter": bad.messages_after,
    }


@dataclass(frozen=True, slots=True)
class Difference:
    """How two logs differ in a range: the first offset that differs, None if there is none, and the number of bytes.

    A byte that only one of them has is different. ``fills`` counts the segments whose ends differ only in bytes after
    the header of the blank: these belong to no record, and are not counted otherwise (spec/store.md 3.7).
    """

    differs_at: int | None = None
    different_bytes: int = 0
    fills: int = 0

    def then(self, later: "Difference") -> "Difference":
        """The difference in this range and in a later one."""
        first = self.differs_at if self.differs_at is not None else later.differs_at
        return Difference(first, self.different_bytes + later.different_bytes, self.fills + later.fills)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two logs differ in the range that both hold. ``end`` and ``other_end`` are their ends.

    ``differs_at`` is the first offset that differs, and ``record_at`` is where our record with that byte starts.
    ``different_bytes`` counts all bytes that differ. ``segment_sizes`` are those of both logs, if they are not equal.
    ``different_fills`` counts the segments that have other bytes after their last record.
    """

    start: int
    end: int
    other_end: int
    differs_at: int | None
    record_at: int | None = None
    different_bytes: int = 0
    segment_sizes: tuple[int, int] | None = None
    different_fills: int = 0

    @property
    def has_common_range(self) -> bool:
        """Whether both logs hold any offset. If one of two logs is empty, nothing can differ."""
        return self.start <= min(self.end, self.other_end)

    @property
    def relation(self) -> str:
        """identical, prefix (ours is the start of the other), extension (the other is the start of ours) or
        different.
        """
        if self.differs_at is not None or not self.has_common_range:
            return "different"
        if self.end == self.other_end:
            return "identical"
        return "prefix" if self.end < self.other_end else "extension"


def comparison_line(ours: Path, theirs: Path, found: Comparison) -> str | None:
    """What the two logs have in common; None if they differ."""
    if found.relation == "different":
        return None
    end = min(found.end, found.other_end)
    fills = found.different_fills
    but = f"; every record is equal, but {fills} segments have other bytes after their last record" if fills else ""
    if found.relation == "identical":
        return f"identical from {found.start} to {end}{but}"
    short, long = (ours, theirs) if found.relation == "prefix" else (theirs, ours)
    more_bytes = abs(found.end - found.other_end)
    return f"{short} is a prefix of {long}: identical from {found.start} to {end}, {more_bytes} bytes follow{but}"


def difference(found: Comparison, exact: bool) -> str | None:
    """What makes the exit status 1: where the logs differ, or, if they must be ``exact``, that one is longer."""
    if found.differs_at is not None:
        sizes = found.segment_sizes
        count = f"{found.different_bytes} byte{'s' if found.different_bytes != 1 else ''}"
        why = f"; their segments have {sizes[0]} and {sizes[1]} bytes" if sizes is not None else ""
        where = "" if found.record_at is None else f", in the record at {found.record_at}"
        return f"the logs differ at {found.differs_at}{where} ({count} in all{why})"
    if not found.has_common_range:
        first_end = min(found.end, found.other_end)
        return f"the logs have nothing in common: one ends at {first_end}, the other starts at {found.start}"
    if exact and found.end != found.other_end:
        return f"the logs are equal up to the end of one: they end at {found.end} and {found.other_end}"
    return None


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    """The comparison of ``rmqha verify --against --json`` and ``rmqha job compare --json``."""
    return {
        "from": found.start,
        "otherEnd": found.other_end,
        "differsAt": found.differs_at,
        "recordAt": found.record_at,
        "differentBytes": found.different_bytes,
        "differentFills": found.different_fills,
        "identical": found.relation == "identical",
        "relation": found.relation,
    }
