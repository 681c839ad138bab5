"""What must hold after every step and every fault. The oracle looks at disks and offsets, and believes no node."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rmqha.settings.settings import BrokerRole, FlushDiskType
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.message import PutMessageResult, PutMessageStatus
from rmqha.store.nodestate import NodeState
from rmqha.testing.sim.audit import check_derived, undelivered
from rmqha.testing.sim.nodes import SimNode
from rmqha.testing.sim.violation import Violation

CLOCK_ERROR_SECONDS = 0.001


@dataclass
class Put:
    """A message put into the master, and the answer, if there is one yet."""

    number: int
    node: SimNode
    waits: bool
    put_time: float = 0.0
    result: PutMessageResult | None = None

    @property
    def status(self) -> PutMessageStatus | None:
        """How it ended, None if it did not."""
        return None if self.result is None else self.result.status

    @property
    def end(self) -> int:
        """The offset that follows its record."""
        assert self.result is not None
        assert self.result.append is not None
        return self.result.append.wrote_offset + self.result.append.wrote_bytes


@dataclass
class Promise:
    """Up to where a node's log must reach when it is opened the next time: as it is, and if power is lost before."""

    after_kill: int = 0
    after_power_loss: int = 0


@dataclass
class Seen:
    """What was last seen of a node's log. ``compared`` is the end of what was found to be the master's."""

    min_offset: int = 0
    verified: int = 0
    compared: int = 0
    promise: Promise = field(default_factory=Promise)
    data_lost_at: float = -1.0
    folders_renamed: int = 0
    truncations: int = 0
    epoch: int = 0
    reported: int = 0
    """Up to where the bytes on its disk were those of ``source``, a history, when it last reported."""
    source: bytearray | None = None
    reported_of: tuple[int, ...] = ()
    """Which log that was: see ``checked``."""
    checked: tuple[int, ...] = ()
    """The offsets, and how often the log was cut and renamed, at the last look."""


class Oracle:
    """``histories`` are the logs that masters have written: a master may lose its tail, and another take its place."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self.histories: list[bytearray] = [bytearray()]
        self._written: dict[str, bytearray] = {}
        """The history of each master that runs, or ran last, by its name."""
        self._epochs: dict[str, int] = {}
        """The highest epoch in which each node has acted."""
        self._said: dict[str, NodeState | None] = {}
        self._found: dict[str, bytes] = {}
        """What was in the log's files when a node was started."""

    def seen(self, node: SimNode) -> Seen:
        """What is known of the node."""
        found = self._seen.get(node.name)
        if found is None:
            found = self._seen[node.name] = Seen()
        return found

    def down(self, node: SimNode) -> None:
        """The node's process has ended; what it had reached is what it must have again."""
        if node.store is not None:
            began_anew = node.disk.folders_renamed != self.seen(node).folders_renamed
            promise = Promise() if began_anew else _promise(node.store.commit_log)
            self.seen(node).promise = promise
            if node.is_master and node.name in self._written:  # else it is just being opened, with a violation
                self._note_growth(node)

    def lost_power(self, node: SimNode, now: float) -> None:
        """What is not durable is gone."""
        seen = self.seen(node)
        seen.promise.after_kill = seen.promise.after_power_loss
        seen.data_lost_at = now

    def rotted(self, node: SimNode, start: int, now: float) -> None:
        """The node's bytes from ``start`` on are not what was written: only a repair can bring them."""
        promise = self.seen(node).promise
        self.seen(node).promise = Promise(min(promise.after_kill, start), min(promise.after_power_loss, start))
        self.seen(node).data_lost_at = now

    def wiped(self, node: SimNode, now: float) -> None:
        """The node's disk is empty."""
        self._seen[node.name] = Seen(data_lost_at=now)
        self._epochs.pop(node.name, None)
        self._written.pop(node.name, None)
        if node.is_master:
            self.histories.append(bytearray())

    def starting(self, node: SimNode) -> None:
        """The node will recover: note what its log has, and what its state.json says, which others may have read."""
        self._found[node.name] = self._log_bytes(node)
        self._said[node.name] = NodeState.read(node.settings.store_path_root_dir, node.disk)

    @staticmethod
    def _log_bytes(node: SimNode) -> bytes:
        """The whole log as its files are now, from where its first one begins."""
        folder, size = node.settings.commit_log_folder, node.settings.mapped_file_size_commit_log
        assert size is not None
        bases = [base for base, _ in node.disk.list_segments(folder)]
        return node.disk.bytes_at(folder, size, bases[0], bases[-1] + size, durable=False) if bases else b""

    def not_repaired(self, node: SimNode) -> None:
        """The node cannot open its log as it is: each byte is as it was, or one that its master has written.

        A file that has lost its size with the power may have it again: its bytes are zero.
        """
        before, now = self._found[node.name], self._log_bytes(node)
        start = next((base for base, _ in node.disk.list_segments(node.settings.commit_log_folder)), 0)
        for at, byte in enumerate(now, start):
            was = before[at - start : at - start + 1] or b"\0"
            if was != bytes([byte]) and not any(written[at : at + 1] == bytes([byte]) for written in self.histories):
                raise Violation(f"{node.name} has not repaired its log, and changed its byte at {at}")

    def _check_epoch(self, node: SimNode) -> None:
        assert node.store is not None
        said, log, epoch = self._said.get(node.name), node.log, node.store.node_state.epoch
        acted = self._epochs.get(node.name, 0)
        if epoch < acted:
            raise Violation(f"{node.name} has acted in epoch {acted}, and goes on in epoch {epoch}")
        self._epochs[node.name] = epoch
        if said is not None and log.verified_offset < said.confirmed_offset and epoch <= said.epoch:
            raise Violation(
                f"{node.name} said that {said.confirmed_offset} was confirmed, goes on at {log.verified_offset}, and "
                f"still is in epoch {epoch}"
            )

    def opened(self, node: SimNode) -> None:
        """The node has recovered."""
        seen, log = self.seen(node), node.log
        assert node.store is not None
        self._check_epoch(node)
        if log.verified_offset < seen.promise.after_kill:
            raise Violation(f"{node.name} had {seen.promise.after_kill} for sure, and recovered {log.verified_offset}")
        self._check_sound(node)
        self._check_cut(node, log.verified_offset)
        check_derived(node.name, node.store)
        self._open_history(node)
        self._seen[node.name] = Seen(
            log.min_offset,
            log.verified_offset,
            data_lost_at=seen.data_lost_at,
            folders_renamed=node.disk.folders_renamed,
            truncations=log.truncations,
            epoch=node.store.node_state.epoch,
        )
        self.check(node)

    def _check_sound(self, node: SimNode) -> None:
        """A log that was just recovered ends where its records end."""
        log = node.log
        if log.max_offset != log.verified_offset:
            raise Violation(f"{node.name} recovered to {log.verified_offset} and kept bytes up to {log.max_offset}")

    @staticmethod
    def _check_cut(node: SimNode, start: int) -> None:
        """What was cut is gone from the disk too: without power it would come again, and pass for records."""
        log, end = node.log, node.log.max_offset + 2 * node.log.segment_size
        durable, written = (
            node.disk.bytes_at(log.folder, log.segment_size, start, end, durable) for durable in (True, False)
        )
        for at, byte in enumerate(durable):
            if byte and (at >= len(written) or byte != written[at]):
                raise Violation(f"{node.name} has cut its log at {start}, and its disk still has byte {start + at}")

    def check_at_rest(self, node: SimNode, clock_is_true: bool) -> None:
        """Queues and index of a node that has dispatched all agree with its log; of a master all delays are over."""
        assert node.store is not None
        if behind := node.store.derived.dispatcher.behind_bytes:
            raise Violation(f"{node.name} has not dispatched {behind} bytes of its log")
        check_derived(node.name, node.store)
        if node.is_master and (late := undelivered(node.log, clock_is_true)):
            raise Violation(f"delayed messages are not delivered: {', '.join(late)}")

    def check(self, node: SimNode) -> None:
        """A running node's log is the master's, and does not shrink."""
        seen, log = self.seen(node), node.log
        now = log.min_offset, log.verified_offset, log.truncations, node.disk.folders_renamed
        if now == seen.checked:  # as after most steps
            return
        self._check_change(node, seen)
        seen.checked = now

    def _check_change(self, node: SimNode, seen: Seen) -> None:
        log = node.log
        if node.is_master:
            self._note_growth(node)
        if _shrank(log, seen) and not self._began_anew(node, seen):
            raise Violation(
                f"{node.name}'s log went from {seen.min_offset}..{seen.verified} to "
                f"{log.min_offset}..{log.verified_offset}"
            )
        if log.truncations != seen.truncations:
            seen.truncations = log.truncations
            self._check_cut(node, log.verified_offset)
        if log.min_offset != seen.min_offset:
            seen.compared = 0
        if log.verified_offset > seen.compared:
            self._compare(node, max(seen.compared, log.min_offset))
            seen.compared = log.verified_offset
        seen.min_offset, seen.verified = log.min_offset, log.verified_offset

    @staticmethod
    def _began_anew(node: SimNode, seen: Seen) -> bool:
        """Whether the log was empty, or has been set aside since it was last seen."""
        assert node.store is not None
        before, seen.folders_renamed = seen.folders_renamed, node.disk.folders_renamed
        if before != seen.folders_renamed and seen.verified > seen.min_offset:
            if node.store.node_state.epoch <= seen.epoch:
                raise Violation(f"{node.name} has set its log aside, and still is in epoch {seen.epoch}")
            seen.epoch = node.store.node_state.epoch
        return before != seen.folders_renamed or seen.verified == seen.min_offset

    def _open_history(self, node: SimNode) -> None:
        """A master goes on with what it has; what it has lost stays in the history that it had before."""
        if not node.is_master:
            self._written.pop(node.name, None)
            return
        written, end = self._written.get(node.name), node.log.verified_offset
        if written is None or end < len(written):
            self._written[node.name] = (written or self._history_of(node))[:end]
            self.histories.append(self._written[node.name])

    def _history_of(self, node: SimNode) -> bytearray:
        """A history that begins as the node's log does."""
        log = node.log
        start, end = log.min_offset, log.verified_offset
        ours = content(log, start, end)
        found = (written for written in reversed(self.histories) if len(written) >= end and written[start:end] == ours)
        return next(found, bytearray())  # the check of its log says what is wrong if there is none

    def written_by(self, node: SimNode) -> bytearray:
        """What a master has written, and what was in its log when it became one."""
        return self._written[node.name]

    def _note_growth(self, master: SimNode) -> None:
        """What the master has proved is what it has written."""
        log, written = master.log, self._written[master.name]
        if log.verified_offset > len(written):
            written += content(log, len(written), log.verified_offset)

    def _compare(self, node: SimNode, start: int) -> None:
        """The proved log is the beginning of one that the master has written."""
        end = node.log.verified_offset
        if end == node.log.min_offset:
            return
        for first in (start, node.log.min_offset):
            ours = content(node.log, first, end)
            on_disk = node.disk.bytes_at(node.log.folder, node.log.segment_size, first, end, durable=False)
            if on_disk != ours:
                raise Violation(f"{node.name} shows other bytes from {first} to {end} than its disk has")
            if any(len(written) >= end and written[first:end] == ours for written in reversed(self.histories)):
                return
        raise Violation(
            f"{node.name} holds bytes between {node.log.min_offset} and {end} that the master did not write"
        )

    def reported(self, node: SimNode, offset: int) -> None:
        """A slave reports how far it is, or from where it wants bytes to repair its log."""
        if node.repairs:
            folder = node.settings.commit_log_folder
            first = next((base for base, _ in node.disk.list_segments(folder)), 0)
            if offset > 1 and not self._holds(node, first, offset):
                raise Violation(f"{node.name} repairs its log and reports {offset}, which is not on its disk")
            return
        log = node.log
        if offset <= max(1, log.min_offset):
            return  # where an empty log wants to begin; byte 0 is zero in every log
        if offset > log.verified_offset:
            raise Violation(f"{node.name} reports {offset}, it has proved {log.verified_offset}")
        if not self._holds_more(node, offset):
            raise Violation(f"{node.name} reports {offset}, which is not on its disk")

    def _holds_more(self, node: SimNode, offset: int) -> bool:
        """Whether the node's disk has what a master has written up to there. What was looked at before is not again."""
        seen, log = self.seen(node), node.log
        which = log.min_offset, log.truncations, node.disk.folders_renamed
        if which != seen.reported_of:
            seen.reported_of, seen.source = which, None
        source, start = seen.source, seen.reported
        if (
            source is None
            or not start <= offset <= len(source)
            or source[start:offset] != self._on_disk(node, start, offset)
        ):
            source = self._source_of(node, log.min_offset, offset)
        seen.reported, seen.source = offset, source
        return source is not None

    def _holds(self, node: SimNode, start: int, end: int) -> bool:
        """Whether the node's disk has what a master has written there, as surely as the node promises."""
        return self._source_of(node, start, end) is not None

    def _source_of(self, node: SimNode, start: int, end: int) -> bytearray | None:
        """The newest history that has what the node's disk has there."""
        found = self._on_disk(node, start, end)
        fitting = (written for written in reversed(self.histories) if len(written) >= end)
        return next((written for written in fitting if written[start:end] == found), None)

    @staticmethod
    def _on_disk(node: SimNode, start: int, end: int) -> bytes:
        """The node's log between two offsets, durably if that is what the node promises."""
        durable = node.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        size = node.settings.mapped_file_size_commit_log
        assert size is not None
        return node.disk.bytes_at(node.settings.commit_log_folder, size, start, end, durable)

    def has_put(self, node: SimNode, put: Put) -> bool:
        """Whether the node's disk has the bytes of this put: not those that another master wrote at that offset."""
        assert put.result is not None
        assert put.result.append is not None
        start = put.result.append.wrote_offset
        return self._on_disk(node, start, put.end) == self.written_by(put.node)[start : put.end]

    def put_answered(self, put: Put, slaves: list[SimNode], other_acks: list[int], now: float) -> None:
        """A PUT_OK is on enough nodes: durably where they flush before they say so, else safe from a kill.

        ``other_acks`` are the offsets that bogus slaves have acknowledged. A timeout is given when its time is over.
        """
        self._check_timeout(put, now)
        if put.status is not PutMessageStatus.PUT_OK:
            return
        assert put.result is not None
        assert put.result.append is not None
        master = put.node
        self._note_growth(master)
        start, end = put.result.append.wrote_offset, put.end
        settings = master.settings
        if master.log.min_offset > start:
            return  # it was deleted since
        if put.waits and not self.has_put(master, put):
            raise Violation(f"put {put.number} is PUT_OK and not on the master's disk")
        if not put.waits or settings.broker_role is not BrokerRole.SYNC_MASTER:
            return
        needed = settings.in_sync_replicas - 1
        holders = [
            slave.name for slave in slaves if self.has_put(slave, put) or self.seen(slave).data_lost_at >= put.put_time
        ]
        holders += ["bogus" for offset in other_acks if offset >= end]
        if len(holders) < needed:
            raise Violation(
                f"put {put.number} ({start}..{end}) is PUT_OK; {needed} slaves should hold it: {holders or 'none does'}"
            )
        self.acknowledged(put, slaves, needed)

    def acknowledged(self, put: Put, slaves: list[SimNode], needed: int) -> None:
        """A put is on all the nodes that it should be on."""

    def _check_timeout(self, put: Put, now: float) -> None:
        store, settings = put.node.store, put.node.settings
        if store is None or store.is_broken or put.node.stopping:
            return  # all waits are given up
        timeout_ms = {
            PutMessageStatus.FLUSH_DISK_TIMEOUT: settings.sync_flush_timeout_ms,
            PutMessageStatus.FLUSH_SLAVE_TIMEOUT: settings.slave_timeout_ms,
        }.get(put.status or PutMessageStatus.PUT_OK, 0)
        if now - put.put_time < timeout_ms / 1000 - CLOCK_ERROR_SECONDS:
            raise Violation(f"put {put.number} is {put.status} after {now - put.put_time:g} s, not {timeout_ms} ms")

    def check_unanswered(self, put: Put, now: float) -> None:
        """A put that is not answered is still allowed to wait."""
        settings = put.node.settings
        most_ms = max(settings.sync_flush_timeout_ms, settings.slave_timeout_ms)
        if now - put.put_time > most_ms / 1000 + CLOCK_ERROR_SECONDS:
            raise Violation(f"put {put.number} is not answered after {now - put.put_time:g} s")

    @staticmethod
    def equal(node: SimNode, master: SimNode) -> bool:
        """Whether the slave has the log that this master, or slave, has now."""
        ours, theirs = node.log, master.log
        if ours.verified_offset != theirs.verified_offset:
            return False
        start = max(ours.min_offset, theirs.min_offset)
        return content(ours, start, ours.verified_offset) == content(theirs, start, ours.verified_offset)

    @staticmethod
    def fits(node: SimNode, master: SimNode) -> bool:
        """Whether the slave could go on from what it has: its log is empty, or agrees with what its master has."""
        ours, theirs = node.log, master.log
        end = ours.verified_offset
        if end == ours.min_offset:
            return True
        if not theirs.min_offset <= end <= theirs.verified_offset:
            return False
        start = max(ours.min_offset, theirs.min_offset)
        return content(ours, start, end) == content(theirs, start, end)


def content(log: CommitLog, start: int, end: int) -> bytes:
    """The log's bytes of these offsets."""
    return b"".join(_pieces(log, start, end))


def _pieces(log: CommitLog, start: int, end: int) -> Iterator[memoryview]:
    while start < end:
        piece = log.get_data(start, end - start)
        if piece is None:
            raise Violation(f"the log has nothing at {start}, {end} is its end")
        yield piece
        start += len(piece)


def _promise(log: CommitLog) -> Promise:
    """What is there to be lost: whole records, and nothing of an empty log."""
    flushed = min(log.verified_offset, log.flushed_offset)
    start = max([log.min_offset, *log.segment_bases[:1]])  # its first segment may be about to be deleted
    flushed = log.scan(start, flushed).end if flushed > start else 0
    return Promise(*(end if end > log.min_offset else 0 for end in (log.verified_offset, flushed)))


def _shrank(log: CommitLog, seen: Seen) -> bool:
    return log.min_offset < seen.min_offset or log.verified_offset < seen.verified
