"""What operators see of clusters: who leads, who could lead next, and why a member could not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from rmqha.coordination.interface import KeyValue, Snapshot
from rmqha.failover.eligible import away_members, bytes_behind, may_lead, seconds_of_pause
from rmqha.failover.keys import LEADER, MEMBERS, ROOT, STATUS, InvalidKey, Member, Mode, ShownBy, prefix_of
from rmqha.failover.view import ClusterView


class Health(Enum):
    """How well a cluster could bear the loss of its leader."""

    FINE = "a member can lead next"
    PAUSED = "automatic failover is paused"
    DOUBTED = "the coordinator's keys are older than what a member knows"
    SILENT = "the leader was not heard for longer than it may be silent"
    TOO_SOON = "a member can lead next, but the next automatic failover is not allowed yet"
    ALONE = "no other member can lead"
    NO_LEADER = "no node leads"
    UNREADABLE = "a key cannot be read"


@dataclass(frozen=True, slots=True)
class ClusterName:
    """The names of a cluster and of the broker whose nodes it keeps."""

    cluster: str
    broker: str

    @property
    def prefix(self) -> str:
        """Where its keys begin."""
        return prefix_of(self.cluster, self.broker)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.broker}"


def clusters_in(snapshot: Snapshot) -> Iterator[tuple[ClusterName, Snapshot]]:
    """Each cluster below ``ROOT`` and its keys. Keys of another shape are left out: they are not ours."""
    found: dict[ClusterName, dict[str, KeyValue]] = {}
    for key, held in sorted(snapshot.keys.items()):
        words = key.split("/", 4)
        if len(words) == 5 and not words[0] and "/" + words[1] == ROOT and all(words[1:]):
            found.setdefault(ClusterName(words[2], words[3]), {})[key] = held
    for name, keys in found.items():
        yield name, Snapshot(snapshot.revision, keys)


def bytes_at_risk(view: ClusterView, name: str) -> int | None:
    """About how many bytes, answered with SEND_OK, this member does not have. None if that is not known.

    Members tell the end of their logs, and the leader what is confirmed, every few seconds only. So in mode sync only
    the sync set proves that a member has all: more may have been confirmed since the leader told.
    """
    member, status, sync = view.members[name], view.status, view.sync
    is_sync = view.config.mode == Mode.SYNC.value
    if sync is not None and is_sync:
        holder = sync.holders.get(name)
        if holder is not None and member.is_intact(holder):
            return 0
    if status is None or status.epoch != view.epoch:
        return None
    behind = bytes_behind(status, member, status.confirmed if is_sync else status.end)
    return None if is_sync and behind == 0 else behind


@dataclass(frozen=True)
class Overview:
    """A cluster as it was at one revision. ``now`` is the wall clock's time.

    ``lease_seconds`` is for how long the leader's lease lives if it does not renew it; None if that is not known.
    """

    name: ClusterName
    view: ClusterView
    now: datetime
    lease_seconds: int | None = None

    @property
    def leader(self) -> str | None:
        """Who leads; None if no node does."""
        return None if self.view.leader is None else self.view.leader.node

    @property
    def silent_seconds(self) -> int | None:
        """For about how long the leader has not renewed its lease; None if that is not known, or no node leads."""
        if self.view.leader is None or self.lease_seconds is None:
            return None
        return max(0, self.view.config.ttl - self.lease_seconds)

    @property
    def is_silent(self) -> bool:
        """Whether the leader should have renewed its lease by now."""
        silent, config = self.silent_seconds, self.view.config
        return silent is not None and silent >= config.renew + config.timeout

    @property
    def pause_seconds(self) -> float:
        """In how many seconds the next automatic failover is allowed; 0 if it is."""
        return seconds_of_pause(self.view, self.now)

    def why_not(self, name: str) -> str | None:
        """Why this member could not lead if the leader were gone. None if it leads, or could."""
        return self._why_not(name, self.now)

    def _why_not(self, name: str, at: datetime) -> str | None:
        if name == self.leader:
            return None
        member = self.view.members[name]
        if member.doubts or member.has_no_room or (self.leader is None and member.reason):
            return member.reason
        if self.view.doubters:
            return f"{', '.join(self.view.doubters)} knows more than the coordinator's keys say"
        verdict = may_lead(replace(self.view, request=None), self._up_to_date(name), False, at)
        return None if verdict.cause is not None else verdict.why_not

    def _up_to_date(self, name: str) -> Member:
        """A member as if it had told the end of its log when the leader told what is confirmed.

        Under load more is confirmed in between, and the sync set holds it. A holder that tells less later has lost it.
        """
        member, status, sync = self.view.members[name], self.view.status, self.view.sync
        told, confirmed = self.view.held(MEMBERS + name), self.view.held(STATUS)
        if self.leader is None or sync is None or name not in sync.holders:
            return member
        if status is None or told is None or confirmed is None:
            return member
        is_older = told.mod_revision < confirmed.mod_revision
        return replace(member, end=max(member.end, status.confirmed)) if is_older else member

    @property
    def successors(self) -> list[str]:
        """The members that could lead if the leader were gone."""
        return self._successors(self.now)

    def _successors(self, at: datetime) -> list[str]:
        return sorted(name for name in self.view.members if name != self.leader and self._why_not(name, at) is None)

    @property
    def _after_the_pause(self) -> list[str]:
        """The members that could lead when the next automatic failover is allowed."""
        return self._successors(self.now + timedelta(seconds=self.pause_seconds + 1))

    @property
    def health(self) -> Health:
        """How well the cluster could bear the loss of its leader."""
        if self.view.leader is None:
            return Health.NO_LEADER
        if self.view.doubters:
            return Health.DOUBTED
        if self.is_silent:
            return Health.SILENT
        if self.view.config.paused:
            return Health.PAUSED
        if self.successors:
            return Health.FINE
        return Health.TOO_SOON if self._after_the_pause else Health.ALONE

    @property
    def advice(self) -> str:
        """The health in words, and what to type if something is wrong."""
        health = self.health
        if health is Health.FINE:
            loss = ". In mode async the last messages may be lost then" if self._is_async else ""
            return f"{', '.join(self.successors)} can lead next{loss}"
        if health is Health.SILENT:
            return f"{self.leader} was not heard for {self.silent_seconds} s. {self._what_follows}"
        if health is Health.TOO_SOON:
            return (
                f"{', '.join(self._after_the_pause)} can lead next, but the next automatic failover is allowed in "
                f"{self.pause_seconds:.0f} s. If the leader fails before: rmqha cluster failover"
            )
        if health is Health.PAUSED:
            return "no node takes over by itself. To end the pause: rmqha cluster resume"
        if health is Health.ALONE:
            return "no other member can lead: the reasons are below. Start the other nodes, or wait until they have all"
        if health is Health.DOUBTED:
            return (
                f"{', '.join(self.view.doubters)} knows more than the coordinator's keys say: the coordinator went "
                f"back to an older copy. {self.leader} writes its keys again if it led before that. If this stays: "
                "rmqha cluster failover --to NAME --force, for the node whose messages count"
            )
        if not self.view.members:
            return "no node runs: start the nodes"
        if self.view.doubters:
            away = ", ".join(self.away)
            start = f"Start {away}, and" if away else "All members are there, so"
            return (
                f"no node leads: the coordinator's keys are older than what {', '.join(self.view.doubters)} knows. "
                f"{start} the node that led last leads. For one that is gone for good: rmqha cluster forget NAME. If "
                "that does not help: rmqha cluster failover --to NAME --force, for the node whose messages count"
            )
        return "no node leads: the reasons are below. To name a leader: rmqha cluster failover --to NAME"

    @property
    def away(self) -> list[str]:
        """The members that do not run, and that are not forgotten."""
        return away_members(self.view)

    @property
    def _what_follows(self) -> str:
        """What happens if the leader stays silent."""
        ends = f"Its lease ends in {self.lease_seconds} s"
        if self.view.config.paused:
            return f"{ends}. Then no node takes over by itself, because failover is paused: rmqha cluster failover"
        if self.successors:
            return f"{', '.join(self.successors)} may lead in {self.lease_seconds} s"
        if self._after_the_pause:
            return (
                f"{ends}. The next automatic failover is allowed in {self.pause_seconds:.0f} s. Sooner: rmqha cluster "
                "failover"
            )
        return f"{ends}. No other member can lead: the reasons are below"

    @property
    def _is_async(self) -> bool:
        return self.view.config.mode == Mode.ASYNC.value

    def lag(self, name: str) -> int | None:
        """How far this member's log is behind the leader's, in bytes, as both reported it last; None if unknown."""
        status = self.view.status
        if name == self.leader:
            return 0
        return None if status is None else bytes_behind(status, self.view.members[name], status.end)

    def role(self, name: str) -> str:
        """What this member does."""
        return "leader" if name == self.leader else self.view.members[name].state

    def _member_as_json(self, name: str, member: Member) -> dict[str, Any]:
        return {
            "name": name,
            "role": self.role(name),
            **member.in_json(ShownBy.COMMAND),
            "lagBytes": self.lag(name),
            "inSync": self.view.sync is not None and name in self.view.sync.holders,
            "follows": member.follows or None,
            "mayLeadNext": name != self.leader and self.why_not(name) is None,
            "whyNot": self.why_not(name),
            "http": member.http or None,
        }

    def summary(self) -> dict[str, Any]:
        """What ``list`` shows."""
        sync = self.view.sync
        return {
            "cluster": self.name.cluster,
            "broker": self.name.broker,
            "health": self.health.name,
            "advice": self.advice,
            "leader": self.leader,
            "epoch": self.view.epoch,
            "members": sorted(self.view.members),
            "sync": [] if sync is None else sorted(sync.holders),
        }

    def as_json(self) -> dict[str, Any]:
        """What ``show`` shows."""
        view, status = self.view, self.view.status
        request = view.request
        return {
            **self.summary(),
            "leaderSilentSeconds": self.silent_seconds,
            "leaseSeconds": self.lease_seconds,
            "nextAutomaticFailoverSeconds": round(self.pause_seconds),
            "since": view.history.entries[-1].time if view.history.entries else None,
            "cause": view.history.entries[-1].cause if view.history.entries else None,
            "confirmed": None if status is None else status.confirmed,
            "end": None if status is None else status.end,
            "mode": view.config.mode,
            "paused": view.config.paused,
            "request": None
            if request is None
            else {
                "order": request.order,
                "to": request.to or None,
                "force": request.force,
                "by": request.by,
                "time": request.time,
            },
            "members": [self._member_as_json(name, member) for name, member in sorted(view.members.items())],
            "away": self.away,
            "unreadable": self.unreadable_members(),
        }

    def unreadable_members(self) -> list[str]:
        """The members whose keys cannot be read."""
        prefix = self.view.prefix + MEMBERS
        names = (key.removeprefix(prefix) for key in self.view.snapshot.keys if key.startswith(prefix))
        return sorted(name for name in names if name not in self.view.members)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A cluster whose keys cannot be read."""

    name: ClusterName
    problem: str

    def summary(self) -> dict[str, Any]:
        """What ``list`` shows."""
        return {
            "cluster": self.name.cluster,
            "broker": self.name.broker,
            "health": Health.UNREADABLE.name,
            "advice": self.problem,
            "leader": None,
            "epoch": None,
            "members": [],
            "sync": [],
        }


def lease_of_leader(name: ClusterName, snapshot: Snapshot) -> int | None:
    """The lease with which the leader's key ends; None if no node leads, or its key is on no lease."""
    held = snapshot.keys.get(name.prefix + LEADER)
    return None if held is None else held.lease or None


def overview_of(
    name: ClusterName, snapshot: Snapshot, now: datetime, lease_seconds: int | None = None
) -> Overview | Unreadable:
    """What is known of one cluster. ``lease_seconds``: for how long the leader's lease lives."""
    try:
        return Overview(name, ClusterView.read(name.prefix, snapshot), now, lease_seconds)
    except InvalidKey as error:
        return Unreadable(name, str(error))


def history_as_json(view: ClusterView) -> list[Mapping[str, Any]]:
    """The changes of the leader, oldest first."""
    return [
        {"epoch": entry.n, "node": entry.node, "start": entry.start, "time": entry.time, "cause": entry.cause}
        for entry in view.history.entries
    ]
