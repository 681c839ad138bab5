"""What the simulator has found in the random walk, as scenarios."""

import pytest

from rmqha.ha.slave.replica import StartFrom
from rmqha.ha.slave.slaveservice import SlaveOptions
from rmqha.ha.slave.states import ReplicaState
from rmqha.settings.settings import BrokerRole
from rmqha.store.message import PutMessageStatus
from rmqha.testing.sim.failover import REWINDING, Failover
from rmqha.testing.sim.simulation import (
    MASTER,
    SEGMENT_SIZE,
    Config,
    Simulation,
    SlaveConfig,
    delete_first_segment,
    wait_for_checkpoint,
)
from rmqha.testing.sim.violation import Violation
from rmqha.wire.transfer import TRANSFER_HEADER
from tests.testing.planted import let_consumers_read_what_one_slave_holds

SLAVE = "slave-1"


def go_on(simulation: Simulation, seconds: float) -> None:
    """Time goes by, and everything gets through."""
    for _ in range(round(seconds * 4)):
        simulation.settle()
        simulation.advance(0.25)


def test_a_slave_that_begins_in_the_middle_answers_no_put_from_before() -> None:
    """With --from=last: it has the last segment, and the put that waits is in the one before."""
    simulation = Simulation(Config(slaves=[SlaveConfig(options=SlaveOptions(StartFrom(last=True)))]))
    with simulation.running():
        simulation.start()
        simulation.settle()
        simulation.block(MASTER, SLAVE)
        put = simulation.put()
        for _ in range(4):
            simulation.put(1200, waits=False)
        simulation.cut(SLAVE)
        simulation.unblock()
        go_on(simulation, 2.75)
        assert put.status is not PutMessageStatus.PUT_OK


def test_without_remoting_a_slave_says_that_its_master_has_deleted_what_it_needs() -> None:
    """Its log ends where the master's begins, but its last message, to be compared, was deleted there."""
    simulation = Simulation(Config(slaves=[SlaveConfig(remoting=False)]))
    with simulation.running():
        simulation.start()
        go_on(simulation, 10)
        for _ in range(4):
            simulation.put(800, waits=False)
        simulation.put(SEGMENT_SIZE // 2, waits=False)  # rolls
        simulation.advance(0)
        frames = 3  # a heartbeat, the first message, the rest of the segment
        simulation.deliver_between(MASTER, SLAVE, SEGMENT_SIZE + frames * TRANSFER_HEADER.size)
        simulation.kill(SLAVE)
        for _ in range(10):
            simulation.put(1200, waits=False)
        wait_for_checkpoint(simulation)
        delete_first_segment(simulation)
        simulation.start(SLAVE)
        assert simulation.slaves[0].log.verified_offset == SEGMENT_SIZE
        go_on(simulation, 60)
        service = simulation.slaves[0].service
        assert service is not None
        assert service.replica.state is ReplicaState.GAP


def test_a_segment_stays_until_the_queues_made_of_it_are_on_the_disk() -> None:
    """Without both, a queue started again from 0 after a power cut, and groups missed its new messages."""
    simulation = Simulation(Config())
    with simulation.running():
        simulation.start()
        for _ in range(12):
            simulation.put(1000, waits=False)
            simulation.settle()
        simulation.advance(1)
        delete_first_segment(simulation)
        assert simulation.master.log.min_offset == 0
        wait_for_checkpoint(simulation)
        delete_first_segment(simulation)
        assert simulation.master.log.min_offset == SEGMENT_SIZE
        simulation.lose_power(MASTER)
        simulation.start()
        simulation.converge()


@pytest.mark.parametrize("messages", [0, 1, 12])
def test_without_remoting_a_slave_says_that_its_masters_log_is_shorter(messages: int) -> None:
    """Its master closes each connection that asks for the slave's last message: it came back with another disk."""
    simulation = Simulation(Config(slaves=[SlaveConfig(remoting=False)]))
    with simulation.running():
        simulation.start()
        go_on(simulation, 10)
        for _ in range(20):
            simulation.put(400, waits=False)
        go_on(simulation, 2)
        slave = simulation.slaves[0]
        held = slave.log.verified_offset
        simulation.wipe(MASTER)
        simulation.start(MASTER)
        for _ in range(messages):
            simulation.put(100, waits=False)
        go_on(simulation, 120)
        assert slave.service is not None
        assert slave.service.replica.state in (ReplicaState.AHEAD, ReplicaState.DIVERGED)
        assert slave.log.verified_offset == held


def test_a_slave_that_repairs_its_log_reports_nothing_that_a_loss_of_power_takes() -> None:
    """It asks for bytes by a report: a SYNC_MASTER takes that for an acknowledgement of all that is before them."""
    for seed in range(10):
        simulation = Simulation(Config(slaves=[SlaveConfig({"flushDiskType": "SYNC_FLUSH"})]), seed)
        with simulation.running():
            simulation.start()
            simulation.settle()
            for _ in range(5):
                simulation.put()
            simulation.deliver_between(MASTER, SLAVE)
            slave = simulation.slaves[0]
            assert slave.log.flushed_offset < slave.log.verified_offset
            simulation.kill(SLAVE)
            simulation.rot(SLAVE)
            simulation.start(SLAVE)
            simulation.settle()
            simulation.converge()


# Of the simulator itself


def lose_the_master(simulation: Failover) -> None:
    """It has a message that its slaves never got, and they follow the first of them, which has another one there."""
    first, *others = (slave for slave in simulation.slaves if slave.name != MASTER)
    simulation.start()
    simulation.settle()
    simulation.put()
    simulation.settle()
    for slave in (first, *others):
        simulation.block(MASTER, slave.name)
    simulation.put(waits=False)
    simulation.settle()
    simulation.kill(MASTER)
    simulation.unblock()
    first.promote(BrokerRole.SYNC_MASTER)
    assert simulation.wait(lambda: not first.is_changing, 60.0)
    for slave in others:
        simulation.kill(slave.name)
        simulation.follow(slave, first, REWINDING)
        simulation.start(slave.name)
    assert simulation.leader is first
    go_on(simulation, 1)


def test_bytes_of_another_master_are_no_copy_of_a_put() -> None:
    """Seed 874 of the failovers: the old master was believed to hold what the new one wrote at the same offset."""
    simulation = Failover(Config(slaves=[SlaveConfig(), SlaveConfig()]), 0)
    with simulation.running():
        lose_the_master(simulation)
        old = simulation.nodes[MASTER]
        assert isinstance(old, type(simulation.leader))
        simulation.follow(old, simulation.leader, SlaveOptions())
        put = simulation.put(node=simulation.leader)
        simulation.settle()
        assert put.status is PutMessageStatus.PUT_OK
        assert simulation.judge.promised[-1].holders == {"slave-2"}


def test_a_rewind_that_was_killed_is_over() -> None:
    """Seed 1140 of the failovers: a slave that drops half a record later on is not rewound by that."""
    simulation = Failover(Config(slaves=[SlaveConfig()]), 0)
    with simulation.running():
        lose_the_master(simulation)
        old, leader = simulation.slaves[0], simulation.leader
        simulation.follow(old, leader, SlaveOptions())

        for calls in range(100):  # the first time that it gets so far, it dies before it changes anything
            old.command("rewind", old.rewind_offline, calls)
            assert simulation.wait(lambda: old.process is None, 60.0)
            if simulation.judge.rewinds:
                break
        assert any("killed before" in line for line in simulation.trace[-3:])
        old.disk.cutting(old.configured.commit_log_folder / "00000000000000000000", 0)
        simulation.check()


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_slave_in_sync_has_what_consumers_have_read(monkeypatch: pytest.MonkeyPatch, is_planted: bool) -> None:
    """With readUpTo=confirmed: reads end where the slower of two slaves in sync is, and so it may be promoted."""
    config = Config(slaves=[SlaveConfig(), SlaveConfig()], common={"readUpTo": "confirmed"})
    simulation = Failover(config, 0)
    with simulation.running():
        simulation.start()
        simulation.settle()
        simulation.put()
        simulation.settle()
        end = len(simulation.judge.served)
        assert end == simulation.leader.log.verified_offset
        if is_planted:
            let_consumers_read_what_one_slave_holds(monkeypatch)
        simulation.block(MASTER, SLAVE)
        simulation.put()
        simulation.settle()
        assert (len(simulation.judge.served) > end) is is_planted
        simulation.judge.leader_lost()
        slower = simulation.slaves[1]
        assert simulation.judge.is_fit(slower)
        simulation.kill(MASTER)
        slower.promote(BrokerRole.SYNC_MASTER)
        if is_planted:
            with pytest.raises(Violation, match="consumers have read up to"):
                simulation.wait(lambda: not slower.is_changing, 60.0)
        else:
            assert simulation.wait(lambda: not slower.is_changing, 60.0)
            simulation.check()
