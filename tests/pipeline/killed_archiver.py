"""Archives a store again and again, each time into a new folder, killed one step later, and then once more to its end.

``python -m tests.pipeline.killed_archiver job|stream STORE FOLDER EVERY`` kills at each EVERY-th step. For each kill it
makes a folder in FOLDER, with the step's number as its name, and prints a line of JSON: the files that were to be seen
in it at the kill, and those of them that were in no manifest. It ends with the first run that nobody had to kill. If
there is FOLDER/before, each folder is a copy of that to begin with.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive
from tests.pipeline.lake import SEGMENT_SIZE, options_of, visible_files
from tests.pipeline.microbatches import Query

SPLIT_BYTES = SEGMENT_SIZE * 3 // 4
STEPS = ("open", "os.rename", "os.mkdir", "os.remove")


def run_job(store: Path, lake: Path) -> None:
    """Archive, with several manifests."""
    archive(options_of(store, output=lake, splitBytes=SPLIT_BYTES), LocalEngine(), commit_bytes=SEGMENT_SIZE)


def run_stream(store: Path, lake: Path) -> None:
    """Archive by the sink, as Spark's driver and workers use it; a batch that is run again has other splits."""
    checkpoint = lake.with_name(f"{lake.name}.checkpoint")
    query = Query(store, lake, checkpoint, splitBytes=SPLIT_BYTES // (2 if checkpoint.exists() else 1))
    query.run(SEGMENT_SIZE * 5 // 4)


RUNS = {"job": run_job, "stream": run_stream}


def kill_at(step: int, lake: Path) -> None:
    """Let this process die right before its step of this number that touches the archive; a flush is a step too."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and str(arguments[0]).startswith(str(lake)):
            count()

    flush = os.fsync

    def counted_flush(fd: int) -> None:
        count()
        flush(fd)

    sys.addaudithook(audited)
    setattr(os, "fsync", counted_flush)  # noqa: B010 - it is a function of another type, says mypy


def in_a_child(work: Callable[[], None]) -> bool:
    """Whether a child came to the end of the work."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"a child failed: {status}")
    return os.WIFEXITED(status)


def main(run: Callable[[Path, Path], None], store: Path, folder: Path, every: int) -> None:
    """See above."""
    pyarrow.array([])  # the first one imports pandas, which takes longer than a run: not in each child
    step, is_whole = 1 - every, False
    while not is_whole:
        step += every
        lake = folder / str(step)
        if (folder / "before").is_dir():
            shutil.copytree(folder / "before", lake)

        def killed(step: int = step, lake: Path = lake) -> None:
            kill_at(step, lake)
            run(store, lake)

        is_whole = in_a_child(killed)
        seen = {str(path.relative_to(lake)) for path in visible_files(lake)}
        archived = {file.path for manifest in Archive(lake).manifests() for file in manifest.files}
        assert in_a_child(partial(run, store, lake)), "nobody killed it"
        print(json.dumps({"step": step, "whole": is_whole, "seen": [*seen], "strays": [*seen - archived]}), flush=True)


if __name__ == "__main__":
    main(RUNS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
