"""``rmqha verify``: a store proved, by itself and against another."""

from pathlib import Path
from typing import Any

import click

from rmqha.cli.shared import JSON, SETTINGS, STORE, Trouble, open_store, print_json, progress_bar, settings_of
from rmqha.exitcodes import ExitCode
from rmqha.store.audit import Audit, audit
from rmqha.store.reader import Comparison, StoreReader, Verification


@click.command()
@STORE
@click.option("--against", type=click.Path(path_type=Path), default=None, help="Another store, to compare with.")
@SETTINGS
@JSON
def verify(store: Path, against: Path | None, conf: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Prove every record (size, magic, CRC, own offset), queues and index by the log, and one store against another."""
    settings = settings_of(store, conf, sets)
    with open_store(store, settings) as reader:
        proof = _verify(reader, str(store))
        with progress_bar("queues and index", reader.log.min_offset, proof.end) as progress:
            audited = audit(reader, proof.end, settings, progress)
        comparison: Comparison | None = None
        if against is not None:
            with open_store(against) as other:
                other_proof = _verify(other, str(against))
                start = max(reader.log.min_offset, other.log.min_offset)
                with progress_bar("comparing", start, min(proof.end, other_proof.end)) as progress:
                    comparison = reader.compare(proof.end, other, other_proof.end, progress)
    difference = _difference(comparison)
    problems = [_told_by(store, proof), *audited.problems, difference]
    if against is not None:
        problems.insert(1, _told_by(against, other_proof))
    if as_json:
        print_json({**_proof_as_json(proof), **_audit_as_json(audited), **_comparison_as_json(comparison, difference)})
    else:
        click.echo(f"{proof.messages} sound messages from {proof.min_offset} to {proof.end}")
        if not audited.problems:
            click.echo(_audit_line(audited))
        if comparison is not None and difference is None:
            click.echo(f"identical from {comparison.start} to {comparison.end}")
    found = [problem for problem in problems if problem is not None]
    if found:
        raise Trouble(ExitCode.CORRUPT, "; ".join(found))


def _verify(reader: StoreReader, title: str) -> Verification:
    with progress_bar(title, reader.log.min_offset, reader.limit) as progress:
        return reader.verify(progress)


def _audit_line(audited: Audit) -> str:
    line = f"{audited.queues} queues agree with the log up to {audited.built_until}"
    return f"{line}; the index lacks {audited.missing_keys} keys" if audited.missing_keys else line


def _audit_as_json(audited: Audit) -> dict[str, Any]:
    return {
        "queues": audited.queues,
        "queuesBuiltUntil": audited.built_until,
        "queueProblems": audited.problem_count,
        "missingKeys": audited.missing_keys,
    }


def _told_by(path: Path, proof: Verification) -> str | None:
    if proof.problem is None:
        return None
    return f"{path} at {proof.end}: {proof.problem} (a torn end after a crash is cut by rmqha recover)"


def _difference(comparison: Comparison | None) -> str | None:
    if comparison is None:
        return None
    if comparison.differs_at is not None:
        return f"the logs differ at {comparison.differs_at}"
    if comparison.end != comparison.other_end:
        return f"the logs are equal up to the end of one: they end at {comparison.end} and {comparison.other_end}"
    return None


def _proof_as_json(proof: Verification) -> dict[str, Any]:
    return {
        "min": proof.min_offset,
        "end": proof.end,
        "messages": proof.messages,
        "problem": proof.problem,
        "live": proof.live,
    }


def _comparison_as_json(comparison: Comparison | None, difference: str | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "against": {
            "from": comparison.start,
            "otherEnd": comparison.other_end,
            "differsAt": comparison.differs_at,
            "identical": difference is None,
        }
    }
