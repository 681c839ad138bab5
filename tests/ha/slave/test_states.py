"""A slave's states: the table of transitions, and that no others are possible."""

from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.states import TRANSITIONS, VERDICTS, ReplicaState, check_transition


class TransitionsTests(SynchronousTestCase):
    """The table says of every state where a slave may go from there."""

    def test_every_state_has_its_row(self) -> None:
        self.assertEqual(set(TRANSITIONS), set(ReplicaState))

    def test_a_move_of_the_table_is_allowed_and_every_other_refused(self) -> None:
        for old, new in product(ReplicaState, ReplicaState):
            if new in TRANSITIONS[old]:
                check_transition(old, new)
            else:
                error = self.assertRaises(ValueError, check_transition, old, new)
                self.assertEqual(str(error), f"a slave cannot go from {old.name} to {new.name}")

    def test_stopped_is_the_end(self) -> None:
        for new in ReplicaState:
            self.assertRaises(ValueError, check_transition, ReplicaState.STOPPED, new)

    def test_every_other_state_can_be_stopped_and_can_meet_a_verdict(self) -> None:
        """But for the one before the store is open: then nothing is compared yet."""
        for old in set(ReplicaState) - {ReplicaState.STOPPED}:
            check_transition(old, ReplicaState.STOPPED)
            for verdict in VERDICTS if old is not ReplicaState.REPAIRING else ():
                check_transition(old, verdict)

    def test_a_verdict_is_not_forgotten_by_connecting_anew(self) -> None:
        for verdict in VERDICTS:
            self.assertRaises(ValueError, check_transition, verdict, ReplicaState.HANDSHAKE)
