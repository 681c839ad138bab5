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
    return view.has_writes_of(NewestChange(known.history.epoch, known.history.stamp, known.number))


def doubters_of(view: ClusterView, me: str, known: Known) -> dict[str, NewestChange]:
    """What members know, or knew when they were there, that these keys do not have. By name.

    It comes from their own keys, from what ``known`` keeps, and from what others have heard, of ``me`` too: its store
    may be new. An operator ends it: with an order to lead in any case, whose history overrules it, or with one to
    forget the member.
    """
    heard = [*known.doubters.items(), *view.heard]
    heard += [(name, each.newest_change) for name, each in view.members.items() if each.is_doubtful and name != me]
    heard.sort(key=lambda each: (each[1].epoch, each[1].number))  # of one name the newest is the last
    return {name: change for name, change in heard if view.lacks(name, change)}


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
