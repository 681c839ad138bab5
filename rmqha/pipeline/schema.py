"""The columns of a record, and their types in Arrow and in Spark. All may be null."""

from collections.abc import Sequence

import pyarrow as pa

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.sqltypes import STRING_MAP, TIMESTAMP, quoted, sql_type

PROPERTY_COLUMNS = {"tags": "TAGS", "keys": "KEYS"}
"""Columns of one property each, with the property's name. They are null if a message does not have it."""
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "totalSize": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int32(),
    "bornTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "storeTimestamp": TIMESTAMP,
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    **dict.fromkeys(PROPERTY_COLUMNS, pa.string()),
    "properties": pa.string(),
    "body": pa.binary(),
}
"""A header field of ``wire.layout`` has its name there. ``decode.SPECIAL_COLUMNS`` makes what is not one number."""
NEVER_NULL = frozenset(name for name, kind in COLUMNS.items() if kind != TIMESTAMP and name not in PROPERTY_COLUMNS)
"""The columns that every message has. A time outside of the years 1 to 9999 is null."""
PROPERTIES_MAP = "propertiesMap"
"""A column on demand: the properties as a map, in addition to the stored string."""
VALUE, BODY_ERROR = "value", "bodyError"
"""The decoded body, if the options say what bodies are, and why it could not be decoded."""
BROKER_COLUMNS = {"brokerName": pa.string(), "brokerId": pa.int32()}
"""The broker of a message, and the id of the node that has sent it. Only rows that come over the network have them."""
RECORD_CRC, RAW_RECORD = "recordCRC", "rawRecord"
PROOF_COLUMNS = {RECORD_CRC: pa.int32(), RAW_RECORD: pa.binary()}
"""The last columns of an archive: the CRC-32 of each record as a signed number, and the record's bytes where the other
columns cannot represent them, else null. With them an archive can be turned into a store again.
"""


def column_type(
    name: str, properties: str = "raw", value: pa.DataType | None = None, is_remote: bool = False
) -> pa.DataType:
    """The Arrow type of a column; ``properties`` says whether its column is ``raw`` or ``map``, and ``value`` is the
    type of decoded bodies, if they are decoded. Remote rows have ``BROKER_COLUMNS``, too. Raises OptionError.
    """
    if name in BROKER_COLUMNS:
        if not is_remote:
            raise OptionError(f"there is no column {name} in a store: only rows that come over the network have it")
        return BROKER_COLUMNS[name]
    if name == PROPERTIES_MAP or (name == "properties" and properties == "map"):
        return STRING_MAP
    if name in (VALUE, BODY_ERROR):
        if value is None:
            raise OptionError(f"the column {name} needs bodyFormat= or bodySchemas=")
        return value if name == VALUE else pa.string()
    try:
        return COLUMNS[name]
    except KeyError:
        raise OptionError(f"there is no column {name!r}: there are {', '.join(COLUMNS)} and {PROPERTIES_MAP}") from None


def records_schema(
    columns: Sequence[str] = (), properties: str = "raw", value: pa.DataType | None = None, is_remote: bool = False
) -> pa.Schema:
    """The schema of these columns, in this order; by default all but the map. If bodies are decoded, the decoded ones
    take the place of the body by default. Raises OptionError.
    """
    names = columns or [name for name in COLUMNS if name != "properties" or properties != "none"]
    if value is not None and not columns:
        names = [name for name in names if name != "body"] + [VALUE, BODY_ERROR]
    if is_remote and not columns:
        names = [*names, *BROKER_COLUMNS]
    return pa.schema([pa.field(name, column_type(name, properties, value, is_remote)) for name in names])


def archive_schema(columns: Sequence[str] = (), properties: str = "raw", value: pa.DataType | None = None) -> pa.Schema:
    """The schema of an archive's files. They prove their records unless only some columns were chosen, or properties
    as a map. Decoded bodies, of the type ``value``, are there besides the stored ones. Raises OptionError.
    """
    if value is not None and not columns:
        whole = archive_schema((), properties)
        return pa.schema([*whole, pa.field(VALUE, value), pa.field(BODY_ERROR, pa.string())])
    schema = records_schema(columns, properties, value)
    if columns or properties != "raw":
        return schema
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in PROOF_COLUMNS.items())])


def to_ddl(schema: pa.Schema) -> str:
    """The schema in the syntax of Spark SQL."""
    return ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in schema)


def check_records_schema(
    fields: Sequence[tuple[str, pa.DataType]], value: pa.DataType | None = None, is_remote: bool = False
) -> pa.Schema:
    """The schema of fields with these names and types. ``value`` is the type of decoded bodies. Raises OptionError if a
    record has no such column.
    """
    for name, kind in fields:
        properties = "map" if name == "properties" and kind == STRING_MAP else "raw"
        expected = column_type(name, properties, value, is_remote)
        if kind != expected:
            raise OptionError(f"column {name} is {sql_type(expected)}, not {sql_type(kind)}")
    return pa.schema([pa.field(name, kind) for name, kind in fields])
