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
from rmqha.store.offline.audit import Audit, audit
from rmqha.store.offline.findings import (
    Comparison,
    Verification,
    comparison_as_json,
    comparison_line,
    difference,
    log_problems,
    sound_line,
    stretch_lines,
    verification_as_json,
)
from rmqha.store.offline.storereader import StoreReader


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
        against_json = {} if comparison is None else {"against": comparison_as_json(comparison)}
        print_json({**verification_as_json(looks[0].proof), **_audit_as_json(looks[0]), **against_json})
    else:
        for line in _lines(looks, comparison):
            say(line)
    problems = [problem for look in looks for problem in _problems(look)]
    if comparison is not None and (differs := difference(comparison, exact)) is not None:
        problems.append(differs)
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
    yield sound_line(looks[0].proof)
    for look in looks:
        yield from stretch_lines(look.path, look.proof)
    audited = looks[0].audit
    if audited is not None:
        yield from _audit_lines(looks[0], audited)
    if comparison is not None:
        line = comparison_line(looks[0].path, looks[1].path, comparison)
        if line is not None:
            yield line


def _audit_lines(look: Look, audited: Audit) -> Iterator[str]:
    if not audited.problems:
        line = f"{audited.queues} queues agree with the log up to {audited.built_until}"
        if audited.missing_keys:
            line += f"; {audited.missing_keys} keys are missing in the index ('rmqha rebuild {look.path}' adds them)"
        yield line
    if audited.lost_units:
        yield f"{audited.lost_units} units of queues point to bytes that are not records, because of the damage above"


def _problems(look: Look) -> Iterator[str]:
    """The problems that make the status 1: one text for all bad stretches, and problems of queues and index."""
    yield from log_problems(look.path, look.proof)
    if look.trouble is not None:
        yield look.trouble
    if look.audit is not None and look.audit.problems:
        yield from look.audit.problems
        more = look.audit.problem_count - len(look.audit.problems)
        yield f"{f'and {more} more; ' if more else ''}'rmqha rebuild {look.path}' rebuilds queues and index"


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
