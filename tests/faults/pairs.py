"""A master and slaves of ours, a faulty network between them, and what must be true of them whatever it does."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqha.kit.events import Event
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.nodes import TwistdNode, free_port, logged_events
from rmqha.testing.proxy import Facts, FaultProxy, SeenReport
from rmqha.testing.records import write_log
from rmqha.wire.record import Record
from rmqha.wire.transfer import TRANSFER_HEADER

HOUSEKEEPING_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.5


def short_times(scale: int = 1) -> tuple[str, ...]:
    """A tenth of what is usual, times ``scale``: a fault is as long as it is in proportion to these."""
    times = {"haHousekeepingInterval": HOUSEKEEPING_SECONDS, "haSendHeartbeatInterval": HEARTBEAT_SECONDS}
    return tuple(f"--set={name}={int(1000 * scale * seconds)}" for name, seconds in times.items())


SHORT_TIMES = short_times()
SEGMENT_SIZE = 1 << 20
BATCH_BYTES = 32 * 1024
BODY_BYTES = 1000
FREE_PORTS = "--port=0"
POLL_SECONDS = 0.02
SHIM = Path(__file__).with_name("shim")


def shim(name: str, file: Path) -> list[str]:
    """A prefix that gives a node the wall clock (``CLOCK``) or the table of hosts (``HOSTS``) that a file tells.

    With ``FULL`` the node's disk is full while the file exists.
    """
    path = os.pathsep.join([str(SHIM), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ["env", f"PYTHONPATH={path}", f"RMQHA_SHIM_{name}={file}"]


class Disturbed(AssertionError):
    """A connection was lost that should not be. A machine that stands still for long enough does this, too.

    ``scenarios`` tries the scenario again with longer times: a node that is wrong loses its connection then, too.
    """


class MasterLog:
    """The log that a master serves: its store, its content and end, and where its messages begin and end."""

    def __init__(self, store: Path, total_bytes: int, body_bytes: int = BODY_BYTES) -> None:
        self.store = store
        write_log(store / "commitlog", total_bytes, body_bytes, SEGMENT_SIZE)
        reader = StoreReader(store)
        try:
            records = list(reader.records(0, None))
        finally:
            reader.close()
        self._messages = [(at, at + one.total_size) for at, one in records if isinstance(one, Record)]
        at, last = records[-1]
        self.end = at + (last.total_size if isinstance(last, Record) else last.size)
        self.boundaries = {1, self.end, *(at for at, _ in records)}
        self.content = log_of(store)[: self.end]

    def copied_to(self, store: Path) -> "MasterLog":
        """The same log in another store."""
        shutil.copytree(self.store, store)
        other = copy(self)
        other.store = store
        return other

    def last_message_before(self, end: int) -> int:
        """Where the last message begins that ends at ``end`` or before; 0 if there is none."""
        return max((at for at, behind in self._messages if behind <= end), default=0)

    def prefix(self, size: int) -> int:
        """The greatest end of a message that is at most ``size``, or 0."""
        return max((behind for _, behind in self._messages if behind <= size), default=0)


def log_of(store: Path) -> bytes:
    """All bytes of a store's segments."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def assert_sound(node: TwistdNode) -> None:
    """It said nothing on stderr, and logged no error and no traceback."""
    assert node.errors() == []
    complaints = [event for event in node.events() if event["level"] in ("error", "critical") or "traceback" in event]
    assert complaints == []


@dataclass
class Pair:
    """A running master, a proxy before its HA port, and the log that it serves."""

    work: Path
    log: MasterLog
    master: TwistdNode
    proxy: FaultProxy
    stack: ExitStack
    scale: int = 1
    slaves: int = 0

    @property
    def housekeeping_seconds(self) -> float:
        """After so long without a word an end drops the connection."""
        return self.scale * HOUSEKEEPING_SECONDS

    def check_connections(self, number: int = 1) -> None:
        """The slaves connected so often, and not again. Raises Disturbed."""
        accepted = self.proxy.facts().accepted
        if accepted != number:
            raise Disturbed(f"{accepted} connections came, not {number}")

    def slave(
        self,
        *options: str,
        store: Path | None = None,
        prefix: Sequence[str] = (),
        twistd_options: Sequence[str] = ("--pidfile=",),
        master: str | None = None,
    ) -> TwistdNode:
        """Start a slave behind the proxy, or elsewhere; its questions go to the master's remoting port directly."""
        self.slaves += 1
        remoting = f"127.0.0.1:{self.master.port('remoting')}"
        own = ["--role=slave", f"--master={master or self.proxy.address}", f"--master-remoting={remoting}", FREE_PORTS]
        node = TwistdNode(
            self.work,
            [*own, *short_times(self.scale), *options],
            store,
            f"slave-{self.slaves}",
            prefix=prefix,
            twistd_options=twistd_options,
        )
        self.stack.callback(node.kill)
        return node.start()

    def slave_with_half(self, *options: str, **more: Any) -> TwistdNode:
        """A slave that has half of the log and part of a frame, and gets no more for now."""
        end, frames = SEGMENT_SIZE + 8 * BATCH_BYTES, SEGMENT_SIZE // BATCH_BYTES + 8
        connections = self.proxy.facts().accepted + 1
        self.proxy.let_through(end - 1 + frames * TRANSFER_HEADER.size + BATCH_BYTES // 2)
        slave = self.slave(*options, **more)
        self.proxy.wait_until_passed()
        self.wait_for_report_on(connections, self.log.prefix(end))
        return slave

    def wait_for_report(self, offset: int) -> None:
        """Wait until a slave has reported so much."""
        self.proxy.wait_until(lambda facts: (facts.reported or 0) >= offset, f"a report of {offset}")

    def wait_for_report_on(self, connections: int, offset: int) -> None:
        """Wait until a slave has reported so much, on the last of so many connections.

        Where the proxy lets only so many bytes through, another connection would need more of them. Raises Disturbed.
        """

        def has_reported(facts: Facts) -> bool:
            return (facts.reported or 0) >= offset

        facts = self.proxy.wait_until(
            lambda facts: has_reported(facts) or facts.accepted > connections, f"a report of {offset}"
        )
        if not has_reported(facts):
            raise Disturbed(f"{facts.accepted} connections came, not {connections}, before {offset} was reported")

    def stop_and_check(self, slave: TwistdNode, every_report_was_seen: bool = True) -> None:
        """The slave gets all, stops cleanly, and its log is the master's; so was whatever it reported."""
        self.wait_for_report(self.log.end)
        assert slave.stop() == 0
        assert_sound(slave)
        self.check_copy(slave, self.log.end)
        self.check_reports(slave, every_report_was_seen)

    def check_copy(self, slave: TwistdNode, end: int) -> None:
        """The log of a slave that stopped is the master's up to ``end``, and ends there."""
        state = slave.state()
        assert state is not None
        assert (state.state, state.offsets.verified, state.offsets.flushed) == ("STOPPED", end, end)
        copied = log_of(slave.store)
        assert copied[:end] == self.log.content[:end]
        assert not any(copied[end:])

    def check_killed(self, slave: TwistdNode) -> int:
        """A slave was killed: its log holds the master's bytes as far as it reported. Gives how far that is."""
        self.proxy.wait_until_quiet()
        reported = self.proxy.facts().reported or 0
        assert log_of(slave.store)[:reported] == self.log.content[:reported]
        return reported

    def check_reports(self, slave: TwistdNode, every_one_was_seen: bool = True) -> None:
        """On each connection reports never go back; each connection went on exactly where the last one had come to.

        Where some were lost before the proxy, a slave may be farther than it seems. Each report is the end of a record.
        After an unclean stop, a slave compares all that may not have reached its disk: it asks from there, and reports
        any byte of what it compares.
        """
        doubts = logged_events(slave.log_path, Event.LOG_END_UNPROVED)
        earlier = {max(1, doubt["start"]) for doubt in doubts}
        compared_end = max((doubt["end"] for doubt in doubts), default=0)
        reached = 0
        for reports in by_connection(self.proxy.reports):
            if reports == [0]:
                continue  # a probe
            assert reports == sorted(reports)
            first, expected = reports[0], self.log.last_message_before(reached) or 1
            compares = first in earlier
            ends = [report for report in reports if not (compares and report < compared_end)]
            assert self.log.boundaries.issuperset(ends), (reports, doubts)
            went_on = first == expected or (first > expected and not every_one_was_seen)
            assert went_on or compares, (first, reached, doubts)
            reached = max(reached, *reports)
        assert reached <= self.log.end


def by_connection(reports: list[SeenReport]) -> list[list[int]]:
    """The offsets of each connection that reported, in the order of the connections."""
    numbers = sorted({report.connection for report in reports})
    return [[report.offset for report in reports if report.connection == number] for number in numbers]


@contextmanager
def start_pair(
    work: Path, log: MasterLog, *master_options: str, prefix: Sequence[str] = (), scale: int = 1
) -> Iterator[Pair]:
    """A pair without slaves; all that it starts ends with it. Its times are ``scale`` times the short ones.

    The master keeps its ports if it starts again: while it is down, no other process listens where slaves ask.
    """
    with ExitStack() as stack:
        options = ["--role=async-master", f"--port={free_port()}", *short_times(scale), *master_options]
        master = stack.enter_context(TwistdNode(work, options, log.store, "master", prefix=prefix))
        proxy = stack.enter_context(FaultProxy(f"127.0.0.1:{master.port()}"))
        master.port("fast remoting")
        yield Pair(work, log, master, proxy, stack, scale)


def anonymous_kib(pid: int) -> int:
    """The memory of a process that is no file's."""
    return status_kib(pid, "RssAnon")


def status_kib(pid: int, field: str) -> int:
    """A line of /proc/PID/status that is in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(f"/proc/{pid}/status has no {field}")


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
