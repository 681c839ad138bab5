"""What the benchmark of consumers takes for right, and what it prints; no broker runs here."""

import socket
from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.consumers import QUEUES, ConsumerLoad, Loads, Report, check_report, check_room, loads_of, longest_turns
from benchmarks.consumers import message_count as messages_of
from benchmarks.rawpulls import LENGTH_BYTES, Puller, WrongMessages, offset_after
from rmqha.testing.records import make_record
from rmqha.wire.command import RESPONSE_FLAG, RemotingCommand, ResponseCode, encode_command
from rmqha.wire.record import encode_record

SOUND: Report = {"missing": 0, "foreign": 0, "duplicates": 0}
METRICS = """\
rmqha_reactor_turn_seconds_bucket{node="a",le="0.05"} 7.0
rmqha_reactor_turn_seconds_bucket{node="a",le="0.1"} 9.0
rmqha_reactor_turn_seconds_bucket{node="a",le="0.25"} 9.0
rmqha_reactor_turn_seconds_bucket{node="a",le="+Inf"} 9.0
rmqha_reactor_turn_seconds_sum{node="a"} 1.0
"""


def messages(first: int, count: int) -> bytes:
    """Records with these queue offsets."""
    made = [make_record(number, b"body", "T") for number in range(first, first + count)]
    return b"".join(encode_record(replace(each, queue_offset=first + n)) for n, each in enumerate(made))


def frame(queue: int, body: bytes, code: int = ResponseCode.SUCCESS) -> bytes:
    """An answer to a pull of a queue."""
    encoded = encode_command(RemotingCommand(code, opaque=queue, flag=RESPONSE_FLAG, body=body))
    return len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded


class RawPullsTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.ours, self.other = socket.socketpair()
        self.addCleanup(self.ours.close)
        self.addCleanup(self.other.close)

    def test_each_queue_is_pulled_to_its_end(self) -> None:
        self.other.sendall(frame(0, messages(0, 2)) + frame(1, messages(0, 3)) + frame(0, messages(2, 1)))
        pulled = Puller(self.ours, "T", "g", {0: 3, 1: 3}).run()
        self.assertEqual(pulled.messages, 6)

    def test_messages_that_are_not_those_asked_for_are_an_error(self) -> None:
        self.other.sendall(frame(0, messages(1, 2)))
        with self.assertRaisesRegex(WrongMessages, "queue offset 1 instead of 0"):
            Puller(self.ours, "T", "g", {0: 3}).run()

    def test_an_answer_without_messages_is_an_error(self) -> None:
        self.other.sendall(frame(0, b"", ResponseCode.PULL_NOT_FOUND))
        with self.assertRaisesRegex(WrongMessages, "a pull of queue 0 is answered"):
            Puller(self.ours, "T", "g", {0: 3}).run()

    def test_a_message_that_is_cut_off_is_an_error(self) -> None:
        self.assertEqual(offset_after(messages(5, 2), 5), 7)
        with self.assertRaises(WrongMessages):
            offset_after(messages(5, 2)[:-1], 5)


class ConsumersTestCase(SynchronousTestCase):
    def test_a_missing_or_changed_message_ends_the_benchmark(self) -> None:
        check_report("ours", SOUND)
        for wrong in ("missing", "foreign"):
            with self.assertRaises(SystemExit):
                check_report("ours", SOUND | {wrong: 1})

    def test_each_queue_gets_the_same_number_of_messages(self) -> None:
        for gib in (0.01, 1.0, 10.0):
            self.assertEqual(messages_of(gib) % QUEUES, 0)
        self.assertLess(messages_of(1.0) * 1024, 1 << 30)

    def test_each_load_has_each_number_of_groups(self) -> None:
        loads = loads_of(Loads.ALL, (1, 4), 1000)
        self.assertEqual([load.groups for load in loads if load.kind == Loads.BEHIND], [1, 4])
        self.assertEqual({load.count for load in loads if load.kind != Loads.HEAD}, {1000})
        self.assertEqual(loads[0], ConsumerLoad("head", 1, 1024, 60_000))

    def test_a_disk_without_room_is_refused(self) -> None:
        with self.assertRaisesRegex(SystemExit, "--gib"):
            check_room(Path(), 1e9)

    def test_the_longest_turn_is_read_from_the_metrics(self) -> None:
        self.assertEqual(longest_turns(METRICS), "9 turns, 2 over 50 ms, the longest at most 100 ms")
