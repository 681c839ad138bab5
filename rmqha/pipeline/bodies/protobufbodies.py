"""Decodes Protobuf bodies with Google's library, by a file of descriptors.

A field without presence that a body leaves out has its default value, as in every language; a field with presence is
null. An enum is the name of its value, or its number if it has no name. ``uint64`` is ``decimal(20,0)``, and a
``google.protobuf.Timestamp`` a timestamp. A message within itself is a binary column: the bytes of that message. One
without fields is the string ``{}``.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from rmqha.kit.times import EPOCH
from rmqha.pipeline.errors import BodyError, OptionError
from rmqha.pipeline.sqltypes import NO_FIELDS, TIMESTAMP, list_of

TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"
KINDS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
Convert = Callable[[Any], Any]


class ProtobufCodec:
    """Bodies of Protobuf, as values of the Arrow type of their message."""

    def __init__(self, descriptor: bytes, message: str) -> None:
        """Raises OptionError if there is no such message, or the file is not one of descriptors."""
        found = _message(descriptor, message)
        self._class = GetMessageClass(found)
        self.type, self._convert = _of_message(found, (found.full_name,))

    def parse(self, body: bytes) -> Any:
        """See ``Codec``."""
        try:
            return self._convert(self._class.FromString(body))
        except (DecodeError, UnicodeDecodeError, OverflowError) as error:
            raise BodyError(f"it is not Protobuf of the message: {error}") from error


def _message(descriptor: bytes, message: str) -> Descriptor:
    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptor).file
        if not files:
            raise TypeError("it has no files")
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (DecodeError, TypeError) as error:
        raise OptionError(
            f"bodyDescriptor: it is not a file that protoc --descriptor_set_out --include_imports wrote: {error}"
        ) from error
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        there_are = [f"{file.package}.{one.name}".lstrip(".") for file in files for one in file.message_type]
        raise OptionError(
            f"bodyMessage={message}: the file has no such message; there are {', '.join(there_are)}"
        ) from None


def _of_message(message: Descriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    """The type of a message and its values, inside of other messages."""
    if not message.fields:
        return pa.string(), _without_fields
    fields = [(field.name, *_of_field(field, inside)) for field in message.fields]
    kind = pa.struct([pa.field(name, column) for name, column, _ in fields])
    return kind, partial(_as_dict, tuple((name, read) for name, _, read in fields))


def _without_fields(_: Message) -> str:
    return NO_FIELDS


def _as_dict(fields: tuple[tuple[str, Convert], ...], message: Message) -> dict[str, Any]:
    return {name: read(message) for name, read in fields}


def _of_field(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    """The type of a field, and how to read it from its message."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        item, convert = _of_value(value, inside)
        return pa.map_(_of_value(key, inside)[0], item), partial(_read_map, name, convert)
    kind, convert = _of_value(field, inside)
    if field.is_repeated:
        return list_of(kind), partial(_read_list, name, convert)
    return kind, partial(_read_present if field.has_presence else _read, name, convert)


def _read(name: str, convert: Convert | None, message: Message) -> Any:
    value = getattr(message, name)
    return value if convert is None else convert(value)


def _read_present(name: str, convert: Convert | None, message: Message) -> Any:
    return _read(name, convert, message) if message.HasField(name) else None


def _read_list(name: str, convert: Convert | None, message: Message) -> list[Any]:
    values = getattr(message, name)
    return list(values) if convert is None else [convert(value) for value in values]


def _read_map(name: str, convert: Convert | None, message: Message) -> dict[Any, Any]:
    values = getattr(message, name)
    return {key: values[key] if convert is None else convert(values[key]) for key in values}


def _of_value(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert | None]:
    """The type of one value of a field, and how to convert it, if at all."""
    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP_MESSAGE:
            return TIMESTAMP, _as_time
        if message.full_name in inside:
            return pa.binary(), _as_bytes
        return _of_message(message, (*inside, message.full_name))
    if field.enum_type is not None:
        return pa.string(), partial(_name_of, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), None
    return KINDS[field.cpp_type], None


def _as_bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _as_time(message: Any) -> datetime:
    return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _name_of(kind: EnumDescriptor, number: int) -> str:
    found = kind.values_by_number.get(number)
    return str(number) if found is None else found.name
