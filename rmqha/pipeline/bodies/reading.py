"""The columns of decoded bodies, of many messages at once, with a limit of the memory that they take."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqha.pipeline.bodies.codecs import codec_of, decode_bodies
from rmqha.pipeline.bodies.infer import infer_type
from rmqha.pipeline.bodyformats import BodyFormat, Format
from rmqha.pipeline.brokers import open_logs
from rmqha.pipeline.decode import NotInflated, content_of, slices, topics_of
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.options import Options
from rmqha.pipeline.schema import BODY_ERROR, VALUE, to_ddl
from rmqha.pipeline.segments import read_selected
from rmqha.pipeline.sqltypes import same_but_case
from rmqha.store.log.splits import Split
from rmqha.wire.columns import Mask, Records
from rmqha.wire.record import COMPRESSED_FLAG

SAMPLE_MESSAGES = 1000
SAMPLE_BYTES = 16 << 20
SAMPLED_LOG_BYTES = 1 << 30
"""How much of the log is read for a sample, about, if few messages are of its topic."""


class Piece(NamedTuple):
    """Some messages, and the contents of their bodies: None if it is not known, and ``reasons`` says why."""

    records: Records
    contents: list[bytes | None]
    reasons: list[str | None]

    def bodies(self) -> pa.BinaryArray:
        """The contents, and the stored bodies where these are not known."""
        stored = slices(self.records.buffer, *self.records.body)
        return pc.coalesce(pa.array(self.contents, pa.binary()), stored)


def pieces(records: Records, max_body_bytes: int, piece_bytes: int) -> Iterator[Piece]:
    """The messages in pieces whose contents have about ``piece_bytes``: small messages may have large contents.

    A content longer than ``max_body_bytes`` is not known.
    """
    flags = records.sys_flag.tolist()
    start, size = 0, 0
    contents: list[bytes | None] = []
    reasons: list[str | None] = []
    for row, body in enumerate(slices(records.buffer, *records.body).to_pylist()):
        content, reason = _content(body, flags[row], max_body_bytes)
        contents.append(content)
        reasons.append(reason)
        size += len(content or b"")
        if size >= piece_bytes:
            yield Piece(records.take(slice(start, row + 1)), contents, reasons)
            start, size, contents, reasons = row + 1, 0, [], []
    if contents:
        yield Piece(records.take(slice(start, None)), contents, reasons)


def _content(body: bytes, sys_flag: int, max_bytes: int) -> tuple[bytes | None, str | None]:
    if sys_flag & COMPRESSED_FLAG:
        try:
            return content_of(body, sys_flag, max_bytes), None
        except NotInflated as error:
            return None, str(error)
    if len(body) > max_bytes:
        return None, f"it is longer than {max_bytes} bytes (bodyMaxBytes)"
    return body, None


@dataclass(frozen=True)
class Bodies:
    """How bodies become columns. It is pickled and sent to the executors.

    ``formats`` are by topic, or the only one is for all topics, which is then None. With several topics, ``type`` is a
    struct of one field for each.
    """

    formats: tuple[tuple[str | None, BodyFormat], ...]
    type: pa.DataType
    max_bytes: int

    def columns(self, piece: Piece) -> dict[str, pa.Array]:
        """The columns ``value`` and ``bodyError``."""
        reasons = list(piece.reasons)
        if self.formats[0][0] is None:
            value = decode_bodies(codec_of(self.formats[0][1], self.type), piece.contents, reasons)
        else:
            value = self._by_topic(piece, reasons)
        return {VALUE: value, BODY_ERROR: pa.array(reasons, pa.string())}

    def _by_topic(self, piece: Piece, reasons: list[str | None]) -> pa.Array:
        topics = topics_of(piece.records).dictionary_encode()
        codes = topics.indices.to_numpy()
        numbers = {topic: number for number, topic in enumerate(topics.dictionary.to_pylist())}
        known = np.zeros(len(codes), bool)
        columns = []
        for topic, one in self.formats:
            rows: Mask = codes == numbers.get(str(topic), -1)
            known |= rows
            columns.append(self._of_rows(one, self._type_of(str(topic)), rows, piece, reasons))
        for row in np.flatnonzero(~known).tolist():
            reasons[row] = "bodySchemas has nothing for its topic"
        if len(columns) == 1:
            return columns[0]
        has_none = pa.array([reason is not None for reason in reasons])
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=has_none)

    def _type_of(self, topic: str) -> pa.DataType:
        return self.type if len(self.formats) == 1 else self.type.field(topic).type

    @staticmethod
    def _of_rows(one: BodyFormat, kind: pa.DataType, rows: Mask, piece: Piece, reasons: list[str | None]) -> pa.Array:
        """The values of some rows; null for the others."""
        chosen = np.flatnonzero(rows).tolist()
        found: list[str | None] = [reasons[row] for row in chosen]
        values = decode_bodies(codec_of(one, kind), [piece.contents[row] for row in chosen], found)
        for row, reason in zip(chosen, found, strict=True):
            reasons[row] = reason
        places = np.full(len(rows), -1, np.int64)
        places[chosen] = np.arange(len(chosen))
        return values.take(pa.array(places, mask=places < 0))


def check_names(kind: pa.DataType) -> None:
    """Raises OptionError if two fields of decoded bodies have names that differ only in case, at any depth."""
    found = same_but_case(kind)
    if found is not None:
        raise OptionError(
            f"bodies have the fields {' and '.join(found)}, whose names differ only in case: Spark, DuckDB and tables "
            "take them for one. Give a schema (bodySchema=) with one of them. In a schema of Avro or Protobuf rename "
            "one: bodies do not contain names. Of two topics select one"
        )


def bodies_of(options: Options, given: pa.DataType | None = None, is_checked: bool = False) -> Bodies | None:
    """How the options want bodies to be decoded; None if they do not.

    ``given`` is the type of the column ``value``, if it is known: nothing is inferred then. ``is_checked`` says that
    ``check_names`` is not needed. Raises OptionError, and StoreError and OSError if JSON without a schema must be
    inferred.
    """
    formats = chosen_formats(options)
    if not formats:
        return None
    by_topic = len(formats) > 1
    kinds = []
    for topic, one in formats:
        wanted = given
        if given is not None and by_topic:
            if not pa.types.is_struct(given) or given.get_field_index(str(topic)) < 0:
                raise OptionError(f"the column {VALUE} needs a field for each topic: it has none for {topic}")
            wanted = given.field(str(topic)).type
        kinds.append(_type_of(options, topic, one, wanted))
    kind = kinds[0]
    if by_topic:
        kind = pa.struct([pa.field(str(topic), each) for (topic, _), each in zip(formats, kinds, strict=True)])
    if not is_checked:
        check_names(kind)
    return Bodies(formats, kind, options.max_body_bytes)


def with_schemas(options: Options, given: pa.DataType | None = None) -> Options:
    """The options with a schema for all JSON: if it has none, that of the type ``given`` for the column ``value``, or
    else one that is inferred now. Its names are not checked. Raises like ``bodies_of``.
    """
    found = bodies_of(options, given, is_checked=True)
    if found is None:
        return options

    def filled(topic: str | None, one: BodyFormat) -> BodyFormat:
        if not one.is_inferred:
            return one
        kind = found.type if topic is None else found._type_of(topic)
        return replace(one, schema=to_ddl(pa.schema(list(kind))))

    if options.bodies is not None:
        return replace(options, bodies=filled(None, options.bodies))
    chosen = {topic: filled(topic, one) for topic, one in found.formats}
    schemas = tuple((topic, chosen.get(topic, one)) for topic, one in options.body_schemas)
    return replace(options, body_schemas=schemas)


def chosen_formats(options: Options) -> tuple[tuple[str | None, BodyFormat], ...]:
    """The format of each selected topic, or the only one of all topics, which is then None. Raises OptionError."""
    if options.bodies is not None:
        return ((None, options.bodies),)
    topics = options.selection.topics
    chosen = tuple((topic, one) for topic, one in options.body_schemas if topics is None or topic in topics)
    if options.body_schemas and not chosen:
        raise OptionError(f"bodySchemas has nothing for {', '.join(sorted(topics or ()))}")
    return chosen


def _type_of(options: Options, topic: str | None, one: BodyFormat, wanted: pa.DataType | None) -> pa.DataType:
    """The type of decoded bodies of a format. Raises OptionError if it is not the one that is wanted."""
    if one.format is Format.JSON and wanted is not None:
        return codec_of(one, wanted).type
    if one.is_inferred:
        return infer_type(_sample(options, topic))
    return codec_of(one).type


def _sample(options: Options, topic: str | None) -> Iterator[bytes]:
    """Bodies of the first messages of the first and of the last file, and then of the others, if these are too few.

    Of several brokers each has a share. Raises OptionError, StoreError, OSError.
    """
    if topic is not None:
        options = replace(options, selection=replace(options.selection, topics=frozenset({topic})))
    logs = [list(plan.pieces(plan.start(), plan.stop())) for plan in open_logs(options)]
    firsts = [files[0] for files in logs if files]
    turns = zip_longest(*(files[:0:-1] for files in logs))
    others = [file for turn in turns for file in turn if file is not None]
    shares = len(firsts) * (2 if others else 1)
    count, size, read = 0, 0, 0
    for number, file in enumerate([*firsts, *others], 1):
        most = SAMPLE_MESSAGES * min(number, shares) // shares
        for content in _contents(options, file):
            if count >= most or size >= SAMPLE_BYTES:
                break
            count, size = count + 1, size + len(content)
            yield content
        read += file.size
        has_read_enough = number >= shares and read >= SAMPLED_LOG_BYTES
        if count >= SAMPLE_MESSAGES or size >= SAMPLE_BYTES or has_read_enough:
            return


def _contents(options: Options, file: Split) -> Iterator[bytes]:
    for records in read_selected(file, options):
        for piece in pieces(records, options.max_body_bytes, options.batch_bytes):
            yield from (content for content in piece.contents if content is not None)
