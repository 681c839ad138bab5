"""The compiled pass over sends takes what the plain one takes, byte for byte, or leaves it to that one."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.compiled import KERNEL
from rmqha.wire.sends import plain
from rmqha.wire.sends.run import Declined, Place, SendRun, TopicRoom
from tests.twins import need_kernel
from tests.wire.sends import streams


def place(**changes: Any) -> Place:
    """Where an ordinary message may go."""
    usual = replace(
        streams.a_place(Random(1)), max_record_bytes=1 << 22, access=None, offset=4096, limit=1 << 30, most=1000
    )
    return replace(usual, **changes)


class KernelTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        need_kernel()
        super().setUp()
        self.kernel: Any = KERNEL

    def ordinary(self, number: int, **changes: str) -> bytes:
        """The frame of an ordinary send; ``changes`` are values of its fields."""
        fields = {
            "a": "Group",
            "b": "Orders",
            "c": "TBW102",
            "d": "4",
            "e": "1",
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": f"UNIQ_KEY\1AC{number}\2WAIT\1true\2TAGS\1TagA",
            "j": "0",
            "k": "false",
            "l": "16",
            "m": "false",
            **changes,
        }
        texts = ",".join(f'"{name}":"{text}"' for name, text in fields.items())
        texts = texts.replace("\1", "\\u0001").replace("\2", "\\u0002")
        header = f'{{"code":310,"extFields":{{{texts}}},"flag":0,"language":"JAVA","opaque":{number},"version":399}}'
        return streams.frame(header.encode(), b"body")

    def same(self, data: bytes, **changes: Any) -> SendRun:
        """The kernel's run, which is that of the plain pass."""
        where = place(**changes)
        run = self.kernel.try_sends(data, 0, where)
        assert run is not None, "the kernel takes it"
        self.assertEqual(streams.differences(run, plain.take(data, 0, replace(where, most=run.count))), [])
        return run  # type: ignore[no-any-return]  # the kernel is Any here, because it may not be there


class OrdinaryTests(KernelTestCase):
    def test_all_ordinary_sends_of_a_read_are_one_run(self) -> None:
        data = b"".join(self.ordinary(number, e=str(number % 4)) for number in range(40))
        run = self.same(data)
        self.assertEqual((run.count, run.end, run.declined), (40, len(data), Declined.UNFINISHED))
        self.assertEqual(len(run.queues), 4)

    def test_a_read_that_is_cut_anywhere_gives_whole_sends_only(self) -> None:
        data = b"".join(self.ordinary(number) for number in range(3))
        first = len(self.ordinary(0))
        for end in range(len(data) + 1):
            if end < first:
                self.assertIsNone(self.kernel.try_sends(data[:end], 0, place()))
            else:
                self.assertEqual(self.same(data[:end]).count, end // first)

    def test_it_stops_at_the_first_send_that_is_odd(self) -> None:
        for changes in ({"i": "DELAY\13"}, {"b": "Nowhere"}, {"e": "4"}, {"f": "4"}, {"g": "1e3"}, {"m": "true"}):
            data = self.ordinary(0) + self.ordinary(1, **changes) + self.ordinary(2)
            run = self.same(data)
            self.assertEqual((run.count, run.declined), (1, Declined.LIMIT))
            self.assertIsNone(self.kernel.try_sends(data, run.end, place()))
            self.assertEqual(self.kernel.take_sends(data, run.end, place()), plain.take(data, run.end, place()))

    def test_more_queues_than_one_run_knows_are_two_runs(self) -> None:
        where = place(topics=_ManyQueues())
        data = b"".join(self.ordinary(number, b="Wide", e=str(number)) for number in range(100))
        at, counts = 0, []
        while (run := self.kernel.try_sends(data, at, where)) is not None:
            counts.append(run.count)
            at = run.end
        self.assertEqual((sum(counts), at), (100, len(data)))
        self.assertGreater(len(counts), 1)

    def test_limits_of_the_place_are_kept(self) -> None:
        data = b"".join(self.ordinary(number) for number in range(10))
        self.assertEqual(self.same(data, most=3).count, 3)
        size = len(self.same(data, most=1).records)
        self.assertEqual(self.same(data, limit=4096 + 4 * size).count, 4)
        self.assertEqual(self.same(data, limit=4096 + 5 * size - 1).count, 4)
        for limit in (
            {"max_record_bytes": size - 1},
            {"max_body_bytes": 3},
            {"most": 0},
            {"limit": 4096},
            {"offset": -1},
        ):
            self.assertIsNone(self.kernel.try_sends(data, 0, place(**limit)))

    def test_a_position_outside_of_the_read_takes_nothing(self) -> None:
        data = self.ordinary(0)
        for at in (-1, -len(data), len(data), len(data) + 1, 1 << 40):
            self.assertIsNone(self.kernel.try_sends(data, at, place()))


class _ManyQueues:
    """A topic with a hundred queues."""

    def room_of(self, topic: str) -> TopicRoom:
        return TopicRoom.of(topic, 100)


class AnyReadTests(KernelTestCase):
    @pytest.mark.long
    def test_any_read_gives_what_the_plain_pass_gives(self) -> None:
        compared = streams.Compared()
        for seed in range(400):
            rng = Random(seed)
            streams.compare(self.kernel, streams.a_read(rng), streams.a_place(rng), compared)
        self.assertGreater(compared.taken_by_kernel, 400)
        self.assertGreater(compared.taken_by_plain, 100)
