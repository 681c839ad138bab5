"""Whether the coordinator still has what it was told: it may have lost its disk, or been set back to an older copy.

Then its keys may name a member as one that holds every message, although it was left out since. Each leadership has a
random stamp, and numbers what it writes to ``sync``. A member keeps the newest stamp and number on its disk before it
acts on them. Keys are too old for it if their history does not have them. Nobody leads from such keys until the leader,
which knows better, has written them again, or all members ever known agree, or an operator decides.
"""

from dataclasses import dataclass

from rmqha.failover.keys import NewestChange
from rmqha.failover.member import Known
from rmqha.failover.view import ClusterView


def is_current(view: ClusterView, cluster_id: int | None, known: Known) -> bool:
    """Whether these keys, read from the coordinator with this id, have all that the node knows."""
    sync, leader = view.sync, view.leader
    written_to = known.cluster_id
    if sync is not None and sync.cluster_id is not None:
        written_to = sync.cluster_id
    elif leader is not None and leader.cluster_id is not None:
        written_to = leader.cluster_id
    if None not in (cluster_id, written_to) and written_to != cluster_id:
        return False
    if view.epoch < known.epoch:
        return False
    return _has(view, NewestChange(known.history.epoch, known.history.stamp, known.number))


def _has(view: ClusterView, change: NewestChange) -> bool:
    """Whether these keys have all that was done up to this change."""
    stamp, number = change.stamp, 0 if view.sync is None else view.sync.number
    return not stamp or view.history.covers(number, change.epoch, stamp, change.number)


def doubters_of(view: ClusterView, me: str, known: Known) -> dict[str, NewestChange]:
    """What other members know, or knew when they were there, that these keys do not have. By name.

    It comes from their own keys, from what ``known`` keeps, and from what others have heard. An operator ends it: with
    an order to lead in any case, whose history overrules it, or with one to forget the member.
    """
    heard = dict(known.doubters)
    for member in view.members.values():
        heard.update({name: each for name, each in member.doubters.items() if name not in heard})
    heard.update({name: member.newest_change for name, member in view.members.items() if member.is_doubtful})
    return {
        name: change
        for name, change in sorted(heard.items())
        if name != me and name not in view.forgotten and (view.epoch < change.epoch or not _has(view, change))
    }


@dataclass(frozen=True, slots=True)
class Trust:
    """What a process remembers of keys that a leader of an older version has written: only their revision tells.

    ``needed`` is the revision that the leader's key must name; 0 while nothing is wrong. ``newest`` is that of the keys
    that were read last.
    """

    needed: int = 0
    newest: int = 1

    def look(self, view: ClusterView, cluster_id: int | None) -> "Trust":
        """What it remembers after these keys were read from the coordinator with this id."""
        leader, revision, needed = view.leader, view.snapshot.revision, self.needed
        if view.history.stamp:
            needed = 0
        elif revision < self.newest:
            needed = max(needed, self.newest)
        elif leader is not None and leader.cluster_id == cluster_id and leader.floor >= needed:
            needed = 0
        return Trust(needed, revision)

    def is_doubtful(self, view: ClusterView, cluster_id: int | None, known: Known) -> bool:
        """Whether these keys are older than what the node knows of the cluster."""
        return self.needed > 0 or not is_current(view, cluster_id, known)

    def floor(self, view: ClusterView) -> int:
        """The revision that a leader's key must name, so that members of an older version trust the keys again."""
        return max([self.needed, *(member.doubts_below for member in view.members.values())])
