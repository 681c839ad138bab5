"""Generated logs and what disks do to them, for the tests of recovery and repair."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rmqha.wire.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import Blank, Host, Record, RecordError, check_record, encode_blank
from tests import examples
from tests.store.logs import encoded

MAGICS = (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
UNHURRIED = settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))


@dataclass(repr=False)
class Made:
    """A log: its bytes as they were made, and where its messages and blanks begin and end."""

    segment_size: int
    content: bytes
    messages: list[tuple[int, int]]
    pieces: list[tuple[int, int]]

    @property
    def end(self) -> int:
        return self.pieces[-1][1]


@st.composite
def logs(draw: st.DrawFn) -> Made:
    """A log of random messages of all kinds in segments of a random size."""
    segment_size = draw(st.sampled_from([1024, 1536, 4096, 16384]))
    rng = draw(st.randoms(use_true_random=False))
    log_bytes, messages, pieces, at = bytearray(), [], [], 0
    for number in range(draw(st.integers(2, 40))):
        record = Record(
            "T" * rng.randint(1, 20),
            rng.choice([b"", rng.randbytes(rng.randint(1, 500)), bytes(rng.randint(1, 300))]),
            rng.choice(["", "k\x01v", "KEYS\x01a b\x02"]),
            queue_offset=number,
            store_timestamp=1_700_000_000_000 + number,
            born_host=Host.parse(rng.choice(["127.0.0.1", "::1"]), 1),
            store_host=Host.parse(rng.choice(["127.0.0.1", "::1"]), 2),
            magic=rng.choice(MAGICS),
        )
        room = segment_size - at % segment_size
        if record.total_size + 8 > room:
            log_bytes += encode_blank(room) + rng.choice([bytes(room - 8), rng.randbytes(room - 8)])
            pieces.append((at, at + room))
            at += room
        log_bytes += encoded(record, at)
        pieces.append((at, at + record.total_size))
        messages.append((at, at + record.total_size))
        at += record.total_size
    return Made(segment_size, bytes(log_bytes), messages, pieces)


@contextmanager
def on_disk(made: Made, content: bytes) -> Iterator[Path]:
    """The content in segments, below a folder."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "store" / "commitlog"
        folder.mkdir(parents=True)
        for base in range(0, len(content), made.segment_size):
            piece = content[base : base + made.segment_size]
            path = folder / f"{base:020d}"
            with path.open("wb") as file:
                for at in range(0, len(piece), 512):  # sparse, where there are zeros
                    if piece[at : at + 512].strip(b"\0"):
                        file.seek(at)
                        file.write(piece[at : at + 512])
                file.truncate(made.segment_size)
        yield folder


@st.composite
def damages(draw: st.DrawFn, made: Made) -> bytes:
    """The log's bytes, with flipped bits, zeroed pages and holes, garbage, or all of that."""
    content = bytearray(made.content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content) - 1))
        kind = draw(st.sampled_from(["bit", "zeros", "garbage", "size"]))
        size = draw(st.sampled_from([1, 16, 512, 2048]))
        end = min(len(content), at + size)
        if kind == "bit":
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "size":
            start, _ = draw(st.sampled_from(made.pieces))
            content[start + draw(st.integers(0, 3))] ^= 1 << draw(st.integers(0, 7))
        elif kind == "zeros":
            content[at:end] = bytes(end - at)
        else:
            content[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
    return bytes(content)


def sound_pieces(made: Made, content: bytes) -> list[tuple[int, int, bool]]:
    """The true messages and blanks that still prove themselves, and whether they are messages: by the reference."""
    found = []
    for start, end in made.pieces:
        base = start - start % made.segment_size
        segment = content[base : base + made.segment_size].ljust(made.segment_size, b"\0")
        try:
            record = check_record(segment, start - base, start, made.segment_size - (start - base))
        except RecordError:
            continue
        found.append((start, end, not isinstance(record, Blank)))
    return found
