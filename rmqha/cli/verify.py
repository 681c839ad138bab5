"""``rmqha verify``: checks a store, alone or against another one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rmqha.cli.shared import JSON, STORE, print_json, progress_bar
from rmqha.cli.stores import open_store
from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import Settings
from rmqha.store.offline.audit import QueueFindings, audit_proved, audited_end
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
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
    """What was found in one store."""

    path: Path
    proof: Verification
    queues: QueueFindings = QueueFindings()


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

    A node may run on either store. Of a running node's store everything is judged up to one place of the log: what
    comes later, and what the node deletes meanwhile, does not count.

    A message whose QUEUEOFFSET is impossible, and a unit of a queue that leads to another message or to none, are
    damage too. No checksum covers these fields.
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
                with progress_bar("comparing", start, min(ours.end, theirs.end)) as bar:
                    comparison = reader.compare(ours.end, other, theirs.end, bar.reached)
    if as_json:
        against_json = {} if comparison is None else {"against": comparison_as_json(comparison)}
        print_json({**verification_as_json(looks[0].proof), **looks[0].queues.as_json(), **against_json})
    else:
        for line in _lines(looks, comparison):
            say(line)
    problems = [problem for look in looks for problem in _problems(look)]
    if comparison is not None and (differs := difference(comparison, exact)) is not None:
        problems.append(differs)
    if problems:
        raise Trouble(ExitCode.CORRUPT, "; ".join(problems))


def _verify(reader: StoreReader, path: Path) -> Verification:
    with progress_bar(str(path), reader.log.min_offset, reader.limit) as bar:
        return reader.verify(bar.reached)


def _audited(reader: StoreReader, look: Look, settings: Settings) -> Look:
    with progress_bar("queues and index", reader.log.min_offset, audited_end(look.proof)) as bar:
        return replace(look, queues=audit_proved(reader.root, reader.log, look.proof, settings, bar.reached))


def _lines(looks: list[Look], comparison: Comparison | None) -> Iterator[str]:
    """The findings as lines for people."""
    yield sound_line(looks[0].proof)
    for look in looks:
        yield from stretch_lines(look.path, look.proof)
    yield from looks[0].queues.lines(looks[0].path)
    if comparison is not None:
        line = comparison_line(looks[0].path, looks[1].path, comparison)
        if line is not None:
            yield line


def _problems(look: Look) -> Iterator[str]:
    """The problems that make the status 1: one text for all bad stretches, and problems of queues and index."""
    yield from log_problems(look.path, look.proof)
    yield from look.queues.problems(look.path)
