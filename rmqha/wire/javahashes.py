"""Java's ``String.hashCode`` of many strings at once."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rmqha.wire.javahash import MASK, java_hash


def java_hashes(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """The hash codes of many strings, signed. Fast for ASCII strings that share few lengths."""
    joined = "".join(texts)
    if not joined.isascii():
        return np.array([java_hash(text) for text in texts], dtype=np.int64)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return _ascii_hashes(np.frombuffer(joined.encode("ascii"), dtype=np.uint8), np.cumsum(lengths) - lengths, lengths)


def stored_hashes(
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The hash codes, signed, of texts inside the bytes of a log, decoded like the texts of a record.

    ``before`` holds the hash code of the text that precedes each. As fast as ``java_hashes`` for ASCII texts.
    """
    if not len(data) or int(data.max()) < 0x80:
        return _ascii_hashes(data, begins, lengths, before)
    beyond = np.flatnonzero(data >= 0x80)
    is_ascii = np.searchsorted(beyond, begins) == np.searchsorted(beyond, begins + lengths)
    result = np.empty(len(begins), dtype=np.int64)
    result[is_ascii] = _ascii_hashes(data, begins[is_ascii], lengths[is_ascii], before[is_ascii])
    for row in np.flatnonzero(~is_ascii).tolist():
        raw = data[begins[row] : begins[row] + lengths[row]].tobytes()
        result[row] = java_hash(raw.decode("utf-8", "surrogateescape"), int(before[row]))
    return result


def _ascii_hashes(
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Hash texts of one length together: they form a matrix, one text a row, multiplied by the powers of 31."""
    result = np.zeros(len(begins), dtype=np.uint32) if before is None else before.astype(np.uint32)
    different = np.flatnonzero(np.bincount(lengths)).tolist()
    for length in different:
        if not length:
            continue
        which = np.flatnonzero(lengths == length) if len(different) > 1 else slice(None)
        windows: npt.NDArray[np.void] = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
        rows = windows[begins[which]].view(np.uint8).reshape(-1, length).astype(np.uint32)
        powers = _powers(length)
        result[which] = result[which] * powers[0] + np.einsum("ij,j->i", rows, powers[1:])
    return result.view(np.int32).astype(np.int64)


def row_hashes(texts: npt.NDArray[np.uint8], before: int) -> npt.NDArray[np.int64]:
    """The hash codes, signed, of ASCII texts of one length, one text a row. ``before`` is the hash code of the
    preceding text.
    """
    powers = _powers(texts.shape[1])
    start = np.uint32(before * int(powers[0]) & MASK)
    result: npt.NDArray[np.uint32] = np.einsum("ij,j->i", texts.astype(np.uint32), powers[1:]) + start
    return result.view(np.int32).astype(np.int64)


@lru_cache(maxsize=128)
def _powers(length: int) -> npt.NDArray[np.uint32]:
    """The powers of 31 from ``length`` down to 0, modulo 2³²."""
    factors = np.full(length + 1, 31, dtype=np.uint32)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint32)[::-1].copy()


def index_hashes(keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """The key hashes of index files for ``topic#key`` texts: never negative (spec/store.md 7.1)."""
    return without_sign(java_hashes(keys))


def without_sign(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The key hashes of index files for these hash codes: never negative."""
    hashes = np.abs(hashes)
    hashes[hashes == 1 << 31] = 0  # Java's abs of -2³¹ is negative, which counts as 0
    return hashes
