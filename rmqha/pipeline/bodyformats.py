"""What bodies are: their format, and where their schema is. Options give it, for all topics or for each topic."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import orjson

MAX_FILE_BYTES = 64 << 20
DEFAULT_MAX_BODY_BYTES = 4 << 20
"""The default maxMessageSize of producers, which they compare with bodies before they compress them."""


Choice = TypeVar("Choice", bound=Enum)


class Format(Enum):
    """How bodies are encoded."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """The format of bodies. ``schema`` is Spark DDL for JSON, and JSON for Avro. JSON without a schema is inferred.

    ``descriptor`` is the content of a file that ``protoc --descriptor_set_out --include_imports`` has written, and
    ``message`` is the full name of a message type in it.
    """

    format: Format
    schema: str | None = None
    descriptor: bytes | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if something is missing, or has no meaning for this format."""
        name = self.format.value
        if self.format is Format.AVRO and self.schema is None:
            raise ValueError("avro needs a schema (bodySchema=): its bodies do not contain it")
        if self.format is Format.PROTOBUF and (self.descriptor is None or self.message is None):
            raise ValueError(
                "protobuf needs a descriptor file (bodyDescriptor=) and the name of a message in it (bodyMessage=)"
            )
        if self.format is not Format.PROTOBUF and (self.descriptor is not None or self.message is not None):
            raise ValueError(f"a descriptor and a message are for protobuf, not for {name}")
        if self.format in (Format.PROTOBUF, Format.TEXT) and self.schema is not None:
            raise ValueError(f"a schema is for json and avro, not for {name}")

    @property
    def is_inferred(self) -> bool:
        """Whether the schema must be inferred from bodies."""
        return self.format is Format.JSON and self.schema is None


KEYS = ("format", "schema", "descriptor", "message")


def chosen(choices: type[Choice], text: str) -> Choice:
    """The member of an Enum whose value is this text, in upper or lower case. Raises ValueError."""
    for choice in choices:
        if choice.value.lower() == text.strip().lower():
            return choice
    raise ValueError(f"it must be one of {', '.join(choice.value for choice in choices)}")


def schema_text(text: str) -> str:
    """A schema, or the content of the file that the text names by an absolute path or a file:// URL.

    Raises ValueError.
    """
    text = text.strip()
    if not text:
        raise ValueError("it is empty")
    if not text.startswith(("/", "file:")):
        return text
    try:
        return file_content(text).decode().strip()
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None


def file_content(text: str) -> bytes:
    """The content of the file with this path or file:// URL. Raises ValueError."""
    path = Path(unquote(urlsplit(text).path) if text.startswith("file:") else text)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"the file is larger than {MAX_FILE_BYTES >> 20} MiB")
    return content


def body_format(texts: Mapping[str, str]) -> BodyFormat:
    """The format that these texts describe; their names are ``KEYS``. Raises ValueError."""
    descriptor = texts.get("descriptor")
    return BodyFormat(
        format=chosen(Format, texts["format"]),
        schema=schema_text(texts["schema"]) if "schema" in texts else None,
        descriptor=None if descriptor is None else file_content(descriptor),
        message=texts.get("message"),
    )


def formats_by_topic(text: str) -> tuple[tuple[str, BodyFormat], ...]:
    """The format of each topic, from a JSON file: ``{"Orders": {"format": "json", "schema": "id bigint"}}``.

    The schema of Avro may be JSON itself instead of a text. Raises ValueError.
    """
    try:
        content = orjson.loads(file_content(text))
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the file is not JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError('the file is not like {"Orders": {"format": "json", "schema": "id bigint"}}')
    found = []
    for topic, given in content.items():
        try:
            found.append((topic, body_format(_texts(given))))
        except ValueError as error:
            raise ValueError(f"topic {topic}: {error}") from error
    return tuple(found)


def _texts(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or "format" not in given:
        raise ValueError(f"it needs a format, and may have {', '.join(KEYS[1:])}")
    strange = [key for key in given if key not in KEYS]
    if strange:
        raise ValueError(f"there is no {strange[0]}; there are {', '.join(KEYS)}")
    texts = {key: value if isinstance(value, str) else orjson.dumps(value).decode() for key, value in given.items()}
    return texts
