"""``rmqha recover`` and ``rmqha rebuild``: a store brought in order while no node runs on it."""

from dataclasses import replace
from pathlib import Path

import click

from rmqha.cli.shared import JSON, SETTINGS, STORE, Trouble, print_json, progress_bar, result_of, settings_of
from rmqha.exitcodes import ExitCode
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState


@click.command()
@STORE
@SETTINGS
@JSON
def recover(store: Path, conf: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Run recovery as a node's start would, and say what it found and cut. Nothing is lost: what is cut is kept."""
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    opened = MessageStore(settings)
    found, had_state = opened.recovery, NodeState.read(store) is not None
    confirmed = min(found.end, opened.node_state.offsets.confirmed)
    final_state = replace(opened.node_state, state="STOPPED", offsets=opened.offsets(confirmed))
    result_of(opened.close(final_state=(lambda: final_state) if had_state else None))
    kept_in = str(found.kept_in) if found.kept_in is not None else None
    if as_json:
        print_json(
            {
                "cleanStop": found.clean_stop,
                "min": found.min_offset,
                "checkedFrom": found.checked_from,
                "end": found.end,
                "messages": found.messages,
                "cutBytes": found.cut_bytes,
                "removedSegments": found.removed_segments,
                "problem": found.problem,
                "keptIn": kept_in,
            }
        )
        return
    click.echo(
        f"log is {found.min_offset} to {found.end}; {found.messages} messages checked from {found.checked_from} on, "
        f"after {'a clean' if found.clean_stop else 'an unclean'} stop"
    )
    if found.problem is not None:
        click.echo(f"cut {found.cut_bytes} bytes at {found.end}: {found.problem}; they are kept in {kept_in}")
    if found.removed_segments:
        click.echo(f"removed {found.removed_segments} segments behind the end")


@click.command()
@STORE
@SETTINGS
def rebuild(store: Path, conf: Path | None, sets: tuple[str, ...]) -> None:
    """Make consume queues and index anew from the log, after recovery."""
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    opened = MessageStore(settings)
    log = opened.commit_log
    with progress_bar("rebuilding", log.min_offset, log.verified_offset) as progress:
        opened.rebuild(progress)
    count, end = len(opened.derived.queues.queues), log.verified_offset
    result_of(opened.close())
    click.echo(f"{count} queues and the index made anew from {log.min_offset} to {end}")
