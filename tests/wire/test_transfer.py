"""The HA channel's frames, however the network cuts them (spec/ha.md 2)."""

import hashlib
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.transfer import (
    MAX_TRANSFER_BODY_BYTES,
    TRANSFER_HEADER,
    FrameError,
    ReportDecoder,
    Transfer,
    TransferDecoder,
    encode_report,
    encode_transfer,
)
from tests import examples, fixtures

OFFSETS = st.integers(0, 2**63 - 1)
TRANSFERS = st.builds(Transfer, OFFSETS, st.just(b"") | st.binary(max_size=50))


def decode(pieces: Iterable[bytes], decoder: TransferDecoder | None = None) -> list[Transfer]:
    """All frames, with bodies of their own."""
    decoder = decoder or TransferDecoder()
    return [Transfer(frame.physic_offset, bytes(frame.body)) for piece in pieces for frame in decoder.feed(piece)]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The bytes cut at these places."""
    return [data[a:b] for a, b in pairwise([0, *sorted(places), len(data)])]


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


class EncodeTransferTests(SynchronousTestCase):
    def test_a_frame_is_offset_size_and_body(self) -> None:
        frame = encode_transfer(Transfer(0x0102030405060708, b"abc"))
        self.assertEqual(frame, bytes.fromhex("0102030405060708 00000003 616263"))
        self.assertEqual(
            encode_transfer(Transfer(5, memoryview(b"abc"))), bytes.fromhex("0000000000000005 00000003 616263")
        )

    def test_a_heartbeat_has_no_body(self) -> None:
        self.assertEqual(encode_transfer(Transfer(283, b"")), bytes.fromhex("000000000000011B 00000000"))

    def test_the_largest_body_is_what_java_can_receive(self) -> None:
        largest = Transfer(0, bytes(4 * 1024 * 1024 - 12))
        self.assertEqual(len(encode_transfer(largest)), 4 * 1024 * 1024)
        with self.assertRaises(FrameError):
            encode_transfer(Transfer(0, bytes(4 * 1024 * 1024 - 11)))

    def test_the_end_offset_follows_the_body(self) -> None:
        self.assertEqual(Transfer(100, b"abc").end_offset, 103)
        self.assertEqual(Transfer(100, b"").end_offset, 100)


class TransferDecoderTests(SynchronousTestCase):
    @settings(deadline=None, max_examples=examples(200))
    @given(st.lists(TRANSFERS, max_size=8), st.data())
    def test_frames_come_out_as_they_went_in_however_they_are_cut(
        self, frames: list[Transfer], data: st.DataObject
    ) -> None:
        wire = b"".join(map(encode_transfer, frames))
        places = data.draw(st.lists(st.integers(0, len(wire)), max_size=20))
        self.assertEqual(decode([wire]), frames)
        self.assertEqual(decode(single_bytes(wire)), frames)
        self.assertEqual(decode(cut(wire, places)), frames)

    @settings(deadline=None, max_examples=examples(200))
    @given(TRANSFERS, TRANSFERS, st.data())
    def test_trailing_bytes_wait_for_the_rest_of_their_frame(
        self, first: Transfer, second: Transfer, data: st.DataObject
    ) -> None:
        wire, rest = encode_transfer(first), encode_transfer(second)
        cut_at = data.draw(st.integers(0, len(rest) - 1))
        decoder = TransferDecoder()
        self.assertEqual(decode([wire + rest[:cut_at]], decoder), [first])
        self.assertEqual(decode([rest[cut_at:] + wire], decoder), [second, first])

    def test_a_frame_comes_with_its_last_byte_and_not_before(self) -> None:
        wire = encode_transfer(Transfer(7, b"body"))
        decoder = TransferDecoder()
        for byte in single_bytes(wire[:-1]):
            self.assertEqual(decode([byte], decoder), [])
        self.assertEqual(decode([wire[-1:]], decoder), [Transfer(7, b"body")])

    def refusal(self, wire: bytes, decoder_limit: int | None = None) -> None:
        """Refused whole, byte by byte, and behind a good frame, which still comes out."""
        good = Transfer(3, b"good")
        for pieces in ([wire], single_bytes(wire), [wire[:5], wire[5:]]):
            for before in ([], [encode_transfer(good)]):
                decoder = TransferDecoder() if decoder_limit is None else TransferDecoder(decoder_limit)
                frames: list[Transfer] = []
                with self.assertRaises(FrameError):
                    for piece in [b"".join([*before, pieces[0]]), *pieces[1:]]:
                        for frame in decoder.feed(piece):
                            frames.append(Transfer(frame.physic_offset, bytes(frame.body)))  # noqa: PERF401  # it raises
                self.assertEqual(frames, [good] * len(before))

    def test_a_negative_size_breaks_the_frame(self) -> None:
        for size in (-1, -(2**31)):
            self.refusal(TRANSFER_HEADER.pack(0, size))

    def test_an_oversized_body_breaks_the_frame_at_its_header(self) -> None:
        self.refusal(TRANSFER_HEADER.pack(0, MAX_TRANSFER_BODY_BYTES + 1))
        self.refusal(TRANSFER_HEADER.pack(0, 2**31 - 1))
        self.refusal(TRANSFER_HEADER.pack(0, 11), decoder_limit=10)
        self.assertEqual(
            decode([encode_transfer(Transfer(0, bytes(10)))], TransferDecoder(10)), [Transfer(0, bytes(10))]
        )

    def test_a_negative_offset_breaks_the_frame(self) -> None:
        for offset in (-1, -(2**63)):
            self.refusal(TRANSFER_HEADER.pack(offset, 0))
            self.refusal(TRANSFER_HEADER.pack(offset, 4))

    def test_a_web_browser_breaks_the_frame(self) -> None:
        self.refusal(b"GET / HTTP/1.1\r\n\r\n")

    @pytest.mark.long
    def test_bytes_that_drip_in_do_not_pile_up(self) -> None:
        """Whatever a slow master sends, the decoder holds one frame, not all that ever came."""
        frame = encode_transfer(Transfer(0, bytes(20_000)))
        decoder = TransferDecoder()
        dripping = [frame[i : i + 1] for i in range(len(frame))]
        for piece in dripping:  # what is allocated once
            list(decoder.feed(piece))
        tracemalloc.start()
        try:
            frames = sum(sum(1 for _ in decoder.feed(piece)) for _ in range(8) for piece in dripping)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertEqual(frames, 8)
        self.assertLess(peak_bytes, 3 * len(frame))


class ReportDecoderTests(SynchronousTestCase):
    def test_a_report_is_eight_bytes(self) -> None:
        self.assertEqual(encode_report(0x0102), bytes.fromhex("0000000000000102"))
        self.assertEqual(encode_report(-1), b"\xff" * 8)

    @settings(deadline=None, max_examples=examples(200))
    @given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12), st.data())
    def test_reports_come_out_as_they_went_in_however_they_are_cut(
        self, offsets: list[int], data: st.DataObject
    ) -> None:
        wire = b"".join(map(encode_report, offsets))
        places = data.draw(st.lists(st.integers(0, len(wire)), max_size=20))
        for pieces in ([wire], single_bytes(wire), cut(wire, places)):
            decoder = ReportDecoder()
            self.assertEqual([offset for piece in pieces for offset in decoder.feed(piece)], offsets)

    def test_trailing_bytes_wait_for_the_rest_of_their_report(self) -> None:
        decoder = ReportDecoder()
        wire = encode_report(5) + encode_report(6)
        self.assertEqual(decoder.feed(wire[:11]), [5])
        self.assertEqual(decoder.feed(wire[11:15]), [])
        self.assertEqual(decoder.feed(wire[15:]), [6])


class RecordedConversationTests(SynchronousTestCase):
    """What passed between a Java master and its Java slave."""

    ways_to_cut = ("whole", "chunks", "bytes")

    def pieces(self, direction: str, way: str) -> Sequence[bytes]:
        wire = fixtures.ha_bytes(direction)
        if way == "whole":
            return [wire]
        return fixtures.ha_chunks(direction) if way == "chunks" else single_bytes(wire)

    @pytest.mark.long
    def test_the_masters_frames_join_to_its_log(self) -> None:
        known = fixtures.facts()["ha"]
        self.assertEqual(len(fixtures.ha_bytes(fixtures.MASTER_TO_SLAVE)), known["masterToSlaveBytes"])
        for way in self.ways_to_cut:
            decoder, log, frames, heartbeats, largest = TransferDecoder(), hashlib.sha256(), 0, 0, 0
            next_offset = 0
            for piece in self.pieces(fixtures.MASTER_TO_SLAVE, way):
                for frame in decoder.feed(piece):
                    self.assertEqual(frame.physic_offset, next_offset)
                    next_offset = frame.end_offset
                    frames += 1
                    heartbeats += not frame.body
                    largest = max(largest, len(frame.body))
                    log.update(frame.body)
            self.assertEqual((frames, heartbeats, largest), (1821, 10, 32768), way)
            self.assertEqual(
                (frames, heartbeats, largest), (known["frames"], known["heartbeats"], known["largestFrameBody"])
            )
            self.assertEqual(next_offset, fixtures.facts()["maxOffset"])
            self.assertEqual(log.hexdigest(), fixtures.facts()["logSha256"], way)

    def test_the_masters_frames_are_encoded_to_the_same_bytes(self) -> None:
        wire = fixtures.ha_bytes(fixtures.MASTER_TO_SLAVE)
        self.assertEqual(b"".join(encode_transfer(frame) for frame in TransferDecoder().feed(wire)), wire)

    def test_the_slaves_reports_grow_to_the_logs_end(self) -> None:
        known = fixtures.facts()["ha"]
        for way in self.ways_to_cut:
            decoder = ReportDecoder()
            pieces = self.pieces(fixtures.SLAVE_TO_MASTER, way)
            reports = [offset for piece in pieces for offset in decoder.feed(piece)]
            self.assertEqual(len(reports), 1821, way)
            self.assertEqual(len(set(reports)), known["distinctReports"])
            self.assertEqual(reports, sorted(reports))
            self.assertEqual((reports[0], reports[-1]), (known["firstReport"], known["lastReport"]))
            self.assertEqual(b"".join(map(encode_report, reports)), fixtures.ha_bytes(fixtures.SLAVE_TO_MASTER))
