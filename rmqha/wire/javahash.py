"""Java's ``String.hashCode``, which consume queues and index files are built on (spec/store.md 3.11, 7.1).

h = 31·h + c over UTF-16 code units c, modulo 2³², read as a signed 32-bit integer.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

MASK = 0xFFFFFFFF
SIGN = 0x80000000


def java_hash(text: str) -> int:
    """The hash code of one string, signed."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & MASK
    return value - (1 << 32) if value & SIGN else value


@lru_cache(maxsize=4096)
def tags_hash(tags: str) -> int:
    """tagsCode of a message with these TAGS, 0 for none; the same few tags come again and again."""
    return java_hash(tags)


def java_hashes(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """The hash codes of many strings, signed; fast where they are ASCII and share few lengths."""
    result = np.zeros(len(texts), dtype=np.int64)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    joined = "".join(texts)
    if not joined.isascii():
        return np.array([java_hash(text) for text in texts], dtype=np.int64)
    units = np.frombuffer(joined.encode("ascii"), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == length)
        rows = units[starts[which][:, None] + np.arange(length)].astype(np.uint32)
        result[which] = (rows * _powers(length)).sum(axis=1, dtype=np.uint32).view(np.int32)
    return result


@lru_cache(maxsize=512)
def _powers(length: int) -> npt.NDArray[np.uint32]:
    return np.array([pow(31, length - 1 - i, 1 << 32) for i in range(length)], dtype=np.uint32)


def index_hashes(keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """The key hashes of index files for ``topic#key`` texts: never negative (spec/store.md 7.1)."""
    hashes = np.abs(java_hashes(keys))
    hashes[hashes == 1 << 31] = 0  # Java's abs of -2³¹ is negative, which counts as 0
    return hashes
