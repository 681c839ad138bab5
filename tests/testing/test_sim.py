"""The simulator: many seeds, the same run from the same seed, and planted bugs that it must find."""

import os
import subprocess
import sys
from collections.abc import Callable
from struct import error as StructError
from typing import Any

import pytest

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.slave.protocol import HASlaveProtocol
from rmqha.ha.slave.replica import MasterView, Replica
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.nodestate import NodeState
from rmqha.testing.sim import runner
from rmqha.testing.sim.disk import SimFile
from rmqha.testing.sim.walk import run_seed
from rmqha.wire import layout, record, scan
from rmqha.wire.delay import DelayLevels
from rmqha.wire.record import INT32
from rmqha.wire.transfer import Transfer

pytestmark = pytest.mark.fuzz

SEEDS = os.environ.get("RMQHA_SIM_SEEDS", "0..2499")
SEEDS_UNTIL_FOUND = 2000


def simulate(*arguments: str, hash_seed: str = "0") -> "subprocess.CompletedProcess[str]":
    """Run it as a process: coverage of thousands of runs would take longer than they do."""
    return subprocess.run(
        [sys.executable, "-m", "rmqha.testing.sim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def test_no_seed_breaks_a_promise() -> None:
    """Puts, cuts, delays, crashes at any system call, restarts, disk errors, bogus peers: nothing confirmed is lost."""
    ended = simulate("--seeds", SEEDS, "--jobs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no violation" in ended.stdout


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    """In another process too, whatever the order of its sets."""
    traces = [simulate("--seeds", "3..6", "--trace", hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    first, second = ["\n".join(trace.splitlines()[:-1]) for trace in traces]  # the last line tells how long it took
    assert first == second
    assert "answers put" in first


Patch = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_write(patch: pytest.MonkeyPatch) -> None:
    """A slave reports what it has received, written or not."""
    read_completed: Callable[[HASlaveProtocol], None] = HASlaveProtocol.read_completed

    def report_first(connection: Any) -> None:
        connection._report(connection._replica._next)
        read_completed(connection)

    patch.setattr(HASlaveProtocol, "read_completed", report_first)


def believe_every_report(patch: pytest.MonkeyPatch) -> None:
    """A master takes any offset for an acknowledgement."""

    def acknowledge(connection: HAMasterProtocol, reports: list[int]) -> None:
        progress = connection.progress
        assert progress is not None
        for offset in reports:
            progress.reported = progress.acknowledged = offset
            connection._port.slave_reported(progress)

    patch.setattr(HAMasterProtocol, "_acknowledge", acknowledge)


def begin_segments_one_byte_late(patch: pytest.MonkeyPatch) -> None:
    """A master that goes on behind a segment's end skips a byte."""
    get_data: Callable[[CommitLog, int, int], memoryview | None] = CommitLog.get_data

    def late(log: CommitLog, offset: int, limit_bytes: int) -> memoryview | None:
        data = get_data(log, offset, limit_bytes)
        return data[1:] if data is not None and len(data) > 1 and offset and offset % log.segment_size == 0 else data

    patch.setattr(CommitLog, "get_data", late)


def end_segments_one_byte_late(patch: pytest.MonkeyPatch) -> None:
    """A slave writes what it has collected when a segment is full and one byte more."""

    def take(replica: Any, transfer: Transfer) -> None:
        size = replica._commit_log.segment_size
        known_bytes = max(0, min(len(transfer.body), replica._commit_log.max_offset - transfer.physic_offset))
        replica._pending.append(transfer.body[known_bytes:])
        replica._next = transfer.end_offset
        if replica._next % size == 1:
            replica._write_pending()

    patch.setattr(Replica, "_take", take)


def shorten_files_to_zero_them(patch: pytest.MonkeyPatch) -> None:
    """Found once: a file's end was zeroed by making it shorter for a moment, in which power could be lost."""

    def zero_from(file: Any, position: int) -> None:
        for size in (position, file.file_size):
            file._disk.set_size(file.path, file._inode, size)
        file._inode.write(position, bytes(file.file_size - position))

    patch.setattr(SimFile, "zero_from", zero_from)


def ask_for_more_than_is_flushed(patch: pytest.MonkeyPatch) -> None:
    """Found once: a slave with SYNC_FLUSH began a connection with a report of what it had not flushed."""
    request: Callable[[Replica, MasterView], int] = Replica.request
    patch.setattr(Replica, "request", lambda replica, master, durable_offset: request(replica, master))


def believe_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """Found once: after a failed flush and a restart, a flush that did nothing passed for one that worked."""
    patch.setattr(CommitLog, "write_again", lambda log, start: None)


def look_at_no_crc(patch: pytest.MonkeyPatch) -> None:
    """A body that has rotted on its way passes for a sound one."""
    plainly_sound, check_record = scan._is_plainly_sound, record.check_record

    def plainly(view: memoryview, base: int, begin: int, end: int) -> bool:
        patched = bytearray(view[:end])
        _mend_crc(patched, begin)
        return plainly_sound(memoryview(patched), base, begin, end)

    def check(buffer: Any, position: int, offset: int, room: int) -> Any:
        patched = bytearray(buffer)
        _mend_crc(patched, position)
        return check_record(patched, position, offset, room)

    patch.setattr(scan, "_is_plainly_sound", plainly)
    patch.setattr(scan, "_check_bodies", lambda segment, body_at, body_length, stored_crc: len(body_at))
    patch.setattr(record, "check_record", check)


def _mend_crc(data: bytearray, begin: int) -> None:
    """Make BODYCRC of the record there what its body says, if there is a body."""
    try:
        (size,) = INT32.unpack_from(data, begin + layout.BODY_LENGTH_AT)
        body_at = begin + layout.BODY_LENGTH_AT + INT32.size
        if 0 < size <= len(data) - body_at:
            INT32.pack_into(data, begin + layout.CRC_AT, record.body_crc(data[body_at : body_at + size]))
    except StructError:
        pass


def compare_half_of_the_overlap(patch: pytest.MonkeyPatch) -> None:
    """A slave does not look at the second half of what it holds and the master sends again."""
    compare: Callable[[Replica, int, bytes], None] = Replica._compare
    patch.setattr(Replica, "_compare", lambda replica, at, theirs: compare(replica, at, theirs[: len(theirs) // 2]))


def truncate_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """What was cut off the log comes back when power is lost."""
    truncate: Callable[[CommitLog, int], None] = CommitLog.truncate

    def leave_it_to_the_kernel(log: CommitLog, offset: int) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(SimFile, "sync", lambda file: None)
            truncate(log, offset)

    patch.setattr(CommitLog, "truncate", leave_it_to_the_kernel)


def end_waits_one_byte_early(patch: pytest.MonkeyPatch) -> None:
    """A put is answered when all but its last byte is held."""
    reached: Callable[[GroupCommit, int], None] = GroupCommit.reached
    patch.setattr(GroupCommit, "reached", lambda waits, offset: reached(waits, offset + 1))


def invert_a_deadline(patch: pytest.MonkeyPatch) -> None:
    """When the first wait times out, those do too whose time is not over."""

    def expire(waits: Any) -> None:
        waits._timer = None
        now = waits._clock.seconds()
        while waits._requests and waits._requests[0].deadline >= now:
            waits._requests.popleft().done.callback(False)
        if waits._requests:
            waits._timer = waits._clock.callLater(max(0.1, waits._requests[0].deadline - now), waits._expire)

    patch.setattr(GroupCommit, "_expire", expire)


def skip_a_delay_level(patch: pytest.MonkeyPatch) -> None:
    """Nobody delivers the messages of the first level."""
    start: Callable[[ScheduleMessageService], None] = ScheduleMessageService.startService

    def skip(service: Any) -> None:
        start(service)
        service._levels[0].stop()

    patch.setattr(ScheduleMessageService, "startService", skip)


def put_delays_one_level_too_high(patch: pytest.MonkeyPatch) -> None:
    """A delayed message lies in the next level's queue."""
    tags_code: Callable[[DispatchRequest, DelayLevels], int] = DispatchRequest.tags_code

    def skip(request: DispatchRequest, levels: DelayLevels) -> int:
        delay = request.properties.get("DELAY")
        if delay is None:
            return tags_code(request, levels)
        return tags_code(request._replace(properties={**request.properties, "DELAY": str(int(delay) + 1)}), levels)

    patch.setattr(DispatchRequest, "tags_code", skip)


def forget_keys(patch: pytest.MonkeyPatch) -> None:
    """The index has the first key of each message only."""
    index_keys: Callable[[DispatchRequest], list[str]] = DispatchRequest.index_keys
    patch.setattr(DispatchRequest, "index_keys", lambda request: index_keys(request)[:1])


def begin_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Confirmed bytes are taken back, and nobody who has read them is told."""
    patch.setattr(NodeState, "after_loss", lambda state, offset: state)


PLANTS: tuple[Patch, ...] = (
    begin_no_epoch,
    look_at_no_crc,
    compare_half_of_the_overlap,
    truncate_without_fsync,
    end_waits_one_byte_early,
    invert_a_deadline,
    skip_a_delay_level,
    put_delays_one_level_too_high,
    forget_keys,
    acknowledge_before_write,
    believe_every_report,
    begin_segments_one_byte_late,
    end_segments_one_byte_late,
    shorten_files_to_zero_them,
    ask_for_more_than_is_flushed,
    believe_the_page_cache,
)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((seed for seed in range(SEEDS_UNTIL_FOUND) if run_seed(seed).violation is not None), None)
    assert found is not None, f"no seed up to {SEEDS_UNTIL_FOUND} has found it"


def test_a_failure_prints_its_seed_and_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledge_before_write(monkeypatch)
    monkeypatch.setattr(runner, "_prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "0.."])
    assert runner.main() == 1
    *trace, verdict = capsys.readouterr().out.splitlines()
    assert verdict.startswith("seed ")
    assert "reports" in verdict
    assert any("is connected to master" in line for line in trace)
