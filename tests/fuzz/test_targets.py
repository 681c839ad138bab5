"""The targets hold for all that once broke one, and bugs that are planted are found."""

import pytest
from _pytest.mark import ParameterSet
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire import scan, transfer
from tests.fuzz import engine, measure
from tests.fuzz.engine import REGRESSIONS, TARGETS, Finding, Fuzzer, replay
from tests.fuzz.planted import BUGS, SLOWLY_FOUND, Patch, read_an_empty_name_for_ever
from tests.fuzz.target import Broken

BYTES_TO_FIND_A_BUG = 20_000_000


class RegressionTests(SynchronousTestCase):
    def test_what_once_broke_a_target_does_so_no_more(self) -> None:
        inputs = sorted(REGRESSIONS.glob("*.bin"))
        self.assertGreater(len(inputs), 0)
        for path in inputs:
            replay(TARGETS[path.name.partition("-")[0]], path.read_bytes())


class Spy(transfer.ReportDecoder):
    """A decoder that tells what it is fed."""

    seen: list[bytes]

    def feed(self, data: bytes) -> list[int]:
        self.seen.append(data)
        return super().feed(data)


class FuzzerTests(SynchronousTestCase):
    def inputs(self, seed: int) -> list[bytes]:
        Spy.seen = []
        self.patch(transfer, "ReportDecoder", Spy)
        Fuzzer(TARGETS["report"], seed).run(100_000)
        return Spy.seen

    def test_the_same_seed_makes_the_same_inputs(self) -> None:
        first = self.inputs(7)
        self.assertEqual(self.inputs(7), first)
        self.assertNotEqual(self.inputs(8), first)

    def test_every_target_goes_on_until_its_bytes_are_read(self) -> None:
        for target in TARGETS.values():
            fuzzer = Fuzzer(target, 1)
            for bytes_wanted in (100_000, 200_000):
                fuzzer.run(bytes_wanted)
                self.assertGreaterEqual(fuzzer.tally.bytes_read, bytes_wanted, target.name)

    def test_it_stops_when_the_time_is_over(self) -> None:
        fuzzer = Fuzzer(TARGETS["report"], 1)
        fuzzer.run(float("inf"), deadline=0)
        self.assertEqual(fuzzer.tally.executions, 0)


class MeasureTests(SynchronousTestCase):
    def test_memory_at_its_peak_is_seen(self) -> None:
        self.assertGreater(measure.peak_of(lambda data: len(bytes(1_000_000)), b""), 1_000_000)

    def test_calls_are_counted_alike_each_time(self) -> None:
        counts = {measure.calls_of(lambda data: [len(data) for _ in range(500)], b"") for _ in range(3)}
        self.assertEqual(len(counts), 1)
        self.assertGreater(counts.pop(), 500)

    def test_room_is_counted_that_is_not_used_yet(self) -> None:
        class Holder:
            def __init__(self) -> None:
                self.pieces = [b"abc", memoryview(b"defg")]
                self.buffer = bytearray(1000)
                self.number, self.text = 5, "text"
                del self.buffer[10:]
                self.buffer += bytes(900)

        self.assertGreaterEqual(measure.retained_bytes(Holder()), 3 + 4 + 910)


def case(name: str, plant: Patch) -> ParameterSet:
    marks = [pytest.mark.proof] if plant in SLOWLY_FOUND else []
    return pytest.param(name, plant, id=f"{name}: {plant.__name__}", marks=marks)


@pytest.mark.parametrize(("name", "plant"), [case(name, plant) for name, plants in BUGS.items() for plant in plants])
def test_a_planted_bug_is_found(name: str, plant: Patch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "check_records", lambda *arguments: scan.check_records_plain(*arguments))  # not the kernel
        plant(patch)
        with pytest.raises(Finding) as found:
            Fuzzer(TARGETS[name], seed=1).run(BYTES_TO_FIND_A_BUG)
    assert not isinstance(found.value.__cause__, NameError | UnboundLocalError), "this is no bug, but nonsense"
    replay(TARGETS[name], found.value.data)


def test_a_loop_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is short, so that the test is: a slow input is not taken for the loop, which never ends."""
    monkeypatch.setattr(engine, "HANGS_AFTER_SECONDS", 2.0)
    with pytest.MonkeyPatch.context() as patch:
        read_an_empty_name_for_ever(patch)
        with pytest.raises(Finding) as found:
            Fuzzer(TARGETS["command"], seed=1).run(BYTES_TO_FIND_A_BUG)
    assert isinstance(found.value.__cause__, Broken)
    assert "takes no longer" in str(found.value.__cause__)
    replay(TARGETS["command"], found.value.data)
