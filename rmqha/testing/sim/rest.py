"""Whether slaves have come to rest: equal to their masters, or with a reason why they are not."""

from rmqha.ha.slave.slaveservice import OnGap
from rmqha.ha.slave.states import VERDICTS, ReplicaState
from rmqha.testing.sim.nodes import SimNode, SimSlave
from rmqha.testing.sim.oracle import Oracle


class Rest:
    """Looks at slaves and their masters, which are found among ``nodes``."""

    def __init__(self, oracle: Oracle, nodes: dict[str, SimNode]) -> None:
        self._oracle = oracle
        self._nodes = nodes

    def is_equal(self, slave: SimSlave) -> bool:
        """Whether the slave has what its master has, or has no way on."""
        if not slave.runs:
            return False
        return self._oracle.equal(slave, self._nodes[slave.master_name]) or self._cannot_learn(slave)

    def _cannot_learn(self, slave: SimSlave) -> bool:
        """Whether the slave has no way on: --from is gone, or without remoting it cannot know where to begin."""
        master = self._nodes[slave.master_name]
        if not master.runs:
            return False
        ours, theirs = slave.log, master.log
        if slave.remoting:
            wanted = slave.options.start_from.offset
            return wanted is not None and wanted < theirs.min_offset and ours.min_offset == ours.verified_offset
        return (ours.last_message_offset or 0) < theirs.min_offset

    def is_at_rest(self, slave: SimSlave) -> bool:
        """Whether the slave is equal, or has found out that it cannot become so; a slave's slave, equal to that."""
        master = self._nodes[slave.master_name]
        if not slave.runs or not master.runs:
            return False
        if self._oracle.equal(slave, master):
            return True
        assert slave.service is not None
        state = slave.service.replica.state
        reseeds = state is ReplicaState.GAP and slave.options.on_gap is OnGap.RESEED
        if self._cannot_learn(slave) or self._waits_for_lost_master(slave):
            return True
        return not self._oracle.fits(slave, master) and not reseeds and (state in VERDICTS or not slave.remoting)

    def _waits_for_lost_master(self, slave: SimSlave) -> bool:
        """Whether the slave wants to start after the end of another slave, whose log does not fit and does not grow."""
        master = self._nodes[slave.master_name]
        wanted = slave.options.start_from.offset or 0
        return isinstance(master, SimSlave) and wanted > master.log.verified_offset and self.is_at_rest(master)
