"""Decodes bodies into values of an Arrow type, one codec for each format."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from rmqha.pipeline.bodyformats import BodyFormat, Format
from rmqha.pipeline.errors import BodyError, OptionError, one_line

MAX_REASON_CHARACTERS = 300
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that its type cannot hold."""


class Codec(Protocol):
    """Decodes bodies of one format and schema."""

    @property
    def type(self) -> pa.DataType:
        """The type of a decoded body."""

    def parse(self, body: bytes) -> Any:
        """The value of one body, as ``pyarrow.array`` takes it. Raises BodyError."""


class TextCodec:
    """Bodies in UTF-8."""

    type = pa.string()

    def parse(self, body: bytes) -> str:
        """See ``Codec``."""
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"it is not UTF-8: byte 0x{body[error.start]:02x} at {error.start}") from error


@cache
def codec_of(one: BodyFormat, kind: pa.DataType | None = None) -> Codec:
    """The codec of a format. ``kind`` is the type of JSON bodies, if it does not come from a schema.

    Raises OptionError if the schema cannot be used, or a library is missing.
    """
    try:
        match one.format:
            case Format.TEXT:
                return TextCodec()
            case Format.JSON:
                from rmqha.pipeline.bodies.jsonbodies import JsonCodec

                return JsonCodec.of(one.schema, kind)
            case Format.AVRO:
                from rmqha.pipeline.bodies.avrobodies import AvroCodec

                assert one.schema is not None, "BodyFormat has seen to it"
                return AvroCodec(one.schema)
            case Format.PROTOBUF:
                from rmqha.pipeline.bodies.protobufbodies import ProtobufCodec

                assert one.descriptor is not None, "BodyFormat has seen to it"
                assert one.message is not None, "BodyFormat has seen to it"
                return ProtobufCodec(one.descriptor, one.message)
    except ModuleNotFoundError as error:
        raise OptionError(f"bodyFormat={one.format.value} needs {error.name}: pip install 'rmqha[spark]'") from error


def decode_bodies(codec: Codec, bodies: Sequence[bytes | None], reasons: list[str | None]) -> pa.Array:
    """The values of the bodies; null for None, and for a body that cannot be decoded: ``reasons`` then says why."""
    values: list[Any] = []
    for number, body in enumerate(bodies):
        value = None
        if body is not None:
            try:
                value = codec.parse(body)
            except BodyError as error:
                reasons[number] = str(error)[:MAX_REASON_CHARACTERS]
        values.append(value)
    return _array(values, codec.type, reasons, 0)


def _array(values: list[Any], kind: pa.DataType, reasons: list[str | None], first: int) -> pa.Array:
    """An array of the values. A value that the type cannot hold is null, and found by halves."""
    try:
        return pa.array(values, kind)
    except UNFIT as error:
        if len(values) == 1:
            reasons[first] = f"it does not fit its type: {one_line(error)}"[:MAX_REASON_CHARACTERS]
            return pa.nulls(1, kind)
    middle = len(values) // 2
    halves = [_array(values[:middle], kind, reasons, first), _array(values[middle:], kind, reasons, first + middle)]
    return pa.concat_arrays(halves)
