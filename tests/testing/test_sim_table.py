"""What happens when: many rows of docs/faults.md, each as a scripted scenario.

"Log stored, consume queue not" is in tests/store/derived/test_derived.py.
"""

from contextlib import ExitStack

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.slaveservice import OnGap, SlaveOptions
from rmqha.ha.slave.states import ReplicaState
from rmqha.store.message import PutMessageStatus
from rmqha.testing.sim.network import End
from rmqha.testing.sim.oracle import Put
from rmqha.testing.sim.simulation import (
    MASTER,
    Config,
    Simulation,
    SlaveConfig,
    delete_first_segment,
    wait_for_checkpoint,
)
from rmqha.wire.transfer import TRANSFER_HEADER

SLAVE = "slave-1"
SYNC_MASTER = {"brokerRole": "SYNC_MASTER"}
FLUSHING_SLAVE = SlaveConfig({"flushDiskType": "SYNC_FLUSH"})
RETRY_SECONDS = 2.75
"""The first retry comes after one and a half seconds and up to one more."""


class ScenarioTestCase(SynchronousTestCase):
    """``simulate`` starts a master and slaves, and has them connected."""

    def simulate(self, *slaves: SlaveConfig, connect: bool = True, **master: str) -> Simulation:
        simulation = Simulation(Config({**SYNC_MASTER, **master}, slaves or (SlaveConfig(),)))
        stack = ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(simulation.running())
        simulation.start()
        if connect:
            simulation.settle()
        return simulation

    def put_and_settle(self, simulation: Simulation, body_bytes: int = 100, waits: bool = True) -> Put:
        """A put, and all that comes of it without time going by."""
        put = simulation.put(body_bytes, waits)
        simulation.settle()
        return put

    def to_slave(self, simulation: Simulation) -> End:
        """The slave's end, with what the master has sent."""
        simulation.advance(0)
        return next(end for end in simulation.network.news() if end.name == SLAVE)

    def state(self, simulation: Simulation, number: int = 0) -> ReplicaState:
        """A slave's."""
        service = simulation.slaves[number].service
        assert service is not None
        return service.replica.state

    def go_on(self, simulation: Simulation, seconds: float) -> None:
        """Time goes by, and everything gets through."""
        for _ in range(round(seconds * 4)):
            simulation.settle()
            simulation.advance(0.25)
        simulation.settle()


class TableTests(ScenarioTestCase):
    def test_a_lost_report_is_made_good_by_the_next_one(self) -> None:
        simulation = self.simulate()
        self.put_and_settle(simulation)
        put = simulation.put()
        simulation.deliver_between(MASTER, SLAVE)
        self.assertEqual(simulation.slaves[0].log.verified_offset, simulation.master.log.verified_offset)
        simulation.drop(SLAVE, MASTER)
        self.go_on(simulation, RETRY_SECONDS)
        self.assertIs(put.status, PutMessageStatus.PUT_OK)

    def test_a_report_that_never_comes_ends_the_wait_at_its_deadline(self) -> None:
        """FLUSH_SLAVE_TIMEOUT; the message stays on the master."""
        simulation = self.simulate()
        simulation.block(SLAVE, MASTER)
        put = self.put_and_settle(simulation)
        simulation.advance(2.9)
        self.assertIsNone(put.status)
        simulation.advance(0.2)
        self.assertIs(put.status, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertEqual(simulation.master.log.verified_offset, put.end)

    def test_a_slave_may_have_what_the_producer_was_told_nothing_of(self) -> None:
        """Stored on the slave, the report lost, the master dead: readers of the slave see the message."""
        simulation = self.simulate()
        put = simulation.put()
        simulation.deliver_between(MASTER, SLAVE)
        simulation.drop(SLAVE, MASTER)
        simulation.lose_power(MASTER)
        self.go_on(simulation, 5)
        self.assertIsNone(put.status)
        self.assertGreater(simulation.slaves[0].log.verified_offset, 0)

    def test_puts_go_on_when_a_slave_that_died_returns(self) -> None:
        simulation = self.simulate()
        put = simulation.put()
        simulation.deliver_between(MASTER, SLAVE, 60)
        simulation.kill(SLAVE)
        self.go_on(simulation, 3.25)
        self.assertIs(put.status, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertIs(simulation.put().status, PutMessageStatus.SLAVE_NOT_AVAILABLE)
        simulation.start(SLAVE)
        simulation.settle()
        self.assertIs(self.put_and_settle(simulation).status, PutMessageStatus.PUT_OK)
        simulation.converge()

    def test_what_a_slave_could_not_store_is_sent_again(self) -> None:
        """Its disk refuses the first of two transfers; the second is not stored behind a hole."""
        simulation = self.simulate(FLUSHING_SLAVE, haTransferBatchSize="300")
        self.put_and_settle(simulation)
        stored = simulation.slaves[0].log.verified_offset
        simulation.slaves[0].disk.full = True
        simulation.put(800)
        simulation.settle()
        simulation.advance(0)
        self.assertIsNotNone(simulation.slaves[0].process, "it waits for room")
        self.assertEqual(simulation.slaves[0].log.verified_offset, stored)
        simulation.slaves[0].disk.heal()
        simulation.converge()
        self.assertTrue(simulation.oracle.equal(simulation.slaves[0], simulation.master))

    def test_a_transfer_that_does_not_follow_ends_the_connection(self) -> None:
        simulation = self.simulate(haTransferBatchSize="300")
        self.put_and_settle(simulation)
        put = simulation.put(800)
        end = self.to_slave(simulation)
        del end.inbound[: TRANSFER_HEADER.size + 300]  # one transfer is lost, the next one comes
        simulation.settle()
        self.assertIs(self.state(simulation), ReplicaState.CONNECTING)
        self.go_on(simulation, RETRY_SECONDS)
        self.assertIs(put.status, PutMessageStatus.PUT_OK)
        self.assertTrue(simulation.oracle.equal(simulation.slaves[0], simulation.master))

    def test_without_a_slave_a_put_is_answered_at_once(self) -> None:
        simulation = self.simulate(connect=False)
        self.assertIs(simulation.put().status, PutMessageStatus.SLAVE_NOT_AVAILABLE)

    def test_a_slave_far_behind_is_none(self) -> None:
        simulation = self.simulate(haSlaveFallbehindMax="1000")
        simulation.block(MASTER, SLAVE)
        self.put_and_settle(simulation, 1500, waits=False)
        self.assertIs(simulation.put().status, PutMessageStatus.SLAVE_NOT_AVAILABLE)
        simulation.unblock()
        simulation.settle()
        self.assertIs(self.put_and_settle(simulation).status, PutMessageStatus.PUT_OK)

    def test_who_does_not_want_to_wait_is_answered_at_once(self) -> None:
        simulation = self.simulate()
        self.assertIs(simulation.put(waits=False).status, PutMessageStatus.PUT_OK)

    def test_a_message_of_many_batches_is_answered_on_its_last_byte(self) -> None:
        """And the one behind it no later than on its own."""
        simulation = self.simulate(haTransferBatchSize="100")
        large, small = simulation.put(3000), simulation.put(10)
        end = self.to_slave(simulation)
        while end.inbound:
            simulation.deliver(end, 1)
            simulation.deliver_between(SLAVE, MASTER)
            has_large = simulation.slaves[0].log.verified_offset >= 3000
            self.assertEqual(large.status is PutMessageStatus.PUT_OK, has_large)
        self.assertIs(small.status, PutMessageStatus.PUT_OK)

    def test_a_slave_ahead_of_its_master_is_refused_and_says_so(self) -> None:
        simulation = self.simulate()
        self.put_and_settle(simulation)
        simulation.lose_power(MASTER)  # nothing was flushed
        simulation.wipe(MASTER)
        simulation.start(MASTER)
        self.go_on(simulation, 40)
        self.assertIs(self.state(simulation), ReplicaState.AHEAD)
        self.assertGreater(simulation.slaves[0].log.verified_offset, 0)

    def test_a_slave_whose_next_bytes_were_deleted_says_so(self) -> None:
        simulation = self.behind_the_masters_min(OnGap.STOP)
        self.assertIs(self.state(simulation), ReplicaState.GAP)

    def test_a_slave_may_begin_anew_behind_what_was_deleted(self) -> None:
        simulation = self.behind_the_masters_min(OnGap.RESEED)
        self.go_on(simulation, RETRY_SECONDS)
        self.assertTrue(simulation.oracle.equal(simulation.slaves[0], simulation.master))
        self.assertEqual(simulation.slaves[0].log.min_offset, simulation.master.log.min_offset)

    def behind_the_masters_min(self, on_gap: OnGap) -> Simulation:
        """A slave comes back to a master whose first segments are gone."""
        simulation = self.simulate(SlaveConfig(options=SlaveOptions(on_gap=on_gap)))
        self.put_and_settle(simulation)
        simulation.kill(SLAVE)
        for _ in range(12):
            self.put_and_settle(simulation, 1000, waits=False)
        wait_for_checkpoint(simulation)
        delete_first_segment(simulation)
        simulation.start(SLAVE)
        simulation.settle()
        return simulation

    def test_both_sides_drop_a_peer_that_is_silent(self) -> None:
        simulation = self.simulate()
        self.put_and_settle(simulation)
        simulation.block(SLAVE, MASTER)
        simulation.block(MASTER, SLAVE)
        assert simulation.master.serving is not None
        simulation.advance(19)
        self.assertEqual(len(simulation.master.serving.factory.connections), 1)
        self.assertIs(self.state(simulation), ReplicaState.IN_SYNC)
        simulation.advance(2)
        self.assertEqual(len(simulation.master.serving.factory.connections), 0)
        self.assertIs(self.state(simulation), ReplicaState.CONNECTING)


class NetworkTests(ScenarioTestCase):
    def test_a_partition_of_any_length_is_made_good(self) -> None:
        """N1."""
        for seconds in (1, 30, 600):
            simulation = self.simulate(FLUSHING_SLAVE)
            self.put_and_settle(simulation)
            simulation.block(SLAVE, MASTER)
            simulation.block(MASTER, SLAVE)
            simulation.put(waits=False)
            simulation.advance(seconds)
            simulation.unblock()
            self.go_on(simulation, 33)
            self.assertTrue(simulation.oracle.equal(simulation.slaves[0], simulation.master), seconds)
            self.assertIs(self.put_and_settle(simulation).status, PutMessageStatus.PUT_OK)

    def test_a_peer_without_power_is_dropped(self) -> None:
        """N2: no FIN ever comes."""
        simulation = self.simulate()
        simulation.lose_power(SLAVE)
        assert simulation.master.serving is not None
        self.go_on(simulation, 21)
        self.assertEqual(simulation.master.serving.factory.connections, [])

    @pytest.mark.long
    def test_a_connection_cut_after_any_byte_loses_nothing(self) -> None:
        """N5, N6: in the header, in the body, between two frames."""
        for after_bytes in range(150):
            simulation = self.simulate(haTransferBatchSize="60")
            simulation.put(waits=False)
            simulation.advance(0)
            simulation.deliver_between(MASTER, SLAVE, after_bytes)
            simulation.cut(SLAVE)
            self.go_on(simulation, RETRY_SECONDS)
            self.assertTrue(simulation.oracle.equal(simulation.slaves[0], simulation.master), after_bytes)

    def test_garbage_in_front_of_frames_is_refused(self) -> None:
        """N12: a proxy that adds a banner."""
        simulation = self.simulate(connect=False)
        simulation.strangers.impersonate(simulation.network.attempts[0], b"220 mail.example.com ESMTP\r\n")
        simulation.converge()
        self.assertTrue(any("who is not master" in line for line in simulation.trace))
