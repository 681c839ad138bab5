"""What ``rmqha status`` shows: the state of a store on this machine, or of a broker, ours or Java's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint

from rmqha.ha.slave.contact import seconds_of
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import iso_time
from rmqha.remoting.asking import ask_config, ask_runtime_info, log_range
from rmqha.remoting.calls import RemotingError
from rmqha.settings.settings import BrokerRole, parse_byte_count
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.mappedfile import DISK
from rmqha.store.nodestate import STOPPED, NodeState, state_path
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.opening import OpeningPhase
from rmqha.wire.brokerinfo import NODE_STATE_KEY

UNKNOWN = "UNKNOWN"
KILLED = "KILLED"
"""The state of a node that does not run and did not stop cleanly."""
COPY = "a copy of a store, made by rmqha; no node has run on it"
HANDSHAKE_SECONDS = 30.0
"""A handshake is not a problem until this time after the last contact."""
ROOM_FOR_STATE_BYTES = 64 << 10
"""With less room on its disk a node may not be able to write state.json."""
CONTACT_LIMIT_SECONDS = 60.0
"""For a state.json of an older version, which does not have a limit."""
COPYING = (ReplicaState.CATCHING_UP.name, ReplicaState.IN_SYNC.name)
EXIT_CODES = {
    ReplicaState.GAP.name: ExitCode.GAP,
    ReplicaState.AHEAD.name: ExitCode.AHEAD,
    ReplicaState.DIVERGED.name: ExitCode.DIVERGED,
    ReplicaState.STALLED.name: ExitCode.STALLED,
    ReplicaState.CONNECTING.name: ExitCode.CANNOT_CONNECT,
    ReplicaState.HANDSHAKE.name: ExitCode.CANNOT_CONNECT,
    STOPPED: ExitCode.CANNOT_CONNECT,
    **{phase.name: ExitCode.CANNOT_CONNECT for phase in OpeningPhase},  # the node does not answer yet
}
"""The exit codes for states of a running node. All other states are fine."""


@dataclass(frozen=True, slots=True)
class Status:
    """Names of role and state, and offsets in the log; None for what is not known."""

    role: str
    state: str
    running: bool
    min_offset: int
    written: int
    verified: int | None = None
    flushed: int | None = None
    confirmed: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    peers: tuple[Any, ...] = ()
    master: str | None = None
    last_contact: str | None = None
    since: str | None = None
    reason: str | None = None
    tables: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    read_limit: int | None = None
    reads: Mapping[str, Any] | None = None
    contact_limit: float | None = None
    """Seconds after which a slave that copies must have noted a contact; None if its node does not tell."""
    failover: Mapping[str, Any] | None = None
    """What a member of a failover cluster knows of it; None for other nodes, and for one that does not run."""
    out_of_date: str | None = None
    """Why the node may not have written its state for some time; None if nothing speaks for that."""

    @classmethod
    def of_node(cls, state: NodeState, running: bool, killed: bool = False) -> "Status":
        """The status of our own node; ``killed`` if it does not run and did not stop cleanly."""
        offsets = state.offsets
        name = state.state
        is_copy = not state.role and not running and not killed
        if not running:
            name = KILLED if killed else STOPPED
        return cls(
            role=state.role or UNKNOWN,
            state=name,
            running=running,
            min_offset=offsets.min,
            written=offsets.written,
            verified=offsets.verified,
            flushed=offsets.flushed,
            confirmed=offsets.confirmed,
            lag_bytes=state.lag_bytes if running else None,
            lag_seconds=state.lag_seconds if running else None,
            peers=state.peers if running else (),
            master=state.master,
            last_contact=state.last_contact,
            since=None if killed else state.since,
            reason=COPY
            if is_copy
            else f"no process has the store open; it was {state.state}"
            if killed
            else state.reason,
            tables=state.tables if running else None,
            warnings=state.warnings if running else (),
            read_limit=state.read_limit,
            reads=state.reads if running else None,
            contact_limit=state.contact_limit,
            failover=state.failover if running else None,
        )

    def as_json(self) -> dict[str, Any]:
        """The values under the names that state.json uses."""
        return {
            "role": self.role,
            "state": self.state,
            "running": self.running,
            "min": self.min_offset,
            "written": self.written,
            "verified": self.verified,
            "flushed": self.flushed,
            "confirmed": self.confirmed,
            "lagBytes": self.lag_bytes,
            "lagSeconds": self.lag_seconds,
            "master": self.master,
            "lastContact": self.last_contact,
            "since": self.since,
            "reason": self.reason,
            "tables": None if self.tables is None else dict(self.tables),
            "readLimit": self.read_limit,
            "reads": None if self.reads is None else dict(self.reads),
            "failover": None if self.failover is None else dict(self.failover),
            "warnings": list(self.warnings),
            "peers": list(self.peers),
        }


@dataclass(frozen=True, slots=True)
class MaxLag:
    """The maximum lag that a check accepts, in bytes or in seconds; the other is None."""

    most_bytes: int | None = None
    most_seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "MaxLag":
        """Parse bytes, such as ``65536``, ``64k``, ``64m``, ``1g`` (KiB, MiB, GiB), or seconds, such as ``30s``.

        Raises ValueError.
        """
        if text.endswith("s"):
            try:
                seconds = float(text[:-1])
            except ValueError:
                seconds = -1.0
            if not (text[:-1].isascii() and 0 <= seconds < float("inf")):
                raise ValueError(f"{text!r} is not a number of seconds, such as 30s or 0.5s")
            return cls(most_seconds=seconds)
        try:
            return cls(most_bytes=parse_byte_count(text))
        except ValueError:
            raise ValueError(f"{text!r} is neither bytes, such as 64m, nor seconds, such as 30s") from None

    def breach(self, status: Status) -> str | None:
        """Why a slave's lag is too large; None if it is within the limit. An unknown lag counts as too large."""
        lag = status.lag_bytes if self.most_bytes is not None else status.lag_seconds
        most = self.most_bytes if self.most_bytes is not None else self.most_seconds
        assert most is not None, "one of both is given"
        unit = "bytes" if self.most_bytes is not None else "s"
        if lag is None:
            return f"the lag is not known, and at most {most:g} {unit} are allowed"
        return f"the lag is {lag:g} {unit}, more than {most:g}" if lag > most else None


def judge(status: Status, max_lag: MaxLag | None = None, now: float = 0.0) -> tuple[ExitCode, str]:
    """How ``rmqha status`` ends, and why: FINE only for a node that runs and, if it is a slave, follows its master.

    A slave is also not fine if its topics, groups and offsets are not the master's: they are what consumers need on the
    day it takes over. A node with ``readUpTo=confirmed`` is not fine if consumers have waited for some seconds. ``now``
    is in seconds since the epoch.
    """
    if status.role == UNKNOWN:
        return ExitCode.FINE, ""  # our own node never ran here, so we do not know whether one should run: a copy, too
    if not status.running:
        return ExitCode.CANNOT_CONNECT, f"{status.state}: no node runs on this store"
    if status.out_of_date is not None:
        return ExitCode.IO_ERROR, status.out_of_date
    reason = f": {status.reason}" if status.reason else ""
    code = EXIT_CODES.get(status.state, ExitCode.FINE)
    if status.state == ReplicaState.HANDSHAKE.name and _is_recent(status.last_contact, now):
        code = ExitCode.FINE
    if code is not ExitCode.FINE:
        return code, f"{status.state}{reason}"
    if status.state in COPYING and _is_old(status, now):
        return ExitCode.STALLED, f"{status.state}, but no contact is noted since {status.last_contact}: the node hangs"
    breach = max_lag.breach(status) if max_lag is not None and status.role == BrokerRole.SLAVE.value else None
    if breach is not None:
        return ExitCode.STALLED, breach
    if status.tables is not None and not status.tables.get("inSync"):
        why = status.tables.get("reason") or "they are not copied yet"
        return ExitCode.IO_ERROR, f"topics, groups and offsets are not the master's: {why}"
    if status.reads is not None and status.reads.get("stalledSince") is not None:
        return ExitCode.STALLED, waits_in_words(status.reads)
    return ExitCode.FINE, ""


def waits_in_words(reads: Mapping[str, Any]) -> str:
    """What consumers wait for, from state.json's ``reads``."""
    size = f"{reads.get('waitingBytes')} bytes"
    if reads.get("stalledSince") is None:
        return f"{size} are not confirmed yet"
    return (
        f"messages wait for a slave, and consumers for them: {reads.get('waitingMessages')} ({size}), since "
        f"{reads.get('stalledSince')}: {reads.get('reason')}"
    )


def _is_recent(contact: str | None, now: float) -> bool:
    """Whether the master was heard so lately that a handshake is nothing to worry about."""
    seconds = seconds_of(contact)
    return seconds is not None and now - seconds < HANDSHAKE_SECONDS


def _is_old(status: Status, now: float) -> bool:
    """Whether a slave that copies has noted no contact for so long that its process must hang."""
    seconds = seconds_of(status.last_contact)
    return seconds is not None and now - seconds > (status.contact_limit or CONTACT_LIMIT_SECONDS)


def status_of_store(store: StoreReader) -> Status:
    """The status of a store on this machine. If our own node never ran on it, its log is read to find its end."""
    if store.state is not None:
        found = Status.of_node(store.state, store.live, killed=not store.live and (store.root / ABORT_FILE).exists())
        out_of_date = _out_of_date(store.root) if store.live else None
        return (
            found
            if out_of_date is None
            else replace(found, out_of_date=out_of_date, warnings=(*found.warnings, out_of_date))
        )
    bases = store.log.segment_bases
    end = store.scan(bases[max(0, len(bases) - 2)], lambda _: None).end if bases else 0
    return Status(UNKNOWN, "RUNNING" if store.live else "STOPPED", store.live, store.log.min_offset, end)


def _out_of_date(store: Path) -> str | None:
    """Why a running node may not be able to write its state. Raises OSError."""
    free = DISK.free_bytes(store)
    if free >= ROOM_FOR_STATE_BYTES:
        return None
    written = iso_time(int(state_path(store).stat().st_mtime * 1000))
    return (
        f"the disk is full, with {free} bytes free: the node refuses messages, and cannot tell its state. What is "
        f"shown was written at {written}"
    )


async def status_of_broker(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> Status:
    """The status of the broker at a remoting port. Raises RemotingError, TimeoutError, or what connecting raises."""
    table = await ask_runtime_info(endpoint, clock)
    return status_in(table, {} if NODE_STATE_KEY in table else await ask_config(endpoint, clock))


def status_in(table: Mapping[str, str], config: Mapping[str, str]) -> Status:
    """The status in a broker's runtime info. A Java broker's ``config`` says its role. Raises RemotingError."""
    if NODE_STATE_KEY in table:
        try:
            found = Status.of_node(NodeState.from_json(table[NODE_STATE_KEY]), running=True)
            return replace(found, contact_limit=math.inf)  # it answers, so it does not hang; its clock is not ours
        except ValueError as error:
            raise RemotingError(f"the node's state is not readable: {error}") from error
    min_offset, max_offset = log_range(table)
    role = config.get("brokerRole", UNKNOWN)
    return Status(role, "RUNNING", True, min_offset, max_offset)
