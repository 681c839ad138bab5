"""Histories checked by Porcupine, which other people have written: ``python -m tests.proofs.foreign FOLDER``.

The folder has files of ``python -m rmqha.testing.sim --story cluster --histories FOLDER`` or of ``python -m tests.chaos
--histories FOLDER``. ``porcupine/*.go`` are the models of a queue and of a coordinator's keys. Exit status 1: a history
breaks its model; 3: the time was not enough for one.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from twisted.internet.task import Clock

from rmqha.testing.sim.histories import Recorder
from tests.chaos.history import History, Seen
from tests.interop.goclient import go_program

SOURCES = Path(__file__).parent / "porcupine"


def check(files: Iterable[Path], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """What the checker says of these histories. Raises InteropError if it cannot be built."""
    command = [str(go_program(SOURCES)), "-seconds", str(seconds), *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def recorded(history: History, topic: str) -> Recorder:
    """A history of ``tests.chaos`` in the form of others.

    Nobody has noted when messages were sent: all are sent at the beginning, and those too that were read and not
    promised. That a consumer reads a message again at the same place is no concern of that form.
    """
    clock = Clock()
    recorder = Recorder(clock)
    reads = [each for seen in history.read.values() for each in seen]
    places = {each.key: each for each in (*reads, *history.promised)}
    asked = {key: recorder.invoke("append", queue=f"{topic}/{each.queue}", keys=[key]) for key, each in places.items()}
    events = [(each.at, False, each) for each in history.promised] + [(each.at, True, each) for each in reads]
    for at, is_read, each in sorted(events, key=lambda event: event[:2]):
        clock.advance(max(0.0, at - clock.seconds()))
        if is_read:
            recorder.note("read", queue=f"{topic}/{each.queue}", offset=each.offset, keys=[each.key])
        else:
            asked[each.key].end("ok", offset=each.offset)
    queues = {each.queue for each in places.values()}
    for seen in history.read.values():
        for queue in sorted(queues):
            recorder.note("read-all", queue=f"{topic}/{queue}", offset=0, keys=_all_read(seen, queue))
    recorder.end()
    return recorder


def _all_read(seen: Sequence[Seen], queue: int) -> list[str]:
    """The keys by their offsets, "" where nothing was read."""
    found: dict[int, str] = defaultdict(str, {each.offset: each.key for each in seen if each.queue == queue})
    return [found[offset] for offset in range(max(found, default=-1) + 1)]


def main(folder: Path) -> int:
    """Check all files of the folder. Gives the exit status."""
    done = check(sorted(folder.glob("*.jsonl")))
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
