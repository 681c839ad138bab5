"""``rmqha rebuild``, ``rmqha job rebuild`` and a node's dispatch make the same files of a log, whatever it holds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.rebuild import rebuild
from rmqha.settings.settings import Settings
from rmqha.store.derived import consumequeue
from rmqha.store.derived import rebuild as rebuild_module
from rmqha.store.derived.rebuild import rebuild_in_place
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.testing.records import make_record
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import format_properties
from rmqha.wire.record import TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE, Record
from tests import examples
from tests.fixtures import copy_of, new_folder
from tests.pipeline import stores
from tests.pipeline.lake import options_of


@dataclass(frozen=True)
class Made:
    """A log, and the sizes of all files."""

    records: list[Record]
    segment_size: int
    settings: Settings
    blanks_allowed: int
    """In bytes, besides the log's size."""


KEYS = st.fixed_dictionaries(
    {},
    optional={
        "KEYS": st.sampled_from(["a", "a b", " a  b ", "ä"]),
        "UNIQ_KEY": st.sampled_from(["u", "v"]),
        "TAGS": st.sampled_from(["t", "ü"]),
        "DELAY": st.sampled_from(["1", "3", "99", "x"]),
    },
)
KINDS = (0, 0, 0, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE)
JUMPS = st.sampled_from([1] * 12 + [2, 3, 40, 700, -1, -5])
"""From the queue offset of one message to that of the next."""


@st.composite
def made_logs(draw: st.DrawFn) -> Made:
    records: list[Record] = []
    following: dict[tuple[str, int], int] = {}
    topics = st.sampled_from(["T", "é漢😀", SCHEDULE_TOPIC, "no/folder"])
    first = st.sampled_from([0, 0, 0, 1, 5, 100])
    for number in range(draw(st.integers(0, 60))):
        key = draw(topics), draw(st.integers(0, 1))
        at = following.get(key, draw(first))
        following[key] = max(0, at + draw(JUMPS))
        body, texts, kind = draw(st.integers(0, 900)), draw(KEYS), draw(st.sampled_from(KINDS))
        record = make_record(number, b"b" * body, topic=key[0])
        placed = replace(record, queue_id=key[1], queue_offset=at, sys_flag=kind)
        records.append(replace(placed, properties_stored=format_properties(texts), body_crc=None))
    slots = draw(st.integers(1, 50))
    sizes = Settings(
        mapped_file_size_consume_queue=20 * draw(st.sampled_from([1, 3, 10, 100])),
        max_hash_slot_num=slots,
        max_index_num=draw(st.integers(2, 60)),
        message_index_enable=draw(st.booleans()),
    )
    allowed = draw(st.sampled_from([-10_000, 0, 1 << 30]))
    return Made(records, draw(st.sampled_from([4096, 16384, 65536])), sizes, allowed)


def derived_files(root: Path) -> dict[str, bytes]:
    """All files by their paths. Names of index files are times, so numbers stand for them."""
    queues = {
        str(path.relative_to(root)): path.read_bytes() for path in root.glob("consumequeue/*/*/*") if path.is_file()
    }
    return queues | {f"index {number}": path.read_bytes() for number, path in enumerate(sorted(root.glob("index/*")))}


def dispatched(made: Made, store: Path, root: Path) -> dict[str, bytes]:
    """What a node's dispatcher makes of the log when it starts on a copy of it without queues and index."""
    shutil.copytree(store, root)
    own = replace(made.settings, store_path_root_dir=root, mapped_file_size_commit_log=made.segment_size)
    MessageStore(own).close_now()
    return derived_files(root)


def by_command(made: Made, store: Path) -> dict[str, bytes]:
    """What ``rmqha rebuild`` makes of the log. It opens the store, and closes it cleanly."""
    own = replace(made.settings, store_path_root_dir=store, mapped_file_size_commit_log=made.segment_size)
    MessageStore(own, build_derived=partial(rebuild_in_place, store)).close_now()
    return derived_files(store)


def by_job(made: Made, store: Path, output: Path, split_bytes: int) -> dict[str, bytes]:
    """What ``rmqha job rebuild`` makes of the log."""
    own = replace(made.settings, mapped_file_size_commit_log=made.segment_size)
    options = options_of(store, splitBytes=split_bytes, batchBytes=2000, output=output)
    rebuild(replace(options, settings=own), LocalEngine())
    return derived_files(output)


@contextmanager
def a_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rmqha-rebuild-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class SameRebuildTests(SynchronousTestCase):
    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(60))
    @given(made_logs(), st.sampled_from([600, 3000, 1 << 20]))
    def test_command_job_and_node_build_the_same_files(self, made: Made, split_bytes: int) -> None:
        with a_folder() as folder, mock.patch.object(consumequeue, "BLANKS_ALLOWED_BYTES", made.blanks_allowed):
            store = folder / "store"
            stores.make_store(store, made.records, made.segment_size)
            wanted = dispatched(made, store, folder / "node")
            self.assertEqual(by_job(made, store, folder / "job", split_bytes), wanted)
            self.assertEqual(by_command(made, store), wanted)
        self.flushLoggedErrors()

    def test_made_up_offsets_get_blanks_in_the_order_of_the_log(self) -> None:
        """All queues together want more blanks than there may be: the node refuses messages, so both commands do."""
        offsets = [0, 90, 91, 0, 90, 91, 92, 500]
        queues = [0, 0, 0, 1, 1, 1, 0, 1]
        records = [
            replace(make_record(number, b"b" * 6000), queue_offset=at, queue_id=queue)
            for number, (at, queue) in enumerate(zip(offsets, queues, strict=True))
        ]
        sizes = Settings(mapped_file_size_consume_queue=2000, max_hash_slot_num=5, max_index_num=20)
        made = Made(records, 1 << 20, sizes, -46_000)
        folder = new_folder(self)
        store = folder / "store"
        stores.make_store(store, records, made.segment_size)
        self.patch(consumequeue, "BLANKS_ALLOWED_BYTES", made.blanks_allowed)
        wanted = dispatched(made, store, folder / "node")
        self.flushLoggedErrors()
        self.assertEqual(by_job(made, store, folder / "job", 1 << 20), wanted)
        self.assertEqual(by_command(made, store), wanted)
        self.patch(consumequeue, "BLANKS_ALLOWED_BYTES", 1 << 30)
        self.assertNotEqual(by_command(made, store), wanted, "nothing was refused")

    @pytest.mark.long
    def test_what_fails_or_is_interrupted_leaves_the_old_files_and_a_clean_stop(self) -> None:
        for error in (KeyboardInterrupt, OSError(28, "No space left on device")):
            for command in (["rebuild"], ["job", "rebuild"]):
                store = copy_of("slave", new_folder(self) / "store")
                (store / ABORT_FILE).unlink(missing_ok=True)
                end = Offsets(0, *[(store / "commitlog" / f"{0:020d}").stat().st_size] * 4)
                NodeState("id", state="STOPPED", offsets=end).write(store)
                before, names = derived_files(store), sorted(path.name for path in store.rglob("*"))
                state = NodeState.read(store)
                with mock.patch.object(rebuild_module, "_build_index", side_effect=error):
                    result = CliRunner().invoke(main, [*command, str(store)])
                self.assertEqual(result.exit_code, 130 if error is KeyboardInterrupt else 8, result.stderr)
                self.assertEqual(derived_files(store), before)
                left = {path.name for path in store.rglob("*")} - set(names)
                self.assertEqual(left - {"lock"}, set(), "neither abort nor unfinished files stay")
                self.assertEqual(NodeState.read(store), state)

    def test_wherever_a_swap_is_killed_the_next_start_has_all_queues_and_keys(self) -> None:
        class Killed(BaseException):
            """The process is gone."""

        sizes = Settings(mapped_file_size_consume_queue=100, max_hash_slot_num=5, max_index_num=20)
        made = Made(stores.plain_records(40), 16384, sizes, 0)
        good = new_folder(self) / "good"
        stores.make_store(good, made.records)
        wanted = by_command(made, good)
        for killed_after in range(10):
            store = shutil.copytree(good, new_folder(self) / "store")
            calls = 0

            def rename_some(path: Path, new_path: Path, most: int = killed_after) -> None:
                nonlocal calls
                if calls == most:
                    raise Killed
                calls += 1
                path.rename(new_path)

            with mock.patch.object(Disk, "rename", staticmethod(rename_some)):
                try:
                    rebuild(options_of(store), LocalEngine())
                    break
                except Killed:
                    pass
            self.assertEqual(calls, killed_after)
            MessageStore(Settings(store_path_root_dir=store)).close_now()
            self.assertEqual(derived_files(store), wanted, f"after {killed_after} renames")
        else:
            self.fail("it renames without end")
        self.assertGreater(killed_after, 3)
