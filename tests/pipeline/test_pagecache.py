"""What a reader leaves in the page cache."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.segments import read_selected
from rmqha.store.log.mappedfile import file_name
from rmqha.store.log.pagecache import cached_pages
from rmqha.store.log.splits import Split
from tests.pipeline.stores import make_store, options, plain_records

SEGMENT_SIZE = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of four segments, none of which is in the page cache."""
    make_store(tmp_path, plain_records(400, 9000), SEGMENT_SIZE)
    evict(tmp_path)
    if any(cached(tmp_path)):
        pytest.skip("this file system has no page cache that can be emptied")
    return tmp_path


def open_segments(store: Path) -> Iterator[int]:
    for base in range(0, 4 * SEGMENT_SIZE, SEGMENT_SIZE):
        fd = os.open(store / "commitlog" / file_name(base), os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)


def evict(store: Path) -> None:
    for fd in open_segments(store):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def cached(store: Path) -> list[float]:
    """How much of each segment is in the page cache."""
    return [float(cached_pages(fd, 0, SEGMENT_SIZE).mean()) for fd in open_segments(store)]


def warm(store: Path, number: int, position: int, size: int) -> None:
    """Bring some of a segment into the cache, and nothing beside it."""
    for at, fd in enumerate(open_segments(store)):
        if at == number:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(fd, size, position)


def splits_of(store: Path, opts: Options) -> list[Split]:
    """Two splits of each segment."""
    plan = open_log(opts)
    return plan.splits(plan.min_offset, plan.end)


def read(store: Path, splits: list[Split], opts: Options) -> int:
    return sum(len(records) for split in splits for records in read_selected(split, opts))


def test_a_reader_takes_back_what_only_it_has_brought_in(store: Path) -> None:
    opts = options(store, dropBehind="true", splitBytes=SEGMENT_SIZE // 2, batchBytes=100_000)
    splits = splits_of(store, opts)
    evict(store)
    warm(store, 1, SEGMENT_SIZE // 4, SEGMENT_SIZE // 4)
    assert cached(store) == [0, 0.25, 0, 0]
    assert read(store, splits, opts) == 400
    cold, half_warm, *hot = cached(store)
    assert cold < 0.02, "but for the page in which one split ends and the next begins"
    assert half_warm == pytest.approx(0.25, abs=0.02)
    assert hot[0] == 1
    assert hot[1] > 0.2, "as far as there are messages"


def test_what_was_cached_before_stays(store: Path) -> None:
    opts = options(store, dropBehind="true")
    splits = splits_of(store, opts)
    for number in range(4):
        warm(store, number, 0, SEGMENT_SIZE)
    assert read(store, splits, opts) == 400
    assert cached(store) == [1, 1, 1, 1]


def test_a_reader_is_not_asked_to_take_anything_back(store: Path) -> None:
    splits = splits_of(store, options(store))
    evict(store)
    assert read(store, splits, options(store)) == 400
    assert cached(store)[:3] == [1, 1, 1]


def test_a_file_that_was_cut_has_fewer_pages(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * mmap.PAGESIZE + 1))
    with path.open("rb") as file:
        assert list(cached_pages(file.fileno(), mmap.PAGESIZE, 1 << 30)) == [True] * 3
        assert not len(cached_pages(file.fileno(), 1 << 20, 1 << 20))
