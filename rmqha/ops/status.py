"""What ``rmqha status`` shows: the state of a store (``storestatus``), or of a broker (``brokerstatus``)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmqha.ha.slave.states import COPYING_NAMES, ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import seconds_of
from rmqha.settings.settings import BrokerRole, parse_byte_count
from rmqha.store.nodefacts import InStatus, OpeningPhase, as_json, facts_of
from rmqha.store.nodestate import STOPPED, NodeState, Offsets

UNKNOWN = "UNKNOWN"
KILLED = "KILLED"
"""The state of a node that does not run and did not stop cleanly."""
COPY = "a copy of a store, made by rmqha; no node has run on it"
HANDSHAKE_SECONDS = 30.0
"""A handshake is not a problem until this time after the last contact."""
CONTACT_LIMIT_SECONDS = 60.0
"""For a state.json of an older version, which does not have a limit."""
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


NOT_OF_OTHERS = ("verified", "flushed", "confirmed")
"""The offsets that only a node of ours knows."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What is known of a node from outside: what it says of itself, as far as that is still true.

    With ``is_ours`` a node of ours says it. Of other brokers, and of stores that no node of ours has run on, ``node``
    only has the role, the state, and the start and the end of the log. ``out_of_date`` is why the node may not have
    written its state for some time; None if nothing speaks for that.
    """

    node: NodeState
    running: bool
    is_ours: bool = True
    out_of_date: str | None = None

    @classmethod
    def of_node(cls, state: NodeState, running: bool, killed: bool = False) -> "NodeStatus":
        """The status of our own node; ``killed`` if it does not run and did not stop cleanly."""
        shown = replace(state, role=state.role or UNKNOWN)
        if not running:
            facts = facts_of(type(state))
            gone = {each.name: each.default for each in facts if each.status is InStatus.WHILE_RUNNING}
            shown = replace(shown, state=KILLED if killed else STOPPED, **gone)
        if killed:
            shown = replace(shown, since=None, reason=f"no process has the store open; it was {state.state}")
        elif not running and not state.role:
            shown = replace(shown, reason=COPY)
        return cls(shown, running)

    @classmethod
    def of_other(cls, role: str, running: bool, start: int, end: int) -> "NodeStatus":
        """The status of a node that is not ours, or of a store that no node of ours has run on."""
        state = NodeState("", role=role, state="RUNNING" if running else STOPPED, offsets=Offsets(start, end))
        return cls(state, running, is_ours=False)

    def as_json(self) -> dict[str, Any]:
        """The values under the names that state.json uses."""
        shown = (each for each in facts_of(type(self.node)) if each.status is not InStatus.NEVER)
        unknown = {} if self.is_ours else dict.fromkeys(NOT_OF_OTHERS)
        first = {"role": self.node.role, "state": self.node.state, "running": self.running}
        return {**first, **as_json(self.node, shown), **unknown}


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

    def measure(self, node: NodeState) -> tuple[float | None, float, str]:
        """A slave's lag, the limit, and the unit of both. The lag is None if it is not known."""
        if self.most_bytes is not None:
            return node.lag_bytes, self.most_bytes, "bytes"
        assert self.most_seconds is not None, "one of both is given"
        return node.lag_seconds, self.most_seconds, "s"

    def breach(self, node: NodeState) -> str | None:
        """Why a slave's lag is too large; None if it is within the limit. An unknown lag counts as too large."""
        lag, most, unit = self.measure(node)
        if lag is None:
            return f"the lag is not known, and at most {most:g} {unit} are allowed"
        return f"the lag is {lag:g} {unit}, more than {most:g}" if lag > most else None


def judge(status: NodeStatus, max_lag: MaxLag | None = None, now: float = 0.0) -> tuple[ExitCode, str]:
    """How ``rmqha status`` ends, and why: FINE only for a node that runs and, if it is a slave, follows its master.

    A slave is also not fine if its topics, groups and offsets are not the master's: they are what consumers need on the
    day it takes over. A node with ``readUpTo=confirmed`` is not fine if consumers have waited for some seconds. ``now``
    is in seconds since the epoch.
    """
    node = status.node
    if node.role == UNKNOWN:
        return ExitCode.FINE, ""  # our own node never ran here, so we do not know whether one should run: a copy, too
    if not status.running:
        return ExitCode.CANNOT_CONNECT, f"{node.state}: no node runs on this store"
    if status.out_of_date is not None:
        return ExitCode.IO_ERROR, status.out_of_date
    reason = f": {node.reason}" if node.reason else ""
    code = EXIT_CODES.get(node.state, ExitCode.FINE)
    if node.state == ReplicaState.HANDSHAKE.name and _is_recent(node.last_contact, now):
        code = ExitCode.FINE
    if code is not ExitCode.FINE:
        return code, f"{node.state}{reason}"
    if node.state in COPYING_NAMES and _is_old(node, now):
        return ExitCode.STALLED, f"{node.state}, but no contact is noted since {node.last_contact}: the node hangs"
    breach = max_lag.breach(node) if max_lag is not None and node.role == BrokerRole.SLAVE.value else None
    if breach is not None:
        return ExitCode.STALLED, breach
    if node.tables is not None and not node.tables.get("inSync"):
        why = node.tables.get("reason") or "they are not copied yet"
        return ExitCode.IO_ERROR, f"topics, groups and offsets are not the master's: {why}"
    if node.reads is not None and node.reads.get("stalledSince") is not None:
        return ExitCode.STALLED, waits_in_words(node.reads)
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


def _is_old(node: NodeState, now: float) -> bool:
    """Whether a slave that copies has noted no contact for so long that its process must hang."""
    seconds = seconds_of(node.last_contact)
    return seconds is not None and now - seconds > (node.contact_limit or CONTACT_LIMIT_SECONDS)
