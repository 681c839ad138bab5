"""The HA channel: transfer frames that a slave reads, reports that a master reads."""

from bisect import bisect_right
from itertools import pairwise
from random import Random

from rmqha.wire import transfer
from rmqha.wire.transfer import MAX_TRANSFER_BODY_BYTES, FrameError, Transfer, encode_report, encode_transfer
from tests import fixtures
from tests.fuzz.measure import retained_bytes
from tests.fuzz.target import Field, Shape, Target, choices, require

HEADER_BYTES = 8 + 4
REPORT_BYTES = 8
SMALL_LIMIT_BYTES = 4096
DRIPPED_BYTES = 512

Frames = list[tuple[int, bytes]]


def pieces_of(data: bytes) -> list[list[bytes]]:
    """Ways in which a network may cut the bytes: whole, at random, evenly, and a short stream byte by byte."""
    rng = choices(data)
    at_random = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 8)))
    step = rng.choice((7, 8, 11, 12, 13, 100, 1000))
    step = max(step, len(data) // DRIPPED_BYTES)
    ways = [[0, len(data)], [0, *at_random, len(data)], [*range(0, len(data), step), len(data)]]
    if len(data) <= DRIPPED_BYTES:
        ways.append(list(range(len(data) + 1)))
    return [[data[a:b] for a, b in pairwise(cuts)] for cuts in ways]


def limit_of(data: bytes) -> int:
    """The decoder's limit for this stream: a small one, that streams reach, or the real one."""
    return MAX_TRANSFER_BODY_BYTES if len(data) % 8 == 7 else SMALL_LIMIT_BYTES


def frames_by_the_book(data: bytes, limit: int) -> tuple[Frames, list[int], bool]:
    """Frames, where each ends, and whether what follows is refused: as the format's table reads."""
    frames: Frames = []
    ends: list[int] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        size = int.from_bytes(data[at + 8 : at + HEADER_BYTES], "big", signed=True)
        if offset < 0 or size < 0 or size > limit:
            return frames, ends, True
        end = at + HEADER_BYTES + size
        if end > len(data):
            break
        frames.append((offset, data[at + HEADER_BYTES : end]))
        ends.append(end)
        at = end
    return frames, ends, False


def check_transfer(data: bytes) -> int:
    """However a stream is cut, the same frames come out, each with its last byte, and one frame at most is held."""
    limit = limit_of(data)
    frames, ends, refused = frames_by_the_book(data, limit)
    consumed = ends[-1] if ends else 0
    errors = {_feed_transfers(pieces, limit, frames, ends) for pieces in pieces_of(data)}
    require(len(errors) == 1 and (errors != {None}) == refused, "one verdict however cut", errors, refused)
    again = b"".join(encode_transfer(Transfer(*frame)) for frame in frames)
    require(again == data[:consumed], "frames are encoded to the bytes they came from")
    return consumed + HEADER_BYTES if refused else len(data)


def _feed_transfers(pieces: list[bytes], limit: int, frames: Frames, ends: list[int]) -> str | None:
    """The text of the refusal, None without one."""
    decoder = transfer.TransferDecoder(limit)
    found: Frames = []
    fed = 0
    try:
        for piece in pieces:
            fed += len(piece)
            for frame in decoder.feed(piece):
                found.append((frame.physic_offset, bytes(frame.body)))
            whole = bisect_right(ends, fed)
            require(len(found) == whole, "a frame comes with its last byte", found, whole)
            unfinished = fed - (ends[whole - 1] if whole else 0)
            require(unfinished < HEADER_BYTES + limit, "a refused header is refused at once", unfinished)
            held = retained_bytes(decoder)
            require(
                held <= unfinished + unfinished // 8 + 16, "no more is held than an unfinished frame", held, unfinished
            )
    except FrameError as error:
        require(found == frames, "the frames before a refusal come out")
        return str(error)
    require(found == frames, "the frames are those of the stream")
    return None


def parse_transfer(data: bytes) -> object:
    """The decoder alone with its real limit, fed as the network would."""
    decoder = transfer.TransferDecoder()
    try:
        for at in range(0, len(data), 100):
            for _ in decoder.feed(data[at : at + 100]):
                pass
    except FrameError:
        return None
    return decoder


def transfer_seeds(rng: Random) -> list[bytes]:
    """A conversation of Java's, and streams with bodies of all sizes up to the limit."""
    recorded = fixtures.ha_bytes(fixtures.MASTER_TO_SLAVE)
    seeds = [b"", recorded[:3000], recorded[:60_000]]
    for count in (1, 2, 3, 5, 8, 20, 100):
        sizes = [rng.choice((0, 1, 11, 12, 50, 200, 1000, SMALL_LIMIT_BYTES)) for _ in range(count)]
        offset, stream = rng.choice((0, 1, 2**31, 2**62)), b""
        for size in sizes:
            stream += encode_transfer(Transfer(offset, rng.randbytes(size)))
            offset += size
        seeds.append(stream)
    return seeds


def frame_starts(data: bytes) -> list[int]:
    """Where frames would start if every size that can be followed were true."""
    starts, at = [], 0
    while at + HEADER_BYTES <= len(data):
        starts.append(at)
        at += HEADER_BYTES + max(0, int.from_bytes(data[at + 8 : at + HEADER_BYTES], "big", signed=True))
    return starts


def frame_fields(data: bytes, start: int) -> tuple[Field, ...]:
    return Field(start, 8), Field(start + 8, 4)


def check_reports(data: bytes) -> int:
    """However reports are cut, the same come out, and at most seven bytes are held."""
    whole = len(data) - len(data) % REPORT_BYTES
    expected = [
        int.from_bytes(data[at : at + REPORT_BYTES], "big", signed=True) for at in range(0, whole, REPORT_BYTES)
    ]
    for pieces in pieces_of(data):
        decoder = transfer.ReportDecoder()
        found: list[int] = []
        fed = 0
        for piece in pieces:
            found += decoder.feed(piece)
            fed += len(piece)
            require(len(found) == fed // REPORT_BYTES, "a report comes with its last byte", len(found), fed)
            held = retained_bytes(decoder)
            require(held <= REPORT_BYTES - 1, "no more is held than seven bytes", held)
        require(found == expected, "the reports are those of the stream")
    require(b"".join(map(encode_report, expected)) == data[:whole], "reports are encoded to the bytes they came from")
    return len(data)


def parse_reports(data: bytes) -> object:
    """The decoder alone, fed as the network would."""
    decoder = transfer.ReportDecoder()
    return [decoder.feed(data[at : at + 100]) for at in range(0, len(data), 100)]


def report_seeds(rng: Random) -> list[bytes]:
    """A conversation of Java's, and reports of every kind."""
    recorded = fixtures.ha_bytes(fixtures.SLAVE_TO_MASTER)
    several = [rng.randbytes(REPORT_BYTES * count) for count in (0, 1, 2, 20, 300, 5000)]
    return [*several, recorded[:800], recorded, b"".join(map(encode_report, (0, -1, 2**63 - 1, -(2**63))))]


def report_starts(data: bytes) -> range:
    return range(0, len(data), REPORT_BYTES)


def report_fields(data: bytes, start: int) -> tuple[Field, ...]:
    return (Field(start, REPORT_BYTES),)


TRANSFER = Target(
    name="transfer",
    seeds=transfer_seeds,
    shape=Shape(frame_starts, frame_fields, numbers=(SMALL_LIMIT_BYTES, MAX_TRANSFER_BODY_BYTES, HEADER_BYTES)),
    check=check_transfer,
    parse=parse_transfer,
    weight=10,
)
REPORT = Target(
    name="report",
    seeds=report_seeds,
    shape=Shape(report_starts, report_fields),
    check=check_reports,
    parse=parse_reports,
    weight=10,
)
