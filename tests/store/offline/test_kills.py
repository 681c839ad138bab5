"""SIGKILL at places of rewind, backup and restore leaves the old or the new. The same command then finishes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings, make_settings
from rmqha.store.epochs import note_promotion, promoted_role
from rmqha.store.examining import ABORT_FILE, examine_store
from rmqha.store.nodestate import NODE_FOLDER, NodeState, Offsets
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.prefix import CopyKind
from rmqha.store.offline.rewind import needs_rewind, rewind
from tests.killing import count_calls, killed_at, places
from tests.store.logs import file_bytes
from tests.store.offline.test_prefix import SEGMENT_SIZE, Made, copy, fixed_log, store_of
from tests.store.offline.test_rewind import assert_agrees

pytestmark = pytest.mark.process

PLACES = 40


@pytest.fixture
def made() -> Made:
    return fixed_log(60)


@pytest.fixture
def source(made: Made) -> Iterator[Path]:
    """The store of a promoted node that was killed."""
    with store_of(made) as (store, _):
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[made.end] * 4)).write(store)
        note_promotion(store, "ASYNC_MASTER", 1, "2026-11-22T00:00:00Z")
        (store / ABORT_FILE).touch()
        yield store


def settings_for(store: Path) -> Settings:
    return make_settings({"storePathRootDir": str(store)})


def each_place(work: Callable[[], object], fresh: Callable[[], None]) -> Iterator[int]:
    """Kill ``work`` at places of its disk calls; ``fresh`` prepares the disk for each."""
    fresh()
    calls = count_calls(work)
    assert calls >= 30
    for place in places(calls, PLACES):
        fresh()
        assert killed_at(place, work)
        yield place
    fresh()
    assert not killed_at(calls, work)


def test_a_rewind(source: Path, made: Made, tmp_path: Path) -> None:
    end = made.messages[33].end
    store = tmp_path / "store"

    def fresh() -> None:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(source, store)

    def work() -> None:  # as the command, once the logs were compared
        found = examine_store(settings_for(store)).found.end
        if needs_rewind(store, Fork(end, found, is_theirs_shorter=True, proved_from=0)):
            rewind(settings_for(store), end)

    tail = made.content[end:].rstrip(b"\0")
    whole_segments = range(0, made.end, SEGMENT_SIZE)  # later segments go first: a log that ends before them is sound
    ends = set()

    def is_kept() -> bool:
        return any(path.read_bytes().rstrip(b"\0") == tail for path in (store / NODE_FOLDER / "cut").iterdir())

    for place in each_place(work, fresh):
        found = examine_store(settings_for(store))
        assert found.damage is None, place
        ends.add(found.found.end)
        if found.found.end != made.end:
            assert found.found.end == end or found.found.end in whole_segments, place
            assert is_kept(), place
        work()
        assert is_kept(), place
        assert promoted_role(store) is None, place
        state = NodeState.read(store)
        assert state is not None
        assert state.epoch > 1, place
        assert_agrees(SynchronousTestCase(), store, settings_for(store), made, end)
    assert ends >= {end, made.end}


@pytest.mark.parametrize("kind", list(CopyKind))
def test_a_copy(kind: CopyKind, source: Path, made: Made, tmp_path: Path) -> None:
    end = made.end if kind is CopyKind.BACKUP else made.messages[33].end
    output = tmp_path / "output"
    before = {path: path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file()}

    def fresh() -> None:
        for path in tmp_path.iterdir():
            shutil.rmtree(path)

    def work() -> None:
        copy(settings_for(source), output, end, kind)

    found = set()
    for place in each_place(work, fresh):
        found.add(output.exists())
        if not output.exists():
            work()
        assert file_bytes(output / "commitlog")[:end] == made.content[:end], place
        assert_agrees(SynchronousTestCase(), output, settings_for(output), made, end)
        left = [path.name for path in tmp_path.iterdir()]
        assert left == ["output"], place
    assert found == {True, False}
    assert {path: path.read_bytes() for path in before} == before
