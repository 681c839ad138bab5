"""Whether the coordinator still has what it was told: it may have lost its disk, or been set back to an older copy.

Then its keys may name a member as one that holds every message, although it was left out since. Nobody acts on such
keys until the leader, which knows better, has written them again. Its key then says so: it has the coordinator's new
id, and a revision that is no lower than any that a member has seen.
"""

from rmqha.failover.member import Known
from rmqha.failover.view import ClusterView


class Trust:
    """Follows what is read. ``needed`` is the revision that the leader's key must name; 0 while nothing is wrong."""

    def __init__(self) -> None:
        self.needed = 0
        self._newest = 1
        self._cluster_id: int | None = None

    def look(self, view: ClusterView, cluster_id: int | None, known: Known) -> None:
        """These keys were read from the coordinator with this id. ``known`` is what the node knows of its cluster."""
        expected = known.cluster_id if self._cluster_id is None else self._cluster_id
        is_other = None not in (expected, cluster_id) and expected != cluster_id
        if is_other or view.snapshot.revision < self._newest:
            self.needed = max(self.needed, self._newest)
        self._newest, self._cluster_id = view.snapshot.revision, cluster_id
        leader = view.leader
        if leader is not None and leader.cluster_id == cluster_id and leader.floor >= self.needed:
            self.needed = 0

    def is_doubtful(self, view: ClusterView, known: Known) -> bool:
        """Whether these keys may be older than what the cluster has done."""
        return self.needed > 0 or view.epoch < known.epoch

    def floor(self, view: ClusterView) -> int:
        """The revision that a leader's key must name, so that all members trust the keys again."""
        return max([self.needed, *(member.doubts_below for member in view.members.values())])
