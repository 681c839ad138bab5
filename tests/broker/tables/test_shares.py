"""Room that nobody can use up alone."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables.shares import Shares


class SharesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.shares = Shares(16)

    def taken(self, holder: str, wanted: int = 16) -> int:
        """How many of these it gets."""
        return sum(self.shares.take(holder) for _ in range(wanted))

    def test_nobody_gets_more_than_half(self) -> None:
        self.assertEqual([self.taken("a"), self.taken("b"), self.taken("c"), self.taken("d")], [8, 4, 4, 0])
        self.assertEqual(self.shares.count, 16)

    def test_what_is_given_back_is_there_for_all(self) -> None:
        self.taken("a")
        for _ in range(8):
            self.shares.give_back("a")
        self.assertEqual((self.shares.count, self.taken("b")), (0, 8))
