"""The targets hold for all that once broke one, and bugs that are planted are found."""

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire import command, fastjson, properties, record, scan, transfer
from tests.fuzz import engine, measure
from tests.fuzz.engine import REGRESSIONS, TARGETS, Finding, Fuzzer, replay
from tests.fuzz.planting import spoilt_code

BYTES_TO_FIND_A_BUG = 20_000_000

Bug = tuple[Callable[..., Any], str, str]


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


class PlantedBugTests(SynchronousTestCase):
    def found(self, name: str, bugs: list[Bug]) -> None:
        """Each of the bugs alone makes the target fail."""
        missed = []
        for function, right, wrong in bugs:
            planted = self.patch(function, "__code__", spoilt_code(function, right, wrong))
            try:
                Fuzzer(TARGETS[name], seed=1).run(BYTES_TO_FIND_A_BUG)
            except Finding as finding:
                self.assertFalse(isinstance(finding.__cause__, NameError), f"{wrong!r} is no bug, but nonsense")
            else:
                missed.append((function.__qualname__, right, wrong))
            finally:
                planted.restore()
        self.assertEqual(missed, [])

    def test_in_the_decoder_of_transfers(self) -> None:
        decoder = transfer.TransferDecoder
        self.found(
            "transfer",
            [
                (decoder._finish_held, "view = view[missing:]", "view = view[missing + (missing == 12) :]"),
                (decoder.feed, "len(view) < frame_bytes", "len(view) <= frame_bytes"),
                (decoder.feed, "if self._held:", "if len(self._held) > 1:"),
                (decoder.feed, "self._held += view", "self._held = bytearray(view)"),
                (decoder._frame_bytes, "0 <= body_size <=", "body_size <="),
                (decoder._frame_bytes, "0 <= body_size <=", "-2 < body_size <="),
                (decoder._frame_bytes, "body_size <= self._max_body_bytes", "body_size <= self._max_body_bytes + 1"),
                (decoder._frame_bytes, "body_size <= self._max_body_bytes", "body_size"),
                (decoder._frame_bytes, "if physic_offset < 0:", "if physic_offset == -1:"),
                (decoder._frame_bytes, 'raise FrameError(f"an offset', 'raise ValueError(f"an offset'),
                (decoder._frame_bytes, "return ", "self._spare = bytearray(body_size)\n    return "),
                (
                    decoder.feed,
                    "view = memoryview(data)",
                    "view = memoryview(data)\n    self._log = [*getattr(self, '_log', ()), data]",
                ),
            ],
        )

    def test_in_the_decoder_of_reports(self) -> None:
        feed = transfer.ReportDecoder.feed
        self.found(
            "report",
            [
                (feed, "self._held + data", "data"),
                (feed, "self._held = data[whole:]", "self._held = data[whole + (len(self._held) == 7) :]"),
                (feed, "self._held = data[whole:]", "self._held = data[whole:]\n    self._last = data"),
                (feed, "[offset for", "[offset & 0x7FFFFFFFFFFFFFFF for"),
                (feed, "len(data) % REPORT_HEADER.size", "(len(data) % REPORT_HEADER.size or 8 * (len(data) > 8))"),
            ],
        )

    def test_in_proving_many_records_at_once(self) -> None:
        self.found(
            "record",
            [
                (scan._check_bodies, "(computed == stored_crc) | (body_length == 0)", "body_length >= 0"),
                (scan._check_bodies, " | (body_length == 0)", " | (body_length <= 4)"),
                (scan._scan_plain, "== at + base", ">= 0"),
                (scan._check_lengths, "(topic_length >= 0) & ", ""),
                (scan._check_lengths, "(body_length >= 0) & ", ""),
                (scan._check_lengths, " | (magic == layout.MESSAGE_MAGIC_CODE)", " | (magic < 0)"),
                (scan._check_lengths, "(properties_length == room", "(properties_length <= room"),
                (scan._born_host_extra, "layout.BORNHOST_V6_FLAG", "layout.STOREHOSTADDRESS_V6_FLAG"),
                (scan._hop, "position + size > limit", "position + size > limit + 1"),
                (scan._run_length, "int(np.argmin(sound))", "int(np.argmin(sound)) + 1"),
            ],
        )

    def test_in_proving_a_few_records(self) -> None:
        self.found(
            "record",
            [
                (scan._is_plainly_sound, "physical_offset != base + begin", "physical_offset < 0"),
                (scan._is_plainly_sound, "properties_at + properties_length != end", "properties_at > end"),
                (scan._is_plainly_sound, "not body_at <= topic_at < end", "not topic_at < end"),
                (scan._is_plainly_sound, " & record.CRC_MASK == crc", " & record.CRC_MASK >= 0"),
                (scan._is_plainly_sound, " or sys_flag & IPV6_FLAGS", ""),
            ],
        )

    def test_in_the_reference_for_records(self) -> None:
        self.found(
            "record",
            [
                (record.check_record, "if record.physical_offset != physical_offset:", "if False:"),
                (record.check_record, "if record.body and record.body_crc", "if record.body_crc"),
                (record.check_record, "if total_size != segment_room:", "if total_size > segment_room:"),
                (record.check_record, "elif total_size > segment_room:", "elif False:"),
                (record.decode_record, "if total_size < FIXED_BYTES + hosts_extra(sys_flag):", "if False:"),
                (record.decode_record, "if at != end:", "if at > end:"),
                (record._take, "not 0 <= length <=", "not length <="),
                (record.check_record, "segment_room < END_FILE_MIN_BLANK_LENGTH", "segment_room < 0"),
                (record._to_str, '"surrogateescape"', '"replace"'),
                (record._to_str, ', "surrogateescape"', ""),
                (record._inflated_facts, "except zlib.error:", "except ZeroDivisionError:"),
                (record.peek_size, "if total_size < smallest:", "if total_size < 0:"),
            ],
        )

    def test_memory_for_bytes_that_are_only_claimed(self) -> None:
        frame_bytes = transfer.TransferDecoder._frame_bytes
        self.found("transfer", [(frame_bytes, "    return ", "    len(bytes(body_size))\n    return ")])
        self.found("record", [(record.peek_size, "    return ", "    len(bytes(max(0, total_size)))\n    return ")])

    def test_work_that_grows_faster_than_the_input(self) -> None:
        again = "\n    [len(byte) for byte in map(str, self._held)]"
        feed = transfer.TransferDecoder.feed
        self.found("transfer", [(feed, "view = memoryview(data)", "view = memoryview(data)" + again)])
        start = "if segment_room < "
        self.found("record", [(record.check_record, start, "[len(str(byte)) for byte in view]\n    " + start)])

    def test_a_loop_without_end(self) -> None:
        self.patch(engine, "HANGS_AFTER_SECONDS", 0.5)
        self.found("command", [(command._take, "not 0 <= length <=", "not length <=")])

    def test_in_properties(self) -> None:
        self.found(
            "properties",
            [
                (properties.parse_properties, '"" not in properties and ', ""),
                (properties.parse_properties, ' and "" not in properties.values()', ""),
                (properties.parse_properties, "segment.partition(", "segment.rpartition("),
                (properties.parse_properties, "and name and value", "and name"),
            ],
        )

    def test_in_commands(self) -> None:
        self.found(
            "command",
            [
                (command.decode_command, "if end > len(frame):", "if False:"),
                (command.decode_command, "if len(frame) < HEADER_LENGTH.size:", "if not frame:"),
                (command._take, "<= len(data) - at", "<= len(data)"),
                (command._decode_binary, "(StructError, UnicodeDecodeError)", "StructError"),
                (command._decode_binary, "(StructError, UnicodeDecodeError)", "UnicodeDecodeError"),
                (command._int32, "if not -(2**31) <= number < 2**31:", "if False:"),
                (command._decode_json, "KeyError, ", ""),
                (command._decode_json, "AttributeError, ", ""),
            ],
        )

    def test_in_fastjson(self) -> None:
        reader = fastjson._Reader
        self.found(
            "fastjson",
            [
                (reader._check_depth, "depth > MAX_DEPTH", "depth < 0"),
                (reader._number, "except ValueError", "except ZeroDivisionError"),
                (reader._number, "if math.isinf(number):", "if False:"),
                (reader._string, "if _SURROGATE.search(content) is None:", "if True:"),
                (reader._unescaped, "if match[3] not in _ESCAPED:", "if False:"),
                (reader.whole_text, 'if kind != "end":', "if False:"),
                (
                    fastjson.loads_lenient,
                    "if not _may_have_large_numbers(text) or _BEYOND_ORJSON.search(text) is None:",
                    "if True:",
                ),
                (fastjson.loads_lenient, "except UnicodeDecodeError", "except ZeroDivisionError"),
                (fastjson._quote, "if _TO_ESCAPE.search(text) is None:", "if True:"),
            ],
        )
