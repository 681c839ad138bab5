"""The keys of a coordinator: which comparisons of a key are true."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Compare, CompareTarget, Delete, Put
from rmqha.coordination.state import KeysAndLeases

CREATE, MOD, VALUE = CompareTarget.CREATE, CompareTarget.MOD, CompareTarget.VALUE


class ComparisonTests(SynchronousTestCase):
    """Of ``k``, which was created, and then changed once."""

    def setUp(self) -> None:
        self.state = KeysAndLeases()
        self.created = self.put(b"1")
        self.changed = self.put(b"2")

    def put(self, value: bytes) -> int:
        """Write ``k``. Returns the revision."""
        written = self.state.transaction([], [Put("k", value)])
        assert written is not None
        self.state.apply(written, 0.0)
        return self.state.revision

    def test_each_comparison_asks_for_what_it_names(self) -> None:
        for compare, holds in (
            (Compare("k", CREATE, self.created), True),
            (Compare("k", CREATE, self.changed), False),
            (Compare("k", CREATE, 0), False),
            (Compare("k", MOD, self.changed), True),
            (Compare("k", MOD, self.created), False),
            (Compare("k", MOD, 0), False),
            (Compare("k", VALUE, b"2"), True),
            (Compare("k", VALUE, b"1"), False),
            (Compare("none", CREATE, 0), True),
            (Compare("none", CREATE, 1), False),
            (Compare("none", MOD, 0), True),
            (Compare("none", MOD, 1), False),
            (Compare("none", VALUE, b""), False),
        ):
            with self.subTest(str(compare)):
                self.assertIs(self.state.holds(compare), holds)

    def test_one_comparison_that_is_false_keeps_all_writes_away(self) -> None:
        true, false = Compare("k", MOD, self.changed), Compare("k", MOD, self.created)
        writes: list[Put | Delete] = [Put("other", b""), Delete("k")]
        for compares in ([false], [true, false], [false, true]):
            self.assertIsNone(self.state.transaction(compares, writes))
        self.assertIsNotNone(self.state.transaction([true], writes))
