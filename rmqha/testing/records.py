"""Makes logs for tests and benchmarks: records like those of a producer, laid out in segments like those of a
broker.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rmqha.store.log.mappedfile import file_name
from rmqha.wire.properties import format_properties
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Host, Record, encode_blank, encode_record

FIRST_STORE_TIMESTAMP_MS = 1_795_000_000_000


def make_record(number: int, body: bytes, topic: str = "BenchTopic", physical_offset: int = 0) -> Record:
    """The record that a Java 4.9.3 producer and broker make from a plain message: with keys, client id, cluster and
    tag.
    """
    properties = {
        "KEYS": f"k{number}",
        "UNIQ_KEY": f"7F00000151595FFD2B27663426{number & 0xFFFFFF:06X}",
        "CLUSTER": "DefaultCluster",
        "TAGS": f"Tag{'ABCD'[number % 4]}",
    }
    return Record(
        topic=topic,
        body=body,
        properties_stored=format_properties(properties),
        queue_id=number % 4,
        queue_offset=number // 4,
        physical_offset=physical_offset,
        born_timestamp=FIRST_STORE_TIMESTAMP_MS + number // 10,
        born_host=Host(b"\x7f\0\0\x01", 50000),
        store_timestamp=FIRST_STORE_TIMESTAMP_MS + number // 10 + 1,
        store_host=Host(b"\x7f\0\0\x01", 10911),
    )


def make_segments(total_bytes: int, body_bytes: int, segment_size: int, seed: int = 1) -> Iterator[tuple[int, bytes]]:
    """Base offset and content of each segment of a log of about ``total_bytes``. The last segment ends in zeros."""
    rng = random.Random(seed)
    bodies = [rng.randbytes(body_bytes) for _ in range(16)]

    def make(number: int, offset: int) -> Record:
        return make_record(number, bodies[number % 16], physical_offset=offset)

    return lay_segments(make, total_bytes, segment_size)


def lay_segments(
    make: Callable[[int, int], Record], total_bytes: int, segment_size: int
) -> Iterator[tuple[int, bytes]]:
    """The same for records that ``make`` returns for their numbers and their offsets in the log."""
    number = base = 0
    while base < total_bytes:
        segment = bytearray()
        while base + len(segment) < total_bytes:
            record = encode_record(make(number, base + len(segment)))
            if len(segment) + len(record) + END_FILE_MIN_BLANK_LENGTH > segment_size:
                segment += encode_blank(segment_size - len(segment))
                break
            segment += record
            number += 1
        yield base, bytes(segment.ljust(segment_size, b"\0"))
        base += segment_size


def write_log(folder: Path, total_bytes: int, body_bytes: int, segment_size: int, seed: int = 1) -> None:
    """Write the segments of such a log to ``folder``, sparse at the end. Raises OSError."""
    write_segments(folder, make_segments(total_bytes, body_bytes, segment_size, seed), segment_size)


def write_segments(folder: Path, segments: Iterable[tuple[int, bytes]], segment_size: int) -> None:
    """Write segments, with their base offsets, to ``folder``. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for base, content in segments:
        with (folder / file_name(base)).open("wb") as file:
            file.write(content.rstrip(b"\0"))
            file.truncate(segment_size)
