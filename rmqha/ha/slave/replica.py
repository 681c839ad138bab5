"""What a slave decides: where to start, what to accept, what to report. No sockets and no clocks.

Each connection starts a little before our own end, so the master sends again some bytes that we already hold (the
overlap). We compare them, and so detect a diverged log before we append a byte of it. This works with every master.

The HA channel shows only heartbeats in three cases: the master never had the bytes that we request, it has deleted
them, or it is slow. ``MasterView`` holds what else is known, to tell these cases apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from struct import Struct

from rmqha.ha.slave.states import COPYING, VERDICTS, ReplicaState, check_transition
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.interfaces import ICommitLog
from rmqha.wire.layout import BLANK_MAGIC_CODE
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH
from rmqha.wire.transfer import Transfer

OVERLAP_LIMIT_BYTES = 8 * 1024 * 1024
"""The maximum overlap: how much of our own log a new connection requests again."""
IN_SYNC_LAG_BYTES = 4 * 1024 * 1024
"""A slave that is in sync is catching up again when its lag is larger than this."""
CORRUPT_TRANSFERS_UNTIL_DIVERGED = 3
BLANK_HEAD = Struct(">ii")
REFUSALS_THAT_PROVE_DELETION = 2
"""Connections in a row that ask for doubted bytes and get none."""
HEARTBEATS_THAT_PROVE_SILENCE = 2
"""A master with data to send may send one heartbeat (after a slow handshake or write), but never two in a row."""


class ReplicaError(Exception):
    """This connection cannot go on. The text tells an operator why. ``event`` is its name in the log."""

    event = Event.CONNECTION_GIVEN_UP


class PeerBreach(ReplicaError):
    """The peer violates the protocol."""

    def __init__(self, message: str, event: Event = Event.MASTER_BROKE_PROTOCOL) -> None:
        super().__init__(message)
        self.event = event


class CorruptTransfer(ReplicaError):
    """The peer's bytes are not a valid record."""

    event = Event.CORRUPT_TRANSFER


class Misfit(ReplicaError):
    """This master cannot be copied with our configuration. Trying again does not help."""


class UnsupportedMaster(Misfit):
    """The master uses another replication protocol, which rmqha does not support."""


class SegmentSizeUnknown(Misfit):
    """The master's segment size differs from ours. It is not configured, and the master does not give it."""


class Verdict(ReplicaError):
    """The two logs do not fit together."""

    state: ReplicaState
    exit_code: ExitCode


class Gap(Verdict):
    """The master's log starts after our end."""

    state = ReplicaState.GAP
    exit_code = ExitCode.GAP

    def __init__(self, message: str, master_min_offset: int | None) -> None:
        super().__init__(message)
        self.master_min_offset = master_min_offset


class Ahead(Verdict):
    """The master's log ends before ours."""

    state = ReplicaState.AHEAD
    exit_code = ExitCode.AHEAD


class Diverged(Verdict):
    """The master's bytes differ from ours. ``noticed_at`` is the offset of a byte that differs, None if none was seen.

    It need not be the first one: a connection compares only the end of our log.
    """

    state = ReplicaState.DIVERGED
    exit_code = ExitCode.DIVERGED

    def __init__(self, message: str, noticed_at: int | None = None) -> None:
        super().__init__(message)
        self.noticed_at = noticed_at


@dataclass(frozen=True, slots=True)
class MasterView:
    """What is known about the master's log; None for what is not known.

    ``min_offset`` and ``max_offset`` come from its remoting port; both are 0 for an empty log. ``last_segment_offset``
    is the start of its last segment, and comes from a probe of its HA port. ``derived_file_settings`` are the master's
    settings for the sizes of queue and index files, by key. We use the same sizes, so that a broker with the master's
    settings can open our files. ``warning`` is what an operator should know about the master's settings.
    ``settling_seconds`` is how long its puts may wait for slaves.
    """

    min_offset: int | None = None
    max_offset: int | None = None
    last_segment_offset: int | None = None
    segment_size: int | None = None
    derived_file_settings: Mapping[str, str] = field(default_factory=dict)
    warning: str | None = None
    settling_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Where an empty slave starts: at the master's min offset, at its last segment, or at an offset's segment."""

    offset: int | None = None
    last: bool = False

    @classmethod
    def parse(cls, text: str) -> "StartFrom":
        """Parse ``min``, ``last`` or an offset. Raises ValueError."""
        if text == "min":
            return cls()
        if text == "last":
            return cls(last=True)
        if not text.isdecimal():
            raise ValueError(f"from is {text!r}, not min, last or an offset")
        return cls(offset=int(text))


class Replica:
    """The slave's side of the HA protocol. It alone decides what is appended to the slave's log.

    ``state_changed`` is called with the new state and a reason after each change.
    """

    def __init__(
        self,
        commit_log: ICommitLog,
        start_from: StartFrom,
        state_changed: Callable[[ReplicaState, str], None],
    ) -> None:
        self._commit_log = commit_log
        self._start_from = start_from
        self._state_changed = state_changed
        self.state = ReplicaState.CONNECTING
        self.master = MasterView()
        self._overlap_from = 0  # where the comparison with the master starts on this connection
        self._next: int | None = None  # where the next transfer starts; None: the master chooses
        self._pending: list[bytes | memoryview] = []  # received and not yet written; empty between two reads
        self._connected = False
        self._heartbeats_in_a_row = 0
        self._corrupt_at: int | None = None
        self._corrupt_transfers = 0
        self._progress_at_last_look: int | None = None
        self.unproved_from: int | None = None
        """The offset from which our log may differ from the master's; None if it was compared. See ``doubt``."""
        self._unproved_end = 0
        self._doubt_least = 0  # before this offset the master seems to have nothing to compare with
        self._asks_for_doubt = False  # on this connection
        self._refusals = 0
        self.is_doubt_refused = False
        """Whether the last connection asked for doubted bytes, which the master seems to have deleted, and got none."""
        self.asks_earlier = False
        """Whether to ask from the start of the master's last segment, if no more is known of the master.

        One of our masters closes each connection that asks for bytes after its end. If its log became shorter than
        ours, only bytes that it has show where it ends.
        """
        self.knows_segment_size = True
        """Whether the master's segment size is known, from the master or from the configuration."""

    @property
    def lag_bytes(self) -> int | None:
        """The bytes from the end of our verified log to the master's last known end; None if that is not known."""
        if self.master.max_offset is None:
            return None
        return max(0, self.master.max_offset - self._commit_log.verified_offset)

    @property
    def is_before_last_segment(self) -> bool:
        """Whether the master is known to have a last segment that starts after our end."""
        last = self.master.last_segment_offset
        return last is not None and last > self._commit_log.verified_offset

    @property
    def holds_all(self) -> bool:
        """Whether we hold the master's whole log: two heartbeats in a row prove it, and its known end agrees."""
        at_end = self._next == self._commit_log.max_offset == self._commit_log.verified_offset
        return at_end and self._heartbeats_in_a_row >= HEARTBEATS_THAT_PROVE_SILENCE and not self.lag_bytes

    @property
    def reportable_offset(self) -> int | None:
        """What this connection may report: verified here, and known to match the master. None before a transfer."""
        return None if self._next is None else min(self._commit_log.verified_offset, self._next)

    def doubt(self, offset: int) -> None:
        """The log from ``offset`` to its end may differ from the master's: compare all of it, once.

        It was not on the disk at an unclean stop, or it was not confirmed when another leader was followed.

        Until then each connection starts there. It reports no more than it has compared.
        """
        self.unproved_from, self._unproved_end = offset, self._commit_log.verified_offset
        self._doubt_least = 0

    def connected(self) -> None:
        """A connection to the master was made."""
        self._connected = True
        self._heartbeats_in_a_row = 0
        self._progress_at_last_look = None
        if self.state not in VERDICTS:
            self._move(ReplicaState.HANDSHAKE, "connected")

    def request(self, master: MasterView, durable_offset: int | None = None) -> int:
        """The first report of this connection: the offset at which the master is to start.

        The master treats it like any other report, so it is not beyond ``durable_offset`` (None for no such limit).
        Raises Gap, Ahead or Diverged if the two logs do not fit together.
        """
        self.master = master
        log = self._commit_log
        self._check_segment_size(master)
        if log.verified_offset == log.min_offset:
            self.unproved_from = None
            request = self._request_of_empty_log(master)
        else:
            self._check_range(log.verified_offset, master)
            request = self._overlap_start(master, durable_offset)
            self._next = self._overlap_from = request
        return request

    def _check_segment_size(self, master: MasterView) -> None:
        ours = self._commit_log.segment_size
        if master.segment_size is not None and master.segment_size != ours:
            raise Diverged(
                f"mappedFileSizeCommitLog is {ours} here and {master.segment_size} at the master: they must be equal"
            )

    def _request_of_empty_log(self, master: MasterView) -> int:
        log = self._commit_log
        if self._start_from.last:
            self._next = None
            return 0
        start = master.min_offset or 0
        if self._start_from.offset is not None:
            start = self._start_from.offset - self._start_from.offset % log.segment_size
            self._check_range(start, master)
        if start == 0 and 0 in (master.max_offset, master.last_segment_offset):
            log.begin_at(0)  # the master's last segment is its first, so a request for 0 gets everything from 0
            self._next = 0
            return 0
        # A request for 0 makes a master send only its last segment, so we request 1. Byte 0 of a log is the high byte
        # of a size below 16 MiB: it is zero, as in our new file, and the first record's checks prove it.
        request = start or 1
        log.begin_at(request)
        self._next = request
        return request

    def _check_range(self, offset: int, master: MasterView) -> None:
        if master.min_offset is not None and offset < master.min_offset:
            raise Gap(
                f"the master's log starts at {master.min_offset}, {master.min_offset - offset} bytes after {offset}",
                master.min_offset,
            )
        if master.max_offset is not None and offset > master.max_offset:
            raise Ahead(
                f"the master's log ends at {master.max_offset}, {offset - master.max_offset} bytes before {offset}"
            )

    def _overlap_start(self, master: MasterView, durable_offset: int | None) -> int:
        log = self._commit_log
        least = max(log.min_offset, master.min_offset or 0)
        # A log that was checked from its end on does not know its last message: then more bytes are compared.
        start = max(least, log.verified_offset - OVERLAP_LIMIT_BYTES, log.last_message_offset or 0)
        self._asks_for_doubt = False
        if self.unproved_from is not None:
            doubted = max(least, self._doubt_least, self.unproved_from)
            self._asks_for_doubt = doubted < start
            start = max(least, min(start, doubted))
        if durable_offset is not None and durable_offset < start:
            start = durable_offset
        last = master.last_segment_offset
        if self.asks_earlier and last is not None and last < start:
            start = max(least, last)
            if last == 0:
                return start  # its last segment is its first
        if start < least:
            raise ReplicaError(
                f"the master's log starts at {least}, but our disk has ours only to {start}: trying again"
            )
        return start or 1  # a report of 0 would request the last segment

    def receive(self, transfer: Transfer) -> None:
        """Take one frame: compare the bytes that we hold, append the new ones.

        Raises PeerBreach, a Verdict, or OSError if the disk fails.
        """
        if not self._connected:
            raise PeerBreach("a frame before our first report")
        if self._next is None:
            self._begin_where_master_begins(transfer.physic_offset)
        offset, body = transfer
        if offset != self._next:
            raise PeerBreach(f"a frame at {offset} where {self._next} is next")
        if body:
            self._heartbeats_in_a_row = 0
            self._take(offset, body)
        else:
            self._heartbeats_in_a_row += 1
            self._judge_heartbeat(offset)

    def _begin_where_master_begins(self, offset: int) -> None:
        if offset % self._commit_log.segment_size:
            raise PeerBreach(
                f"the master's last segment starts at {offset}, which is not a multiple of "
                f"mappedFileSizeCommitLog={self._commit_log.segment_size}"
            )
        self._commit_log.begin_at(offset)
        self._next = offset

    def _take(self, offset: int, body: bytes | memoryview) -> None:
        log = self._commit_log
        size, end = log.segment_size, offset + len(body)
        room = size - offset % size
        if len(body) > room:
            raise PeerBreach(
                f"a frame of {len(body)} bytes at {offset} crosses a segment's end: does the "
                f"master have mappedFileSizeCommitLog={size} too?"
            )
        known_bytes = log.max_offset - offset
        if known_bytes > 0:
            self._compare(offset, body[:known_bytes])
            body = body[known_bytes:]
        self._pending.append(body)
        self._next = end
        if end % size == 0:
            self._write_pending()

    def _write_pending(self) -> None:
        """Append what one read brought for one segment, in one write: a write for each frame would cost much more."""
        pending, self._pending = self._pending, []
        if pending:
            self._commit_log.append_data(self._commit_log.max_offset, *pending)

    def _compare(self, offset: int, theirs: bytes | memoryview) -> None:
        ours = self._commit_log.get_data(offset, len(theirs))
        if ours != theirs:
            assert ours is not None, "the bytes before max_offset are held"
            differs = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            at = offset + differs
            crash = ""
            if self.unproved_from is not None and at >= self.unproved_from:
                crash = ". Our bytes there were not certainly on the disk when this node stopped uncleanly"
            raise Diverged(
                f"the master's byte at {at} is {theirs[differs]:#04x}, ours {ours[differs]:#04x}{crash}. Bytes before "
                f"{self._overlap_from} were not compared, so the logs may differ there too",
                noticed_at=at,
            )

    def _judge_heartbeat(self, offset: int) -> None:
        log = self._commit_log
        if offset == log.max_offset and log.verified_offset == log.max_offset:
            if self.state is not ReplicaState.IN_SYNC and not (self.lag_bytes or 0):
                self._move(ReplicaState.IN_SYNC, f"the master's heartbeat is at our end, {offset}")
        elif self._heartbeats_in_a_row >= HEARTBEATS_THAT_PROVE_SILENCE:
            self._judge_silence(offset)

    def _judge_silence(self, offset: int) -> None:
        """The master sends nothing at ``offset``, which is before our end, or is 1 for an empty log."""
        log = self._commit_log
        last = self.master.last_segment_offset
        if last is not None and last > offset:
            raise Gap(f"the master sends nothing at {offset}, but has {last}: its first segments were deleted", None)
        if log.verified_offset > offset:
            raise Ahead(f"the master's log ends at {offset}, {log.verified_offset - offset} bytes before ours")
        if not self._pending and log.max_offset <= log.min_offset + 1:
            raise PeerBreach(
                f"the master sends nothing at {offset}, and we cannot find out what it has", Event.CONNECTION_GIVEN_UP
            )

    def read_completed(self) -> None:
        """Append and verify what one read brought. We report only verified bytes.

        Raises CorruptTransfer, Diverged, SegmentSizeUnknown, or OSError if the disk fails.
        """
        self._write_pending()
        log = self._commit_log
        if self.unproved_from is not None and self._next is not None and self._next >= self._unproved_end:
            self.unproved_from = None
        if log.max_offset == log.verified_offset:
            self._arrived()
            return
        found = log.verify()
        if found.problem is not None:
            raise self._corrupt(found.end, found.problem)
        if found.messages:
            self._corrupt_transfers = 0
        self._arrived()

    def _corrupt(self, offset: int, problem: str) -> ReplicaError:
        self._corrupt_transfers = self._corrupt_transfers + 1 if self._corrupt_at == offset else 1
        self._corrupt_at = offset
        if not self.knows_segment_size:
            self._check_blank(offset)
        message = f"what the master sent for {offset} is not a valid record: {problem}"
        if self._corrupt_transfers < CORRUPT_TRANSFERS_UNTIL_DIVERGED:
            return CorruptTransfer(message)
        return Diverged(f"{message}; this happened {self._corrupt_transfers} times")

    def _check_blank(self, offset: int) -> None:
        """Raises SegmentSizeUnknown if a blank is there, which would end a segment of another size."""
        head = self._commit_log.get_data(offset, END_FILE_MIN_BLANK_LENGTH)
        if head is None or len(head) < END_FILE_MIN_BLANK_LENGTH:
            return
        size, magic = BLANK_HEAD.unpack(head)
        if magic == BLANK_MAGIC_CODE and size >= END_FILE_MIN_BLANK_LENGTH:
            end = offset + size
            raise SegmentSizeUnknown(
                f"the master's segment size is not known and is not ours, {self._commit_log.segment_size}: a segment "
                f"ends at {end}. Start again with an empty store and --set mappedFileSizeCommitLog=N, where N is the "
                f"master's value, probably {gcd(end, self._commit_log.min_offset)}"
            )

    def _arrived(self) -> None:
        log = self._commit_log
        if self._next is None or self._next < log.verified_offset:
            return
        caught_up = self.lag_bytes == 0
        if caught_up and self.state is not ReplicaState.IN_SYNC:
            self._move(ReplicaState.IN_SYNC, f"at the master's end, {log.verified_offset}")
        elif not caught_up and not self._heartbeats_in_a_row and self.state not in COPYING:
            self._move(ReplicaState.CATCHING_UP, f"from {log.verified_offset}")

    def look(self, master: MasterView, verified_when_asked: int) -> None:
        """Compare with the answer of the master's remoting port while we are connected.

        ``verified_when_asked`` was our end when we sent the request: the answer may be older than bytes received since.
        Raises Gap or Ahead.
        """
        log = self._commit_log
        self.master = replace(master, last_segment_offset=self.master.last_segment_offset)
        self._check_range(verified_when_asked, replace(master, min_offset=None))
        if self._heartbeats_in_a_row:
            self._check_range(log.verified_offset, replace(master, max_offset=None))
        lag = self.lag_bytes or 0
        progress = log.max_offset
        if lag and progress == self._progress_at_last_look:
            if self.state is not ReplicaState.STALLED and self.state not in VERDICTS:
                self._move(ReplicaState.STALLED, f"{lag} bytes behind and nothing came since the last look")
        elif lag > IN_SYNC_LAG_BYTES and self.state is ReplicaState.IN_SYNC:
            self._move(ReplicaState.CATCHING_UP, f"{lag} bytes behind")
        self._progress_at_last_look = progress

    def give_up(self, verdict: Verdict) -> None:
        """Enter the verdict's state."""
        if self.state is not verdict.state:
            self._move(verdict.state, str(verdict))

    def connection_lost(self) -> None:
        """Drop an incomplete record: the next connection requests it again. Raises OSError."""
        self._look_for_refusal()
        self._connected = False
        self._next = None
        self._pending.clear()
        log = self._commit_log
        if log.max_offset != log.verified_offset:
            log.truncate(log.verified_offset)
        if self.state not in VERDICTS and self.state is not ReplicaState.STOPPED:
            self._move(ReplicaState.CONNECTING, "the connection is gone")

    def _look_for_refusal(self) -> None:
        """After two connections that got nothing of the doubted bytes, ask for those of the next segment.

        A master sends nothing of what it has deleted. Where its log starts is not known without its remoting port, but
        a probe has shown that its last segment starts later.
        """
        last = self.master.last_segment_offset
        self.is_doubt_refused = (
            self._connected
            and self._asks_for_doubt
            and self._next == self._overlap_from
            and self.master.min_offset is None
            and last is not None
            and self._overlap_from < last
        )
        self._refusals = self._refusals + 1 if self.is_doubt_refused else 0
        if self._refusals == REFUSALS_THAT_PROVE_DELETION:
            size = self._commit_log.segment_size
            self._doubt_least = self._overlap_from - self._overlap_from % size + size
            self._refusals = 0

    def stop(self) -> None:
        """Stop: no further connection will be made."""
        if self.state is not ReplicaState.STOPPED:
            self._move(ReplicaState.STOPPED, f"stopped while {self.state.name}")

    def _move(self, state: ReplicaState, reason: str) -> None:
        check_transition(self.state, state)
        self.state = state
        self._state_changed(state, reason)
