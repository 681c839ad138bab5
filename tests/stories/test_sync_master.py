"""What a SYNC_MASTER answers, on real processes: each case of the list of what happens when, and what comes with it."""

import json
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.nodes import PutNode, TwistdNode, free_port
from rmqha.testing.proxy import FaultProxy
from rmqha.testing.records import write_log
from rmqha.wire.record import Record
from rmqha.wire.transfer import encode_report
from tests.commands import rmqha
from tests.interop.nodes import RmqhaNode, assert_equal_logs
from tests.puts import (
    NOT_AVAILABLE,
    OK,
    TIMED_OUT,
    answers,
    assert_all,
    assert_waited,
    pause,
    promised_end,
    put,
    put_until_ok,
    resume,
    statuses_of,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.process

SLAVE_TIMEOUT_S = 0.8
SHORT_TIMEOUT = f"--set=slaveTimeout={int(SLAVE_TIMEOUT_S * 1000)}"
"""For what no slave answers. A busy slave may need longer than this for a put."""
BOTH_TIMEOUT_S = 6.0
BOTH_TIMEOUT = f"--set=slaveTimeout={int(BOTH_TIMEOUT_S * 1000)}"
"""For tests in which a slave answers some puts, and others time out."""
AMPLE_TIMEOUT = "--set=slaveTimeout=60000"
"""For what must be answered by a slave: the wait ends long before, however busy the machine."""
QUICK_HEARTBEATS = ("--set=haSendHeartbeatInterval=200", "--set=haHousekeepingInterval=1000")
SEGMENT_SIZE = 1 << 18
SMALL_SEGMENTS = f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}"
BODY_BYTES = 1024
NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"


class Cluster:
    """Nodes of one test, each with a folder of its own; all end with the test."""

    def __init__(self, work: Path, stack: ExitStack) -> None:
        self._work = work
        self._stack = stack
        self._numbers = Counter[str]()

    def _name(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}-{self._numbers[kind]}"

    def master(self, *options: str, role: str = "sync-master", store: Path | None = None, port: int = 0) -> PutNode:
        """A master that serves slaves."""
        name = self._name("master")
        node = PutNode(self._work, [f"--role={role}", f"--port={port}", *options], store, name)
        self._stack.enter_context(node)
        node.port()
        return node

    def slave(
        self, master: TwistdNode, *options: str, through: FaultProxy | None = None, store: Path | None = None
    ) -> RmqhaNode:
        """A slave that is being started."""
        address = f"127.0.0.1:{master.port()}" if through is None else through.address
        remoting = f"127.0.0.1:{master.port('remoting')}"
        own = ["--role=slave", "--port=0", f"--master={address}", f"--master-remoting={remoting}", *options]
        node = RmqhaNode(self._work, own, store, self._name("slave"))
        self._stack.enter_context(node)
        return node

    def synced_slave(self, master: TwistdNode, *options: str, through: FaultProxy | None = None) -> RmqhaNode:
        """A slave that holds all its master has, which is something."""
        return in_sync(self.slave(master, *options, through=through))

    def proxy(self, master: TwistdNode) -> FaultProxy:
        """A proxy in front of a master's HA port."""
        return self._stack.enter_context(FaultProxy(f"127.0.0.1:{master.port()}"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def in_sync(slave: RmqhaNode) -> RmqhaNode:
    slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
    return slave


def numbers_in(store: Path) -> list[int]:
    """The numbers of the messages in the log of a store at rest, in its order."""
    reader = StoreReader(store)
    try:
        return [int(record.body[:20]) for _, record in reader.records(0, None) if isinstance(record, Record)]
    finally:
        reader.close()


def run(*arguments: object, code: ExitCode = ExitCode.FINE) -> str:
    """What a command prints; it must end with this code."""
    done = rmqha(*arguments)
    assert done.returncode == code, done.stderr
    assert bool(done.stderr) is bool(code)
    return done.stdout


# What happens when: the cases of the design


def test_after_a_lost_report_the_next_report_completes_the_put(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT)
    end = master.put(1)["end"]
    proxy = cluster.proxy(master)
    cluster.synced_slave(master, through=proxy)
    proxy.command("up swallow")
    master.tell(1, each=True)
    proxy.wait_until(lambda facts: (facts.reported or 0) > end, "the slave's report")
    proxy.command("up pass")
    master.tell(1)
    assert statuses_of(answers(master)) == {OK: 1}
    second = master.answer()
    assert second is not None
    assert second["statuses"] == {OK: 1}
    assert proxy.facts().accepted == 1


def test_after_a_lost_report_the_next_heartbeat_completes_the_put(
    cluster: Cluster,
) -> None:
    master = cluster.master(AMPLE_TIMEOUT)
    end = master.put(1)["end"]
    proxy = cluster.proxy(master)
    cluster.synced_slave(master, *QUICK_HEARTBEATS, through=proxy)
    proxy.command("up swallow")
    master.tell(1, each=True)
    proxy.wait_until(lambda facts: (facts.reported or 0) > end, "the slave's report")
    proxy.command("up pass")
    assert statuses_of(answers(master)) == {OK: 1}


def test_slave_stored_its_report_is_late_as_tcp_sends_it_again_the_request_completes(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT)
    end = master.put(1)["end"]
    proxy = cluster.proxy(master)
    slave = cluster.synced_slave(master, through=proxy)
    proxy.command("up hold")
    master.tell(1, each=True)
    slave.wait_for_offset(end + 1)
    proxy.command("up pass")
    (late,) = answers(master)
    assert late["status"] == OK


def test_without_any_further_report_a_put_times_out_and_its_message_stays(
    cluster: Cluster,
) -> None:
    master = cluster.master(SHORT_TIMEOUT)
    put(master)
    proxy = cluster.proxy(master)
    slave = cluster.synced_slave(master, through=proxy)
    proxy.command("up swallow")
    result = master.put(1)
    assert result["statuses"] == {TIMED_OUT: 1}
    assert_waited(result["latencies"]["max"], SLAVE_TIMEOUT_S)
    slave.wait_for_offset(result["end"])
    slave.stop_cleanly()
    assert master.stop() == 0
    assert numbers_in(master.store) == numbers_in(slave.store) == [0, 1]


def test_the_slave_holds_a_message_whose_master_died_before_it_confirmed_it(
    cluster: Cluster,
) -> None:
    master = cluster.master(SHORT_TIMEOUT)
    put(master)
    proxy = cluster.proxy(master)
    slave = cluster.synced_slave(master, through=proxy)
    proxy.command("up swallow")
    result = master.put(1)
    assert result["statuses"] == {TIMED_OUT: 1}
    slave.wait_for_offset(result["end"])
    master.kill()
    slave.stop_cleanly()
    dumped = [json.loads(line) for line in run("dump", slave.store, "--json").splitlines()]
    assert [record["properties"]["KEYS"] for record in dumped] == ["k0", "k1"]


def test_after_a_slave_dies_puts_time_out_and_then_find_no_slave_until_it_returns(
    cluster: Cluster,
) -> None:
    master = cluster.master(BOTH_TIMEOUT)
    end = master.put(1)["end"]
    proxy = cluster.proxy(master)
    slave = cluster.synced_slave(master, through=proxy)
    proxy.command("up swallow")
    master.tell(5, in_flight=5, each=True)
    proxy.wait_until(lambda facts: (facts.reported or 0) > end + 4 * BODY_BYTES, "the slave to store all five")
    slave.kill()
    proxy.cut()
    master.wait_for_event(Event.SLAVE_GONE)
    answered = answers(master)
    assert statuses_of(answered) == {TIMED_OUT: 5}
    assert_waited(max(answer["seconds"] for answer in answered), BOTH_TIMEOUT_S)
    assert_all(master.put(10), NOT_AVAILABLE)
    proxy.command("up pass")
    in_sync(slave.start())
    assert put(master, 50) == {OK: 50}
    slave.stop_cleanly()
    assert numbers_in(slave.store) == list(range(66))


def test_after_a_failed_append_the_next_frame_is_refused_and_a_reconnect_resumes(
    cluster: Cluster,
) -> None:
    master = cluster.master(AMPLE_TIMEOUT)
    put(master)
    proxy = cluster.proxy(master)
    slave = cluster.synced_slave(master, through=proxy)
    end = master.put(1)["end"]
    passed = proxy.command("down swallow").down
    master.tell(1, each=True)
    proxy.wait_until(lambda facts: facts.down > passed + BODY_BYTES, "the first transfer to be lost")
    proxy.command("down pass")
    master.tell(1)
    assert statuses_of(answers(master)) == {OK: 1}
    second = master.answer()
    assert second is not None
    assert second["statuses"] == {OK: 1}
    (refused,) = slave.events(Event.MASTER_BROKE_PROTOCOL)
    assert f" where {end} is next" in refused["reason"], "the second transfer was refused"
    assert proxy.facts().accepted == 2
    requests = [event["request_offset"] for event in slave.events(Event.TRANSFER_REQUESTED)]
    assert end - 2 * BODY_BYTES < requests[1] < end, "with the last message that it has"
    assert_equal_logs(slave.store, master.store, 0, second["end"])


@pytest.mark.story
def test_a_missing_consume_queue_is_rebuilt_after_a_restart(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT)
    put(master)
    slave = cluster.synced_slave(master)
    assert put(master, 500, in_flight=50) == {OK: 500}
    slave.kill()
    shutil.rmtree(slave.store / "consumequeue")
    slave.start()
    put_until_ok(master)
    queues = run("queues", master.store, "--json")
    assert "PutNode" in queues
    wait_until(lambda: run("queues", slave.store, "--json") == queues, "the slave's queues to be built")
    slave.stop_cleanly()
    run("verify", slave.store)


def test_no_slave_connected_sync_master_slave_not_available_at_once(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT)
    assert_all(master.put(20), NOT_AVAILABLE)
    assert master.stop() == 0
    assert numbers_in(master.store) == list(range(20))


def test_slave_more_than_ha_slave_fallbehind_max_behind_slave_not_available_at_once(cluster: Cluster) -> None:
    near_bytes = 100_000
    master = cluster.master(SHORT_TIMEOUT, f"--set=haSlaveFallbehindMax={near_bytes}")
    put(master)
    slave = cluster.synced_slave(master)
    end = put_until_ok(master)
    slave.pause()
    master.tell(200, in_flight=200, each=True)
    answered = answers(master)
    near = [answer for answer in answered if answer["offset"] + answer["size"] - end < near_bytes]
    far = [answer for answer in answered if answer not in near]
    assert statuses_of(near) == {TIMED_OUT: len(near)}
    assert statuses_of(far) == {NOT_AVAILABLE: len(far)}
    assert min(len(near), len(far)) > 50
    assert_all(master.put(5), NOT_AVAILABLE)
    slave.resume()
    put_until_ok(master)


def test_wait_store_msg_ok_false_put_ok_without_waiting(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT)
    assert_all(master.put(20, wait=False), OK)
    slave = cluster.synced_slave(master)
    slave.pause()
    assert_all(master.put(20, wait=False), OK)


def test_a_message_much_larger_than_a_transfer_batch_does_not_delay_later_ones(
    cluster: Cluster,
) -> None:
    master = cluster.master(AMPLE_TIMEOUT, "--set=maxMessageSize=8388608")
    put(master)
    proxy = cluster.proxy(master)
    slave = cluster.synced_slave(master, through=proxy)
    proxy.command("down pace 131072 0.01")
    master.tell(1, body_bytes=4 << 20, each=True)
    master.tell(20, in_flight=20, each=True)
    (large,) = answers(master)
    later = answers(master)
    assert (large["status"], statuses_of(later)) == (OK, {OK: 20})
    assert large["seconds"] > 0.3, "32 pieces, with a pause behind each"
    assert_equal_logs(slave.store, master.store, 0, later[-1]["offset"] + later[-1]["size"])


def test_a_slave_beyond_its_masters_end_is_refused_and_enters_ahead(cluster: Cluster, tmp_path: Path) -> None:
    master = cluster.master(SHORT_TIMEOUT, SMALL_SEGMENTS)
    end = master.put(1)["end"]
    with socket.create_connection(("127.0.0.1", master.port())) as any_slave:
        any_slave.sendall(encode_report(end + 1000))
        refused = master.wait_for_event(Event.SLAVE_AHEAD)
    assert (refused["ahead_bytes"], refused["end"]) == (1000, end)

    write_log(tmp_path / "longer" / "commitlog", 50_000, 1000, SEGMENT_SIZE)
    slave = cluster.slave(master, store=tmp_path / "longer")
    ahead = slave.wait_for_event(Event.SLAVE_VERDICT, state="AHEAD")["reason"]
    held = commit_log_end(tmp_path / "longer")
    assert f"ends at {end}, {held - end} bytes before {held}" in ahead
    assert_all(master.put(5), NOT_AVAILABLE)
    assert commit_log_end(tmp_path / "longer") == held


def commit_log_end(store: Path) -> int:
    """Where the last whole record of a store ends."""
    reader = StoreReader(store)
    try:
        return reader.verify(lambda _: None).end
    finally:
        reader.close()


def gap(cluster: Cluster, tmp_path: Path) -> tuple[PutNode, Path]:
    """A master whose first segment is deleted, and the store of a slave that got half of that segment."""
    write_log(tmp_path / "whole" / "commitlog", 3 * SEGMENT_SIZE, 1000, SEGMENT_SIZE)
    (tmp_path / "whole" / "commitlog" / f"{0:020d}").unlink()
    write_log(tmp_path / "behind" / "commitlog", SEGMENT_SIZE // 2, 1000, SEGMENT_SIZE)
    master = cluster.master(AMPLE_TIMEOUT, SMALL_SEGMENTS, store=tmp_path / "whole")
    return master, tmp_path / "behind"


def test_slaves_offset_below_masters_min_the_slave_enters_gap_and_stops_there(cluster: Cluster, tmp_path: Path) -> None:
    master, behind = gap(cluster, tmp_path)
    slave = cluster.slave(master, store=behind)
    reason = slave.wait_for_event(Event.SLAVE_VERDICT, state="GAP")["reason"]
    assert f"the master's log starts at {SEGMENT_SIZE}" in reason
    slave.wait_for(ReplicaState.GAP)
    assert_all(master.put(5), NOT_AVAILABLE)
    slave.stop_cleanly()
    assert commit_log_end(behind) < SEGMENT_SIZE


def test_a_reseed_sets_the_old_files_aside_and_records_the_hole(cluster: Cluster, tmp_path: Path) -> None:
    master, behind = gap(cluster, tmp_path)
    old = (behind / "commitlog" / f"{0:020d}").read_bytes()
    slave = in_sync(cluster.slave(master, "--on-gap=reseed", store=behind))
    result = master.put(5)
    assert result["statuses"] == {OK: 5}
    assert_equal_logs(slave.store, master.store, SEGMENT_SIZE, result["end"])
    slave.stop_cleanly()
    (aside,) = (behind / "rmqha").glob(f"aside-*/{0:020d}")
    assert aside.read_bytes() == old
    state = slave.state()
    assert state is not None
    assert state.offsets.min == SEGMENT_SIZE


def test_a_master_drops_a_silent_slave_after_ha_housekeeping_interval(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT, *QUICK_HEARTBEATS)
    put(master)
    slave = cluster.synced_slave(master)
    slave.pause()
    assert put(master) == {TIMED_OUT: 1} or master.events(Event.SLAVE_SILENT), "while it is not dropped"
    wait_until(lambda: put(master) == {NOT_AVAILABLE: 1}, "the master to drop it")
    assert master.events(Event.SLAVE_SILENT, seconds=1)
    assert_all(master.put(5), NOT_AVAILABLE)
    slave.resume()
    put_until_ok(master)


def test_a_slave_drops_a_silent_master_after_ha_housekeeping_interval(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT)
    put(master)
    slave = cluster.synced_slave(master, *QUICK_HEARTBEATS)
    pause(master)
    slave.wait_for_event(Event.MASTER_SILENT)
    resume(master)
    put_until_ok(master)


# Whose word counts


@pytest.mark.story
def test_an_observer_copies_and_is_never_a_replica(cluster: Cluster) -> None:
    master = cluster.master(BOTH_TIMEOUT)
    put(master)
    observer = cluster.slave(master, "--observer")
    in_sync(observer)
    result = master.put(20, in_flight=20)
    assert result["statuses"] == {TIMED_OUT: 20}
    observer.wait_for_offset(result["end"])
    slave = cluster.synced_slave(master)
    result = master.put(20)
    assert result["statuses"] == {OK: 20}
    observer.wait_for_offset(result["end"])
    for copy in (observer, slave):
        copy.stop_cleanly()
        assert_equal_logs(copy.store, master.store, 0, result["end"])


def test_a_diverged_slave_completes_no_put_although_its_log_is_longer(cluster: Cluster, tmp_path: Path) -> None:
    """It asks for the start of its last message: that proves nothing of what lies before."""
    master = cluster.master("--set=slaveTimeout=3000", SMALL_SEGMENTS)
    put(master)
    paused = cluster.synced_slave(master)
    paused.pause()
    write_log(tmp_path / "other" / "commitlog", 30_000, 1000, SEGMENT_SIZE)
    master.tell(40, in_flight=40)
    diverged = cluster.slave(master, store=tmp_path / "other")
    diverged.wait_for_event(Event.SLAVE_VERDICT, state="DIVERGED")
    result = master.answer()
    assert result is not None
    assert result["end"] > 40_000
    assert result["statuses"] == {TIMED_OUT: 40}


@pytest.mark.story
def test_in_sync_replicas_3_wants_two_slaves_near_and_two_that_hold_the_message(cluster: Cluster) -> None:
    master = cluster.master(BOTH_TIMEOUT, "--set=inSyncReplicas=3")
    put(master)
    one, other = cluster.slave(master), cluster.slave(master)
    in_sync(one)
    in_sync(other)
    assert put(master, 50, in_flight=10) == {OK: 50}
    other.pause()
    result = master.put(3, in_flight=3)
    assert result["statuses"] == {TIMED_OUT: 3}
    assert_waited(result["latencies"]["max"], BOTH_TIMEOUT_S)
    other.kill()
    wait_until(lambda: put(master) == {NOT_AVAILABLE: 1}, "the master to see that a slave is gone")
    other.start()
    put_until_ok(master)


def test_min_in_sync_replicas_2_refuses_before_anything_is_written(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT, "--set=minInSyncReplicas=2")
    refused = master.put(5)
    assert_all(refused, NOT_ENOUGH)
    assert refused["end"] == 0
    assert put(master, wait=False) == {OK: 1}, "a sender who does not wait asks for no replica"
    observer = cluster.slave(master, "--observer")
    in_sync(observer)
    end = master.put(1, wait=False)["end"]
    observer.wait_for_offset(end)
    refused = master.put(5)
    assert_all(refused, NOT_ENOUGH)
    assert refused["end"] == end, "an observer is no replica"
    slave = cluster.synced_slave(master)
    end = master.put(5)["end"]
    slave.kill()
    wait_until(lambda: put(master) == {NOT_ENOUGH: 1}, "the master to see that the slave is gone")
    refused = master.put(5)
    assert_all(refused, NOT_ENOUGH)
    slave.start()
    put_until_ok(master)


def test_min_in_sync_replicas_2_lets_an_empty_pair_begin(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT, "--set=minInSyncReplicas=2")
    slave = cluster.slave(master)
    slave.wait_for_event(Event.TRANSFER_REQUESTED, request_offset=0)
    master.wait_for_event(Event.SLAVE_TRANSFER_STARTED, offset=0)
    assert put(master, 5) == {OK: 5}


def test_an_async_master_waits_for_nobody(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT, "--set=minInSyncReplicas=2", role="async-master")
    assert_all(master.put(20), OK)
    slave = cluster.synced_slave(master)
    slave.pause()
    assert_all(master.put(20), OK)


# Slaves of slaves


@pytest.mark.story
def test_three_cascaded_slaves_hold_the_masters_bytes_after_the_middle_one_died(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT, SMALL_SEGMENTS)
    put(master)
    first = cluster.synced_slave(master)
    middle = cluster.synced_slave(first, f"--port={free_port()}")
    last = cluster.synced_slave(middle)
    assert put(master, 500, in_flight=20) == {OK: 500}
    master.tell(800, rate=1500, in_flight=20)
    middle.kill()
    result = master.answer()
    assert result is not None
    assert result["statuses"] == {OK: 800}, "the master has its slave"
    assert result["end"] > 5 * SEGMENT_SIZE
    middle.start()
    for slave in (last, middle, first):
        slave.wait_for_offset(result["end"])
        slave.stop_cleanly()
        assert_equal_logs(slave.store, master.store, 0, result["end"])


# The disk beside the replica


def test_with_sync_flush_on_both_sides_put_ok_means_on_both_disks(cluster: Cluster) -> None:
    sync_flush = "--set=flushDiskType=SYNC_FLUSH"
    master = cluster.master(AMPLE_TIMEOUT, sync_flush)
    put(master)
    slave = cluster.synced_slave(master, sync_flush)
    result = master.put(50, in_flight=10)
    assert result["statuses"] == {OK: 50}
    slave.wait_for_tables()
    for node in (master, slave):
        offsets = json.loads(run("status", f"127.0.0.1:{node.port('remoting')}", "--json"))
        assert (offsets["flushed"], offsets["verified"]) == (result["end"], result["end"])


# Kills and pauses


def test_a_deadline_is_kept_to_the_moment_for_each_request_by_itself(cluster: Cluster) -> None:
    master = cluster.master(SHORT_TIMEOUT)
    put(master)
    slave = cluster.synced_slave(master)
    slave.pause()
    master.tell(100, in_flight=100, rate=200, each=True)
    answered = answers(master)
    assert statuses_of(answered) == {TIMED_OUT: 100}
    for answer in answered:
        assert_waited(answer["seconds"], SLAVE_TIMEOUT_S)


@pytest.mark.story
def test_a_master_killed_under_load_confirmed_only_what_its_slave_holds(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT, SMALL_SEGMENTS, port=free_port())
    put(master)
    slave = cluster.synced_slave(master)
    master.tell(1_000_000, in_flight=64, each=True)
    answered = answers(master, at_most=3000)
    master.kill()
    answered += answers(master)
    assert statuses_of(answered) == {OK: len(answered)}
    promised = promised_end(answered)
    slave.wait_for_state(lambda state: state.state != ReplicaState.IN_SYNC.name, "noticing that the master is gone")
    status = run("status", f"127.0.0.1:{slave.port('remoting')}", "--json", code=ExitCode.CANNOT_CONNECT)
    assert int(json.loads(status)["verified"]) >= promised
    assert_equal_logs(slave.store, master.store, 0, promised)

    master.start()
    put_until_ok(master)
    result = master.put(100, in_flight=10)
    assert result["statuses"] == {OK: 100}
    slave.stop_cleanly()
    assert_equal_logs(slave.store, master.store, 0, result["end"])
    assert {answer["number"] for answer in answered} <= set(numbers_in(slave.store))


@pytest.mark.story
def test_a_slave_that_is_killed_under_load_and_comes_back_has_all_that_was_promised(cluster: Cluster) -> None:
    master = cluster.master(BOTH_TIMEOUT, SMALL_SEGMENTS)
    put(master)
    slave = cluster.synced_slave(master)
    master.tell(1500, in_flight=32, rate=1000, each=True)
    answered = answers(master, at_most=300)
    slave.kill()
    answered += answers(master)
    if set(statuses_of(answered)) == {OK}:  # all puts were answered before the kill
        master.tell(50, in_flight=10, each=True)
        answered += answers(master)
    master.tell(1500, in_flight=32, rate=1000, each=True)
    slave.start()
    answered += answers(master)
    put_until_ok(master)
    result = master.put(100, in_flight=10)
    assert result["statuses"] == {OK: 100}
    promised = [answer["number"] for answer in answered if answer["status"] == OK]
    assert len(promised) >= 250
    assert set(statuses_of(answered)) <= {OK, TIMED_OUT, NOT_AVAILABLE}
    assert len(statuses_of(answered)) > 1, "the kill was noticed"
    slave.stop_cleanly()
    assert_equal_logs(slave.store, master.store, 0, result["end"])
    assert set(promised) <= set(numbers_in(slave.store))


def test_a_master_that_is_paused_answers_all_that_waits_when_it_goes_on(cluster: Cluster) -> None:
    master = cluster.master(BOTH_TIMEOUT)
    put(master)
    cluster.synced_slave(master)
    master.tell(2000, in_flight=32, rate=4000, each=True)
    answered = answers(master, at_most=100)
    pause(master)
    time.sleep(BOTH_TIMEOUT_S + 0.2)  # beyond all deadlines: there is nothing to wait for
    resume(master)
    answered += answers(master)
    assert len(answered) == 2000
    assert set(statuses_of(answered)) <= {OK, TIMED_OUT}
    assert put(master, 20) == {OK: 20}


def test_a_master_that_is_told_to_stop_answers_what_waits(cluster: Cluster) -> None:
    master = cluster.master(AMPLE_TIMEOUT)
    put(master)
    slave = cluster.synced_slave(master)
    slave.pause()
    end = commit_log_end(master.store)
    master.tell(5, in_flight=5, each=True)
    wait_until(lambda: commit_log_end(master.store) > end + 4 * BODY_BYTES, "the puts to be in the log")
    assert master.stop() == 0
    assert statuses_of(answers(master)) == {TIMED_OUT: 5}


# What readers outside may take for safe


@pytest.mark.story
def test_confirmed_is_what_slaves_have_confirmed_also_after_a_restart(cluster: Cluster) -> None:
    master = cluster.master(BOTH_TIMEOUT, port=free_port())
    put(master)
    slave = cluster.synced_slave(master)
    result = master.put(20)
    assert result["statuses"] == {OK: 20}
    confirmed = result["end"]
    slave.pause()
    end = master.put(5, in_flight=5)["end"]

    def assert_confirmed() -> None:
        state = master.state()
        assert state is not None
        assert (state.offsets.confirmed, state.offsets.flushed) == (confirmed, end)

    assert master.stop() == 0
    assert_confirmed()
    slave.kill()
    master.start()
    assert put(master) == {NOT_AVAILABLE: 1}
    end = master.put(1)["end"]
    assert master.stop() == 0
    assert_confirmed()

    master.start()
    slave.start()
    put_until_ok(master)
    end = confirmed = master.put(1)["end"]
    assert master.stop() == 0
    assert_confirmed()
