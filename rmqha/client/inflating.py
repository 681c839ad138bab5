"""Decompresses bodies: zlib, as all clients compress them, and LZ4 and ZSTD of RocketMQ 5.

LZ4 and ZSTD need the libraries of the extra ``rmqha[compression]``. They are imported when such a body comes.
"""

import zlib

from rmqha.wire.record import COMPRESSION_TYPE_MASK, LZ4_COMPRESSION_TYPE, ZLIB_COMPRESSION_TYPES, ZSTD_COMPRESSION_TYPE


class InflateError(ValueError):
    """The body cannot be decompressed. The text says why."""


def inflated(body: bytes, sys_flag: int, max_bytes: int) -> bytes:
    """The content of a compressed body, whose sysFlag says how. Raises InflateError."""
    try:
        content, is_whole = _inflated(body, sys_flag & COMPRESSION_TYPE_MASK, max_bytes)
    except ImportError as error:
        raise InflateError(f"it needs a library: pip install 'rmqha[compression]' ({error})") from error
    if not is_whole:
        raise InflateError(f"it expands to more than {max_bytes} bytes, or is cut off")
    return content


def _inflated(body: bytes, kind: int, max_bytes: int) -> tuple[bytes, bool]:
    """At most this many bytes, and whether the body has ended there. Raises InflateError, ImportError."""
    if kind in ZLIB_COMPRESSION_TYPES:
        return _zlib(body, max_bytes)
    if kind == LZ4_COMPRESSION_TYPE:
        return _lz4(body, max_bytes)
    if kind == ZSTD_COMPRESSION_TYPE:
        return _zstd(body, max_bytes)
    raise InflateError(f"it is compressed in an unknown way ({kind:#x})")


def _zlib(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    try:
        return stream.decompress(body, max_bytes), stream.eof
    except zlib.error as error:
        raise InflateError(str(error)) from error


def _lz4(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        content = stream.decompress(body, max_bytes)
        return content, stream.eof
    except (RuntimeError, EOFError) as error:
        raise InflateError(str(error)) from error


def _zstd(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    import zstandard

    library = zstandard.ZstdDecompressor(max_window_size=max_bytes)
    try:
        content = library.stream_reader(body).read(max_bytes + 1)
        if len(content) > max_bytes:
            return content[:max_bytes], False
        stream = library.decompressobj()  # the reader does not say whether the end is missing
        stream.decompress(body)
    except zstandard.ZstdError as error:
        raise InflateError(str(error)) from error
    return content, stream.eof
