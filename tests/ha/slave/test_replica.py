"""What a slave decides: where to start, what to accept, what to report, and its state."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.replica import (
    CORRUPT_TRANSFERS_UNTIL_DIVERGED,
    OVERLAP_LIMIT_BYTES,
    Ahead,
    CorruptTransfer,
    Diverged,
    Gap,
    MasterView,
    PeerBreach,
    Replica,
    ReplicaError,
    StartFrom,
)
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.memory import MemoryCommitLog
from rmqha.wire.record import encode_blank
from rmqha.wire.transfer import Transfer, TransferDecoder
from tests import examples
from tests.ha.doubles import SEGMENT_SIZE, LogImage, content_of, make_image, memory_log, wire

IMAGE = make_image([300] * 30)  # several segments
UNKNOWN = MasterView()


def view_of(image: LogImage, min_offset: int = 0) -> MasterView:
    """What a master that holds the image says of itself."""
    return MasterView(min_offset, image.end)


class Slave:
    """A replica, its log, and the states it went through."""

    def __init__(
        self, image: LogImage | None = None, start_from: str = "min", segment_size: int = SEGMENT_SIZE
    ) -> None:
        self.log = memory_log(image, segment_size)
        self.states: list[ReplicaState] = []
        self.replica = Replica(self.log, StartFrom.parse(start_from), lambda state, _: self.states.append(state))

    def connect(self, view: MasterView = UNKNOWN) -> int:
        """A connection is there; returns the first report."""
        self.replica.connected()
        return self.replica.request(view)

    def read(self, *transfers: Transfer) -> None:
        """One read has brought these frames."""
        for transfer in transfers:
            self.replica.receive(transfer)
        self.replica.read_completed()

    def hear_heartbeats(self, offset: int, times: int = 2) -> None:
        """Heartbeats at this offset, each in a read of its own."""
        for _ in range(times):
            self.read(Transfer(offset, b""))


class FirstReportTests(SynchronousTestCase):
    """Where a slave asks the master to begin."""

    def request(self, view: MasterView, image: LogImage | None = None, start_from: str = "min") -> int:
        self.slave = Slave(image, start_from)
        return self.slave.connect(view)

    def test_an_empty_slave_asks_for_1_to_get_all_from_0(self) -> None:
        """A master that is asked for 0 would send its last segment only."""
        self.assertEqual(self.request(MasterView(0, 10_000)), 1)
        self.assertEqual((self.slave.log.min_offset, self.slave.log.max_offset), (0, 1))

    def test_an_empty_slave_asks_for_the_masters_min(self) -> None:
        self.assertEqual(self.request(MasterView(3 * SEGMENT_SIZE, 10 * SEGMENT_SIZE)), 3 * SEGMENT_SIZE)
        self.assertEqual(self.slave.log.min_offset, 3 * SEGMENT_SIZE)

    def test_an_empty_slave_asks_an_empty_master_for_0(self) -> None:
        """1 would lie behind the empty master's end."""
        for start_from in ("min", "0"):
            self.assertEqual(self.request(MasterView(0, 0), start_from=start_from), 0, start_from)

    def test_an_empty_slave_asks_an_emptied_master_for_its_end(self) -> None:
        """A master whose files all expired begins where it ends."""
        self.assertEqual(self.request(MasterView(8192, 8192)), 8192)

    def test_a_probe_that_found_the_first_segment_makes_0_safe(self) -> None:
        for start_from in ("min", "0"):
            self.assertEqual(self.request(MasterView(last_segment_offset=0), start_from=start_from), 0, start_from)

    def test_a_probe_that_found_a_later_segment_makes_it_ask_for_1(self) -> None:
        self.assertEqual(self.request(MasterView(last_segment_offset=2 * SEGMENT_SIZE)), 1)

    def test_an_unknown_master_is_asked_for_1(self) -> None:
        self.assertEqual(self.request(UNKNOWN), 1)

    def test_from_last_asks_for_0_and_begins_where_the_master_begins(self) -> None:
        self.assertEqual(self.request(MasterView(0, 10 * SEGMENT_SIZE), start_from="last"), 0)
        self.assertIsNone(self.slave.replica.reportable_offset)
        image = make_image([100], start=2 * SEGMENT_SIZE)
        self.slave.read(*image.transfers())
        self.assertEqual(self.slave.log.min_offset, 2 * SEGMENT_SIZE)
        self.assertEqual(self.slave.replica.reportable_offset, image.end)

    def test_from_last_refuses_a_master_that_begins_inside_a_segment(self) -> None:
        self.request(MasterView(0, 10 * SEGMENT_SIZE), start_from="last")
        error = self.assertRaises(PeerBreach, self.slave.read, Transfer(2 * SEGMENT_SIZE + 1, b"x"))
        self.assertIn("mappedFileSizeCommitLog=4096", str(error))
        self.assertEqual(self.slave.log.max_offset, 0)

    def test_from_an_offset_is_rounded_down_to_its_segment(self) -> None:
        view = MasterView(SEGMENT_SIZE, 10 * SEGMENT_SIZE)
        self.assertEqual(self.request(view, start_from=str(3 * SEGMENT_SIZE + 17)), 3 * SEGMENT_SIZE)
        self.assertEqual(self.slave.log.min_offset, 3 * SEGMENT_SIZE)

    def test_from_an_offset_inside_the_first_segment_asks_for_1(self) -> None:
        self.assertEqual(self.request(MasterView(0, 10 * SEGMENT_SIZE), start_from="17"), 1)

    def test_from_an_offset_that_the_master_lacks_is_a_verdict(self) -> None:
        gap, ahead = MasterView(2 * SEGMENT_SIZE, 10 * SEGMENT_SIZE), MasterView(0, SEGMENT_SIZE - 1)
        for verdict, view in ((Gap, gap), (Ahead, ahead)):
            slave = Slave(start_from=str(SEGMENT_SIZE))
            self.assertRaises(verdict, slave.connect, view)
            self.assertEqual(slave.log.max_offset, 0)

    def test_from_says_nothing_to_a_slave_that_holds_records(self) -> None:
        for start_from in ("min", "last", str(7 * SEGMENT_SIZE)):
            self.assertEqual(self.request(view_of(IMAGE), IMAGE, start_from), IMAGE.last_message, start_from)

    def test_a_slave_with_records_asks_for_its_last_message_again(self) -> None:
        self.assertEqual(self.request(UNKNOWN, IMAGE), IMAGE.last_message)
        self.assertEqual(self.slave.log.max_offset, IMAGE.end, "nothing is cut")

    def test_a_slave_whose_only_message_is_at_0_asks_for_1(self) -> None:
        self.assertEqual(self.request(UNKNOWN, make_image([100])), 1)

    def test_a_slave_asks_for_nothing_before_the_masters_min(self) -> None:
        master_min = IMAGE.last_message + 5
        self.assertEqual(self.request(view_of(IMAGE, master_min), IMAGE), master_min)

    def test_a_slave_asks_for_no_more_than_is_durable(self) -> None:
        """The first report is a report like any other, and a SYNC_MASTER may count it."""
        log = memory_log(IMAGE)
        replica = Replica(log, StartFrom(), lambda *_: None)
        replica.connected()
        for durable, start in (
            (0, 1),
            (777, 777),
            (IMAGE.last_message, IMAGE.last_message),
            (IMAGE.end, IMAGE.last_message),
        ):
            self.assertEqual(replica.request(UNKNOWN, durable), start)
        with self.assertRaisesRegex(ReplicaError, "trying again"):
            replica.request(view_of(IMAGE, SEGMENT_SIZE), 777)
        self.assertEqual(replica.request(view_of(IMAGE, SEGMENT_SIZE), SEGMENT_SIZE), SEGMENT_SIZE)

    def test_a_slave_asks_for_a_limited_overlap(self) -> None:
        size = 2 * OVERLAP_LIMIT_BYTES
        slave = Slave(segment_size=size)
        record = make_image([100], segment_size=size).content
        slave.log.append_data(0, record + encode_blank(size - len(record)).ljust(size - len(record), b"\0"))
        slave.log.verify()
        self.assertEqual(slave.connect(), size - OVERLAP_LIMIT_BYTES)

    def test_from_is_min_last_or_a_number(self) -> None:
        for text in ("", "MIN", "-1", "1.5", "last "):
            self.assertRaises(ValueError, StartFrom.parse, text)


class SegmentSizeTests(SynchronousTestCase):
    """Both ends must cut the log into segments of one size."""

    def test_another_segment_size_at_the_master_is_refused_before_anything_is_asked(self) -> None:
        for image in (None, IMAGE):
            slave = Slave(image)
            error = self.assertRaises(Diverged, slave.connect, MasterView(0, IMAGE.end, segment_size=8192))
            self.assertIn("mappedFileSizeCommitLog is 4096 here and 8192 at the master", str(error))
            self.assertEqual(slave.log.max_offset, 0 if image is None else image.end)

    def test_the_same_segment_size_is_fine(self) -> None:
        self.assertEqual(Slave().connect(MasterView(0, IMAGE.end, segment_size=SEGMENT_SIZE)), 1)


class OverlapTests(SynchronousTestCase):
    """What the master sends again is compared, and nothing appended before it was found equal."""

    def setUp(self) -> None:
        self.ours = IMAGE.prefix(IMAGE.messages[12])
        self.start = self.ours.last_message

    @pytest.mark.long
    def test_a_byte_that_differs_anywhere_is_divergence_and_nothing_is_appended(self) -> None:
        for batch_bytes in (SEGMENT_SIZE, 37):
            for offset in range(self.start, self.ours.end):
                slave = Slave(self.ours)
                slave.connect()
                theirs = IMAGE.with_byte_changed(offset).transfers(self.start, batch_bytes=batch_bytes)
                error = self.assertRaises(Diverged, slave.read, *theirs)
                self.assertIn(f"byte at {offset} ", str(error))
                self.assertEqual(content_of(slave.log), self.ours.content)

    def test_an_equal_overlap_is_gone_through_and_the_rest_appended(self) -> None:
        for batch_bytes in (SEGMENT_SIZE, 37, 1):
            slave = Slave(self.ours)
            self.assertEqual(slave.connect(), self.start)
            for transfer in IMAGE.transfers(self.start, batch_bytes=batch_bytes):
                slave.read(transfer)
            self.assertEqual(content_of(slave.log), IMAGE.content)

    def test_a_log_that_does_not_know_its_last_message_is_compared_too(self) -> None:
        """It was cut, or recovery looked only at the end. Without a comparison another log's bytes would come next."""
        slave = Slave(IMAGE)
        slave.log.truncate(IMAGE.messages[12])
        self.assertIsNone(slave.log.last_message_offset)
        self.assertEqual(slave.connect(), 1)
        theirs = IMAGE.with_byte_changed(IMAGE.messages[3] + 60).transfers(1)
        error = self.assertRaises(Diverged, slave.read, *theirs)
        self.assertIn(f"byte at {IMAGE.messages[3] + 60} ", str(error))
        self.assertEqual(slave.log.verified_offset, IMAGE.messages[12])

    def test_no_more_is_reported_than_the_master_sent_on_this_connection(self) -> None:
        """The master refuses reports beyond what it sent, though we hold more."""
        slave = Slave(self.ours)
        self.assertIsNone(slave.replica.reportable_offset, "no connection")
        slave.connect()
        self.assertEqual(slave.replica.reportable_offset, self.start)
        slave.read(*IMAGE.transfers(self.start, self.start + 50))
        self.assertEqual(slave.replica.reportable_offset, self.start + 50)

    def test_the_first_byte_of_the_log_is_proved_by_its_record(self) -> None:
        """Asked for 1, the master does not send byte 0; were it not zero, the first record would not be proved."""
        slave = Slave()
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(1))
        self.assertEqual(content_of(slave.log), IMAGE.content)


class DoubtTests(SynchronousTestCase):
    """A slave that may have lost bytes asks for them. Without a remoting port a master does not say what it deleted."""

    def setUp(self) -> None:
        self.slave = Slave(IMAGE)
        self.slave.replica.doubt(10)
        self.last = SEGMENT_SIZE * (IMAGE.end // SEGMENT_SIZE)
        self.view = MasterView(last_segment_offset=self.last)

    def asks(self, view: MasterView | None = None) -> int:
        """The first report of a connection that the master then closes."""
        request = self.slave.connect(view or self.view)
        self.slave.replica.connection_lost()
        return request

    def test_a_deleted_segment_is_skipped_after_two_connections_without_a_byte(self) -> None:
        size = SEGMENT_SIZE
        self.assertEqual([self.asks() for _ in range(5)], [10, 10, size, size, 2 * size])
        self.assertTrue(self.slave.replica.is_doubt_refused)
        request = self.slave.connect(self.view)
        self.slave.read(*IMAGE.transfers(request))
        self.assertIsNone(self.slave.replica.unproved_from)
        self.slave.replica.connection_lost()
        self.assertFalse(self.slave.replica.is_doubt_refused)
        self.assertEqual(self.asks(), IMAGE.last_message)

    def test_at_the_last_it_asks_as_if_nothing_was_lost(self) -> None:
        requests = [self.asks() for _ in range(3 * IMAGE.end // SEGMENT_SIZE)]
        self.assertEqual(requests[-1], min(self.last, IMAGE.last_message))
        self.assertEqual(requests, sorted(requests))

    def test_a_line_that_breaks_meanwhile_skips_nothing(self) -> None:
        for _ in range(4):
            self.assertEqual(self.slave.connect(self.view), 10)
            self.slave.read(*IMAGE.transfers(10, IMAGE.messages[3]))
            self.slave.replica.connection_lost()

    def test_nor_does_a_master_that_has_these_bytes(self) -> None:
        for view in (MasterView(0, IMAGE.end), MasterView(last_segment_offset=0), UNKNOWN):
            with self.subTest(view):
                self.assertEqual({self.asks(view) for _ in range(4)}, {10})


class FollowingTests(SynchronousTestCase):
    """Frames must follow one another, within segments."""

    def test_a_frame_elsewhere_than_next_is_refused(self) -> None:
        for offset in (0, IMAGE.last_message - 1, IMAGE.last_message + 1, IMAGE.end, 2**63 - 1):
            for body in (b"", b"x"):
                slave = Slave(IMAGE)
                slave.connect()
                self.assertRaises(PeerBreach, slave.read, Transfer(offset, body))
                self.assertEqual(slave.log.max_offset, IMAGE.end)

    def test_a_frame_across_a_segments_end_is_refused_and_the_setting_named(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(1, SEGMENT_SIZE - 10))
        error = self.assertRaises(PeerBreach, slave.read, Transfer(SEGMENT_SIZE - 10, bytes(11)))
        self.assertIn("mappedFileSizeCommitLog=4096", str(error))
        self.assertEqual(slave.log.max_offset, SEGMENT_SIZE - 10)

    def test_a_frame_up_to_a_segments_end_is_taken(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(1, SEGMENT_SIZE))
        self.assertEqual(slave.replica.reportable_offset, SEGMENT_SIZE)

    def test_a_frame_without_a_connection_is_refused(self) -> None:
        self.assertRaises(PeerBreach, Slave().read, Transfer(0, b""))


class ProofTests(SynchronousTestCase):
    """Bytes that are not a record are never reported."""

    def refuse(self, slave: Slave, theirs: LogImage, kind: type[Exception]) -> str:
        """Connect, hear what was heard before, and then something that is refused, for this reason."""
        slave.read(*theirs.transfers(slave.connect(view_of(theirs)), slave.log.max_offset))
        error = self.assertRaises(kind, slave.read, *theirs.transfers(slave.log.max_offset))
        slave.replica.connection_lost()
        return str(error)

    def test_a_damaged_record_closes_and_the_third_time_at_the_same_place_is_divergence(self) -> None:
        damaged = IMAGE.with_byte_changed(IMAGE.messages[2] + 100)
        slave = Slave()
        for _ in range(CORRUPT_TRANSFERS_UNTIL_DIVERGED - 1):
            reason = self.refuse(slave, damaged, CorruptTransfer)
            self.assertIn(f"what the master sent for {IMAGE.messages[2]} is not a valid record: the body's CRC", reason)
        self.assertIn("this happened 3 times", self.refuse(slave, damaged, Diverged))
        self.assertEqual(content_of(slave.log), IMAGE.prefix(IMAGE.messages[2]).content, "the sound records are kept")

    def test_damage_elsewhere_is_counted_anew(self) -> None:
        slave = Slave()
        for number in (2, 2, 4, 4, 6):
            self.refuse(slave, IMAGE.with_byte_changed(IMAGE.messages[number] + 100), CorruptTransfer)

    def test_damage_that_was_overcome_is_forgotten(self) -> None:
        slave = Slave()
        damaged = IMAGE.with_byte_changed(IMAGE.messages[2] + 100)
        self.refuse(slave, damaged, CorruptTransfer)
        self.refuse(slave, damaged, CorruptTransfer)
        slave.read(*IMAGE.transfers(slave.connect(), IMAGE.messages[3]))
        slave.log.truncate(IMAGE.messages[2])  # as if the disk had lost it: the same place comes once more
        slave.replica.connection_lost()
        self.refuse(slave, damaged, CorruptTransfer)

    def test_a_partial_record_is_neither_reported_nor_refused(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        for at in range(1, IMAGE.messages[1]):
            slave.read(Transfer(at, IMAGE.bytes_at(at, at + 1)))
            expected = IMAGE.messages[1] if at + 1 == IMAGE.messages[1] else 0
            self.assertEqual(slave.replica.reportable_offset, expected)

    def test_a_segment_that_ends_in_a_filler_too_small_for_a_blank_is_corrupt(self) -> None:
        """No broker writes one; all that follows could never be proved, and would grow without end."""
        for filler_bytes in range(1, 8):
            slave = Slave(segment_size=1024)
            body_bytes = 1024 - filler_bytes - len(make_image([0]).content)
            first = make_image([body_bytes], segment_size=2048).content
            self.assertEqual(len(first), 1024 - filler_bytes)
            slave.connect(MasterView(0, 4096))
            slave.read(Transfer(1, first[1:]))
            self.assertEqual(slave.replica.reportable_offset, len(first))
            filler = Transfer(len(first), bytes(filler_bytes))
            error = self.assertRaises(CorruptTransfer, slave.read, filler)
            self.assertIn(f"what the master sent for {len(first)} is not a valid record", str(error))

    @pytest.mark.long
    @settings(max_examples=examples(150), deadline=None, database=None)
    @given(st.data())
    def test_nothing_unproved_is_ever_reported_however_the_log_is_cut(self, data: st.DataObject) -> None:
        image = make_image(data.draw(st.lists(st.integers(0, 900), min_size=1, max_size=15), "bodies"), 1536)
        held = image.prefix(data.draw(st.sampled_from(image.boundaries), "held"))
        slave = Slave(held if held.messages else None, segment_size=1536)
        sizes = st.integers(1, 1536)
        for _ in range(data.draw(st.integers(1, 3), "connections")):
            request = slave.connect(view_of(image))
            stream, ends = self.frames(image, request, lambda: data.draw(sizes, "frame"))
            cut = data.draw(st.integers(0, len(stream)), "cut")
            decoder, at, before = TransferDecoder(), 0, slave.log.verified_offset
            while at < cut:
                size = min(cut - at, data.draw(st.integers(1, 4000), "read"))
                slave.read(*decoder.feed(stream[at : at + size]))
                at += size
                reportable = slave.replica.reportable_offset
                assert reportable is not None
                self.assertTrue(reportable in image.boundaries or reportable <= before, reportable)
                sent = max((end for place, end in ends.items() if place <= at), default=request)
                self.assertLessEqual(reportable, sent)
                self.assertEqual(content_of(slave.log), image.content[: slave.log.max_offset])
            slave.replica.connection_lost()
            self.assertIn(slave.log.max_offset, image.boundaries)
        slave.read(*image.transfers(slave.connect(view_of(image))))
        self.assertEqual(content_of(slave.log), image.content)

    @staticmethod
    def frames(image: LogImage, start: int, draw_size: Callable[[], int]) -> tuple[bytes, dict[int, int]]:
        """A stream of frames, and by each frame's place of ending in it the offset it reaches."""
        stream, ends = b"", {}
        while start < image.end:
            size = min(draw_size(), image.end - start, image.segment_size - start % image.segment_size)
            stream += wire([Transfer(start, image.bytes_at(start, start + size))])
            start += size
            ends[len(stream)] = start
        return stream, ends


class VerdictTests(SynchronousTestCase):
    """GAP and AHEAD, by what the master's remoting port says and by heartbeats alone."""

    def test_a_masters_min_behind_our_end_is_a_gap(self) -> None:
        slave = Slave(IMAGE)
        error = self.assertRaises(Gap, slave.connect, MasterView(5 * SEGMENT_SIZE, 9 * SEGMENT_SIZE))
        self.assertEqual((error.state, error.exit_code), (ReplicaState.GAP, ExitCode.GAP))
        self.assertEqual(error.master_min_offset, 5 * SEGMENT_SIZE)
        self.assertIn(f"starts at {5 * SEGMENT_SIZE}, {5 * SEGMENT_SIZE - IMAGE.end} bytes after", str(error))

    def test_a_masters_min_at_our_end_is_none(self) -> None:
        self.assertEqual(Slave(IMAGE).connect(MasterView(IMAGE.end, IMAGE.end + 100)), IMAGE.end)

    def test_a_masters_max_before_our_end_is_ahead(self) -> None:
        error = self.assertRaises(Ahead, Slave(IMAGE).connect, MasterView(0, IMAGE.end - 1))
        self.assertEqual((error.state, error.exit_code), (ReplicaState.AHEAD, ExitCode.AHEAD))
        self.assertIn(f"ends at {IMAGE.end - 1}, 1 bytes before {IMAGE.end}", str(error))

    def test_an_emptied_master_is_ahead_of_by_all_we_hold(self) -> None:
        self.assertRaises(Ahead, Slave(IMAGE).connect, MasterView(0, 0))

    def test_two_heartbeats_before_our_end_are_ahead(self) -> None:
        """A master without remoting that lost its tail has nothing where we ask."""
        slave = Slave(IMAGE)
        start = slave.connect()
        slave.hear_heartbeats(start, times=1)
        error = self.assertRaises(Ahead, slave.hear_heartbeats, start, times=1)
        self.assertIn(f"ends at {start}, {IMAGE.end - start} bytes before ours", str(error))

    def test_two_heartbeats_inside_the_overlap_are_ahead(self) -> None:
        slave = Slave(IMAGE)
        slave.read(*IMAGE.transfers(slave.connect(), IMAGE.end - 10))
        self.assertRaises(Ahead, slave.hear_heartbeats, IMAGE.end - 10)

    def test_one_heartbeat_with_data_behind_it_proves_nothing(self) -> None:
        """Java sends one to a slave whose first report took its time, though it has data."""
        slave = Slave(IMAGE.prefix(IMAGE.messages[12]))
        start = slave.connect()
        slave.hear_heartbeats(start, times=1)
        middle = start + 20
        slave.read(*IMAGE.transfers(start, middle))
        slave.hear_heartbeats(middle, times=1)
        slave.read(*IMAGE.transfers(middle))
        slave.hear_heartbeats(IMAGE.end)
        self.assertEqual(content_of(slave.log), IMAGE.content)
        self.assertEqual(slave.replica.state, ReplicaState.IN_SYNC)

    def test_heartbeats_of_an_earlier_connection_prove_nothing(self) -> None:
        slave = Slave(IMAGE)
        slave.hear_heartbeats(slave.connect(), times=1)
        slave.replica.connection_lost()
        slave.hear_heartbeats(slave.connect(), times=1)
        self.assertFalse(slave.replica.holds_all)

    def test_heartbeats_show_a_gap_to_an_empty_slave_if_a_probe_found_later_segments(self) -> None:
        slave = Slave()
        start = slave.connect(MasterView(last_segment_offset=4 * SEGMENT_SIZE))
        error = self.assertRaises(Gap, slave.hear_heartbeats, start)
        self.assertIsNone(error.master_min_offset)
        self.assertIn("its first segments were deleted", str(error))

    def test_an_empty_slave_without_a_probe_leaves_a_silent_master_without_a_verdict(self) -> None:
        slave = Slave()
        start = slave.connect()
        self.assertRaises(PeerBreach, slave.hear_heartbeats, start)

    def test_a_look_finds_the_log_deleted_under_a_silent_transfer(self) -> None:
        slave = Slave(IMAGE)
        slave.read(*IMAGE.transfers(slave.connect()))
        late = MasterView(9 * SEGMENT_SIZE, 12 * SEGMENT_SIZE)
        slave.replica.look(late, IMAGE.end)  # data came last: it may still come
        slave.hear_heartbeats(IMAGE.end, times=1)
        self.assertRaises(Gap, slave.replica.look, late, IMAGE.end)

    def test_a_look_finds_the_master_shorter_than_we_were_when_asking(self) -> None:
        slave = Slave(IMAGE)
        slave.read(*IMAGE.transfers(slave.connect()))
        slave.replica.look(MasterView(0, IMAGE.end - 1), IMAGE.end - 1)  # an old answer proves nothing
        self.assertRaises(Ahead, slave.replica.look, MasterView(0, IMAGE.end - 1), IMAGE.end)

    def test_a_look_keeps_what_the_probe_found(self) -> None:
        slave = Slave(IMAGE)
        slave.connect(MasterView(last_segment_offset=SEGMENT_SIZE))
        slave.replica.look(view_of(IMAGE), IMAGE.end)
        self.assertEqual(slave.replica.master, MasterView(0, IMAGE.end, last_segment_offset=SEGMENT_SIZE))


class StateTests(SynchronousTestCase):
    """The states, as an operator sees them one after another."""

    def test_a_fresh_slave_goes_from_connecting_to_in_sync(self) -> None:
        slave = Slave()
        self.assertEqual(slave.replica.state, ReplicaState.CONNECTING)
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(1, SEGMENT_SIZE))
        self.assertEqual(slave.replica.lag_bytes, IMAGE.end - SEGMENT_SIZE)
        slave.read(*IMAGE.transfers(SEGMENT_SIZE))
        self.assertEqual(slave.replica.lag_bytes, 0)
        self.assertEqual(slave.states, [ReplicaState.HANDSHAKE, ReplicaState.CATCHING_UP, ReplicaState.IN_SYNC])

    def test_without_remoting_a_heartbeat_at_our_end_means_in_sync_and_two_prove_it(self) -> None:
        slave = Slave()
        slave.connect()
        slave.read(*IMAGE.transfers(1))
        self.assertEqual(slave.replica.state, ReplicaState.CATCHING_UP)
        self.assertIsNone(slave.replica.lag_bytes)
        slave.hear_heartbeats(IMAGE.end, times=1)
        self.assertEqual((slave.replica.state, slave.replica.holds_all), (ReplicaState.IN_SYNC, False))
        slave.hear_heartbeats(IMAGE.end, times=1)
        self.assertTrue(slave.replica.holds_all)

    def test_data_and_heartbeats_of_one_read_prove_the_same(self) -> None:
        slave = Slave()
        slave.connect()
        slave.read(*IMAGE.transfers(1), Transfer(IMAGE.end, b""), Transfer(IMAGE.end, b""))
        self.assertTrue(slave.replica.holds_all)
        slave.hear_heartbeats(IMAGE.end, times=1)
        self.assertEqual(slave.replica.state, ReplicaState.IN_SYNC)

    def test_a_heartbeat_at_our_end_is_no_sync_with_a_master_known_to_have_more(self) -> None:
        slave = Slave()
        slave.connect(MasterView(0, IMAGE.end + 1))
        slave.read(*IMAGE.transfers(1))
        slave.hear_heartbeats(IMAGE.end, times=1)
        self.assertEqual(slave.replica.state, ReplicaState.CATCHING_UP)

    def test_a_partial_record_is_not_in_sync(self) -> None:
        slave = Slave()
        slave.connect()
        slave.read(*IMAGE.transfers(1, IMAGE.messages[1] + 30))
        slave.hear_heartbeats(IMAGE.messages[1] + 30)
        self.assertEqual((slave.replica.state, slave.replica.holds_all), (ReplicaState.CATCHING_UP, False))

    def test_two_looks_without_progress_behind_the_master_are_a_stall_and_data_end_it(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(1, SEGMENT_SIZE))
        slave.replica.look(view_of(IMAGE), SEGMENT_SIZE)
        self.assertEqual(slave.replica.state, ReplicaState.CATCHING_UP)
        slave.replica.look(view_of(IMAGE), SEGMENT_SIZE)
        self.assertEqual(slave.replica.state, ReplicaState.STALLED)
        slave.read(*IMAGE.transfers(SEGMENT_SIZE, SEGMENT_SIZE + 10))
        self.assertEqual(slave.replica.state, ReplicaState.CATCHING_UP)
        slave.read(*IMAGE.transfers(SEGMENT_SIZE + 10))
        self.assertEqual(slave.replica.state, ReplicaState.IN_SYNC)

    def test_progress_between_looks_is_no_stall_though_no_record_is_whole(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        for at in range(1, 20):
            slave.read(*IMAGE.transfers(at, at + 1))
            slave.replica.look(view_of(IMAGE), 0)
        self.assertEqual(slave.replica.state, ReplicaState.CATCHING_UP)

    def test_a_look_at_a_master_that_has_no_more_is_no_stall(self) -> None:
        slave = Slave(IMAGE)
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(IMAGE.last_message))
        for _ in range(3):
            slave.replica.look(view_of(IMAGE), IMAGE.end)
        self.assertEqual(slave.replica.state, ReplicaState.IN_SYNC)

    def test_a_slave_in_sync_catches_up_again_only_when_it_is_far_behind(self) -> None:
        slave = Slave(IMAGE)
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(IMAGE.last_message))
        slave.replica.look(MasterView(0, IMAGE.end + 4 * 1024 * 1024), IMAGE.end)
        self.assertEqual(slave.replica.state, ReplicaState.IN_SYNC)
        slave.replica.connection_lost()
        slave.connect(view_of(IMAGE))
        slave.read(*IMAGE.transfers(IMAGE.last_message))
        slave.replica.look(MasterView(0, IMAGE.end + 4 * 1024 * 1024 + 1), IMAGE.end)
        self.assertEqual(slave.replica.state, ReplicaState.CATCHING_UP)

    def test_a_verdict_outlives_connections_until_data_refute_it(self) -> None:
        slave = Slave(IMAGE.prefix(IMAGE.messages[12]))
        slave.replica.connected()
        slave.replica.give_up(Gap("gone", None))
        slave.replica.give_up(Gap("gone again", None))
        slave.replica.connection_lost()
        slave.connect(view_of(IMAGE))
        self.assertEqual(slave.states, [ReplicaState.HANDSHAKE, ReplicaState.GAP])
        slave.read(*IMAGE.transfers(IMAGE.messages[11]))
        self.assertEqual(slave.replica.state, ReplicaState.IN_SYNC)

    def test_a_verdict_is_kept_while_nothing_comes(self) -> None:
        """Looks that show a lag neither confirm nor refute it."""
        slave = Slave(IMAGE.prefix(IMAGE.messages[12]))
        slave.replica.connected()
        slave.replica.give_up(Ahead("the master is shorter"))
        slave.replica.connection_lost()
        slave.connect(view_of(IMAGE))
        for _ in range(3):
            slave.replica.look(view_of(IMAGE), slave.log.verified_offset)
        self.assertEqual(slave.replica.state, ReplicaState.AHEAD)

    def test_stopping_is_final_and_may_be_said_twice(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        slave.replica.stop()
        slave.replica.stop()
        slave.replica.connection_lost()
        self.assertEqual(slave.states, [ReplicaState.HANDSHAKE, ReplicaState.STOPPED])


class LostConnectionTests(SynchronousTestCase):
    """What a lost connection leaves."""

    def test_a_partial_record_is_cut_and_asked_for_again(self) -> None:
        for cut in range(IMAGE.messages[8] + 1, IMAGE.messages[9]):
            slave = Slave()
            slave.connect(view_of(IMAGE))
            slave.read(*IMAGE.transfers(1, cut))
            slave.replica.connection_lost()
            self.assertEqual(content_of(slave.log), IMAGE.prefix(IMAGE.messages[8]).content)
            self.assertIsNone(slave.replica.reportable_offset)
            self.assertEqual(slave.replica.state, ReplicaState.CONNECTING)
            self.assertEqual(slave.connect(view_of(IMAGE)), IMAGE.messages[7])

    def test_a_slave_that_got_nothing_is_empty_again(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        slave.replica.connection_lost()
        self.assertEqual(slave.log.max_offset, 0)
        self.assertEqual(slave.connect(MasterView(SEGMENT_SIZE, 2 * SEGMENT_SIZE)), SEGMENT_SIZE)

    def test_what_came_before_a_refused_frame_of_the_same_read_is_asked_for_again(self) -> None:
        slave = Slave()
        slave.connect(view_of(IMAGE))
        frames = [*IMAGE.transfers(1, IMAGE.messages[3]), Transfer(0, b"")]
        self.assertRaises(PeerBreach, slave.read, *frames)
        slave.replica.connection_lost()
        slave.read(*IMAGE.transfers(slave.connect(view_of(IMAGE))))
        self.assertEqual(content_of(slave.log), IMAGE.content)

    def test_a_disk_that_refuses_to_cut_is_not_hidden(self) -> None:
        class StubbornLog(MemoryCommitLog):
            def truncate(self, offset: int) -> None:
                raise OSError(5, "Input/output error")

        replica = Replica(StubbornLog(), StartFrom(), lambda state, reason: None)
        replica.connected()
        replica.request(view_of(IMAGE))
        self.assertRaises(OSError, replica.connection_lost)
