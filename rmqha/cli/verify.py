"""``rmqha verify``: checks a store, alone or against another one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from rmqha.cli.shared import JSON, SETTINGS, STORE, Trouble, open_store, print_json, progress_bar, say, settings_of
from rmqha.exitcodes import ExitCode
from rmqha.settings import Settings
from rmqha.store.errors import StoreError
from rmqha.store.log.stretches import BadStretch
from rmqha.store.offline.audit import Audit, audit
from rmqha.store.offline.storereader import Comparison, StoreReader, Verification

MAX_STRETCHES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Look:
    """What was found in one store. ``audit`` is None if queues and index could not be read because of ``trouble``."""

    path: Path
    proof: Verification
    audit: Audit | None = None
    trouble: str | None = None


@click.command()
@STORE
@click.option("--against", type=click.Path(path_type=Path), default=None, help="Another store, to compare with.")
@click.option("--exact", is_flag=True, help="With --against: status 1 also if one log is a prefix of the other.")
@SETTINGS
@JSON
def verify(
    store: Path, against: Path | None, exact: bool, conf: Path | None, sets: tuple[str, ...], as_json: bool
) -> None:
    """Check every record (size, magic, CRC, own offset), queues and index, and compare with another store.

    Each stretch of bad bytes is shown with its size and the remedy. Exit status 0: all is sound, or a crash has left a
    torn end, which the next start cuts. It is also 0 if one log is a prefix of the other (such as a backup of a store
    that has grown since), unless --exact is given. Exit status 1: damage or a difference was found.
    """
    comparison: Comparison | None = None
    settings = settings_of(store, conf, sets)
    with open_store(store, settings) as reader:
        looks = [_audited(reader, Look(store, _verify(reader, store)), settings)]
        if against is not None:
            with open_store(against) as other:
                looks.append(Look(against, _verify(other, against)))
                ours, theirs = (look.proof for look in looks)
                start = max(reader.log.min_offset, other.log.min_offset)
                with progress_bar("comparing", start, min(ours.end, theirs.end)) as progress:
                    comparison = reader.compare(ours.end, other, theirs.end, progress)
    if as_json:
        print_json({**_proof_as_json(looks[0].proof), **_audit_as_json(looks[0]), **_comparison_as_json(comparison)})
    else:
        for line in _lines(looks, comparison):
            say(line)
    problems = [problem for look in looks for problem in _problems(look)]
    problems += _differences(looks, comparison, exact)
    if problems:
        raise Trouble(ExitCode.CORRUPT, "; ".join(problems))


def _verify(reader: StoreReader, path: Path) -> Verification:
    with progress_bar(str(path), reader.log.min_offset, reader.limit) as progress:
        return reader.verify(progress)


def _audited(reader: StoreReader, look: Look, settings: Settings) -> Look:
    proof = look.proof
    has_lost_end = proof.torn_end is not None or bool(proof.stretches and proof.stretches[-1].start == proof.end)
    stretches = [bad for bad in proof.stretches if bad.start < proof.end]
    end = proof.end if proof.stretch_count <= len(proof.stretches) else stretches[-1].start
    try:
        with progress_bar("queues and index", reader.log.min_offset, end) as progress:
            lost_from = end if has_lost_end or end < proof.end else None
            return replace(look, audit=audit(reader, end, settings, progress, stretches, lost_from))
    except StoreError as error:
        return replace(look, trouble=str(error))


def _lines(looks: list[Look], comparison: Comparison | None) -> Iterator[str]:
    """The findings as lines for people."""
    yield f"{looks[0].proof.messages} sound messages from {looks[0].proof.min_offset} to {looks[0].proof.end}"
    for look in looks:
        yield from _stretch_lines(look)
    audited = looks[0].audit
    if audited is not None:
        yield from _audit_lines(looks[0], audited)
    if comparison is not None:
        yield from _comparison_lines(looks, comparison)


def _stretch_lines(look: Look) -> Iterator[str]:
    proof = look.proof
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
    if proof.gone_bytes and not _is_loss(look):
        yield (
            f"its node had confirmed {proof.gone_bytes} bytes more. In a copy of a running store this is normal; "
            f"otherwise the end is lost ('rmqha repair {look.path} --from REPLICA' brings it back)"
        )


def _audit_lines(look: Look, audited: Audit) -> Iterator[str]:
    if not audited.problems:
        line = f"{audited.queues} queues agree with the log up to {audited.built_until}"
        if audited.missing_keys:
            line += f"; {audited.missing_keys} keys are missing in the index ('rmqha rebuild {look.path}' adds them)"
        yield line
    if audited.lost_units:
        yield f"{audited.lost_units} units of queues point to bytes that are not records, because of the damage above"


def _comparison_lines(looks: list[Look], comparison: Comparison) -> Iterator[str]:
    if comparison.differs_at is not None or not comparison.has_common_range:
        return
    ours, theirs = (look.path for look in looks)
    end = min(comparison.end, comparison.other_end)
    more_bytes = abs(comparison.end - comparison.other_end)
    if not more_bytes:
        yield f"identical from {comparison.start} to {end}"
    else:
        short, long = (ours, theirs) if comparison.end < comparison.other_end else (theirs, ours)
        yield f"{short} is a prefix of {long}: identical from {comparison.start} to {end}, {more_bytes} bytes follow"


def _problems(look: Look) -> Iterator[str]:
    """The problems that make the status 1: one text for all bad stretches, and problems of queues and index."""
    proof = look.proof
    if proof.stretches:
        yield _damage(look, proof.stretches[0])
    elif _is_loss(look):
        yield (
            f"{look.path} ends at {proof.end} after a clean stop, but {proof.gone_bytes} more bytes were confirmed: "
            f"'rmqha repair {look.path} --from REPLICA' brings them back"
        )
    if look.trouble is not None:
        yield look.trouble
    if look.audit is not None and look.audit.problems:
        yield from look.audit.problems
        more = look.audit.problem_count - len(look.audit.problems)
        yield f"{f'and {more} more; ' if more else ''}'rmqha rebuild {look.path}' rebuilds queues and index"


def _is_loss(look: Look) -> bool:
    """Whether confirmed bytes are missing although the store was closed cleanly, unlike a copy of a running store."""
    return look.proof.gone_bytes > 0 and not (look.path / "abort").exists()


def _damage(look: Look, first: BadStretch) -> str:
    proof = look.proof
    more = f", and {proof.stretch_count - 1} more bad stretches" if proof.stretch_count > 1 else ""
    return (
        f"{look.path} at {first.start}: {first.problem} ({first.size} bytes{more}): 'rmqha repair {look.path} --from "
        f"REPLICA' brings them back, 'rmqha recover {look.path}' shows what a start would do"
    )


def _differences(looks: list[Look], comparison: Comparison | None, exact: bool) -> Iterator[str]:
    if comparison is None:
        return
    if comparison.differs_at is not None:
        yield f"the logs differ at {comparison.differs_at}, in the record at {comparison.record_at}"
    elif not comparison.has_common_range:
        first_end = min(comparison.end, comparison.other_end)
        yield f"the logs have nothing in common: one ends at {first_end}, the other starts at {comparison.start}"
    elif exact and comparison.end != comparison.other_end:
        yield (f"the logs are equal up to the end of one: they end at {comparison.end} and {comparison.other_end}")


def _audit_as_json(look: Look) -> dict[str, Any]:
    audited = look.audit
    if audited is None:
        return {"queues": None, "queuesProblem": look.trouble}
    return {
        "queues": audited.queues,
        "queuesBuiltUntil": audited.built_until,
        "queueProblems": audited.problem_count,
        "missingKeys": audited.missing_keys,
        "lostUnits": audited.lost_units,
    }


def _proof_as_json(proof: Verification) -> dict[str, Any]:
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


def _comparison_as_json(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "against": {
            "from": comparison.start,
            "otherEnd": comparison.other_end,
            "differsAt": comparison.differs_at,
            "recordAt": comparison.record_at,
            "identical": _relation(comparison) == "identical",
            "relation": _relation(comparison),
        }
    }


def _relation(comparison: Comparison) -> str:
    """identical, prefix (our log is a prefix of the other), extension (the other is a prefix of ours) or different."""
    if comparison.differs_at is not None or not comparison.has_common_range:
        return "different"
    if comparison.end == comparison.other_end:
        return "identical"
    return "prefix" if comparison.end < comparison.other_end else "extension"
