"""The columns of a record, and their types in Arrow and in Spark. All may be null."""

from collections.abc import Sequence

import pyarrow as pa

from rmqha.pipeline.errors import OptionError

TIMESTAMP = pa.timestamp("us", tz="UTC")
STRING_MAP = pa.map_(pa.string(), pa.string())

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
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.string(),
    "body": pa.binary(),
}
PROPERTIES_MAP = "propertiesMap"
"""A column on demand: the properties as a map, in addition to the stored string."""
RECORD_CRC, RAW_RECORD = "recordCRC", "rawRecord"
PROOF_COLUMNS = {RECORD_CRC: pa.int32(), RAW_RECORD: pa.binary()}
"""The last columns of an archive: the CRC-32 of each record as a signed number, and the record's bytes where the other
columns cannot represent them, else null. With them an archive can be turned into a store again.
"""

SQL_TYPES: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    TIMESTAMP: "timestamp",
    pa.binary(): "binary",
    STRING_MAP: "map<string,string>",
}
ARROW_TYPES = {sql: arrow for arrow, sql in SQL_TYPES.items()}


def column_type(name: str, properties: str = "raw") -> pa.DataType:
    """The Arrow type of a column; ``properties`` says whether its column is ``raw`` or ``map``. Raises OptionError."""
    if name == PROPERTIES_MAP or (name == "properties" and properties == "map"):
        return STRING_MAP
    try:
        return COLUMNS[name]
    except KeyError:
        raise OptionError(f"there is no column {name!r}: there are {', '.join(COLUMNS)} and {PROPERTIES_MAP}") from None


def records_schema(columns: Sequence[str] = (), properties: str = "raw") -> pa.Schema:
    """The schema of these columns, in this order; by default all but the map. Raises OptionError."""
    names = columns or [name for name in COLUMNS if name != "properties" or properties != "none"]
    return pa.schema([pa.field(name, column_type(name, properties)) for name in names])


def archive_schema(columns: Sequence[str] = (), properties: str = "raw") -> pa.Schema:
    """The schema of an archive's files. They prove their records unless only some columns were chosen, or properties
    as a map. Raises OptionError.
    """
    schema = records_schema(columns, properties)
    if columns or properties != "raw":
        return schema
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in PROOF_COLUMNS.items())])


def to_ddl(schema: pa.Schema) -> str:
    """The schema in the syntax of Spark SQL."""
    return ", ".join(f"`{field.name}` {SQL_TYPES[field.type]}" for field in schema)


def check_records_schema(fields: Sequence[tuple[str, str]]) -> pa.Schema:
    """The Arrow schema of fields with these names and SQL types. Raises OptionError if a record has no such column."""
    found = []
    for name, sql_type in fields:
        arrow_type = ARROW_TYPES.get(sql_type)
        is_map = name == "properties" and arrow_type == STRING_MAP
        expected = STRING_MAP if is_map else column_type(name)
        if arrow_type != expected:
            raise OptionError(f"column {name} is {SQL_TYPES[expected]}, not {sql_type}")
        found.append(pa.field(name, expected))
    return pa.schema(found)
