"""Many messages dispatched at once become what dispatch makes of each."""

from collections.abc import Iterable
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqha.store.derived import bulk
from rmqha.store.derived.bulk import BulkDispatch, Dispatched
from rmqha.store.derived.dispatchrequest import DispatchRequest, is_no_folder, is_possible_offset, read_dispatch_request
from rmqha.store.derived.index import IndexedKey, hashed
from rmqha.testing.records import make_record
from rmqha.wire.columns import Records
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import TRANSACTION_COMMIT_TYPE, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE, Record
from tests.pipeline.test_decode import laid, lay
from tests.strategies import HOSTS, INT32, INT64, any_text, records

Outcome = tuple[int, int, list[tuple[str | int, ...]], list[tuple[int, ...]]]
"""Messages, refused ones; units behind topic, queue and queue offset; hashes of keys, with offset and time."""

NAMES = st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TAG", "KEYS2", ""))
LEVELS = st.integers(-2, 20).map(str) | st.sampled_from((" 7 ", "٣", "1_0", "9" * 30, "x", "1.0"))
VALUES = any_text(40) | LEVELS | st.lists(any_text(12), max_size=4).map(" ".join)
PAIRS = st.tuples(NAMES, st.sampled_from("\x01\x01\x01\x01\x02"), VALUES).map("".join)
PROPERTIES = st.lists(PAIRS, max_size=6).map("\x02".join)
TOPICS = st.sampled_from((SCHEDULE_TOPIC, "T", "é漢😀", "\udcff", "a/b", "..", "", "null\0"))
TRANSACTION_TYPES = (0, TRANSACTION_PREPARED_TYPE, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE)


TRANSACTIONS = st.sampled_from(TRANSACTION_TYPES)

TELLING = st.builds(
    replace,
    st.just(make_record(0, b"b")),
    magic=st.sampled_from((MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)),
    topic=TOPICS,
    properties_stored=PROPERTIES,
    queue_id=INT32,
    queue_offset=INT64 | st.integers(-1, 12),
    sys_flag=st.sampled_from(TRANSACTION_TYPES),
    born_host=HOSTS,
    store_timestamp=INT64,
    store_host=HOSTS,
)
"""Such as mean something to dispatch more often than any records."""


def outcome(dispatch: BulkDispatch, found: Dispatched) -> Outcome:
    units = [
        (dispatch.topics[topic], queue_id, queue_offset, *unit)
        for topic, queue_id, queue_offset, unit in found.units.tolist()
    ]
    return found.messages, found.refused, units, found.keys.tolist()


def as_java_long(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def one_by_one(laid_out: Records) -> Outcome:
    """By the rules of ``rmqha.store.derived.dispatchrequest``."""
    view, levels = laid_out.buffer.data, DelayLevels()
    refused = 0
    units: list[tuple[str | int, ...]] = []
    keys: list[IndexedKey] = []
    for position in laid_out.at.tolist():
        request = read_dispatch_request(view, position)
        assert isinstance(request, DispatchRequest)
        has_place = is_possible_offset(request.queue_offset, request.physical_offset, request.sys_flag)
        if request.is_queued and (is_no_folder(request.topic) or not has_place):
            refused += 1
        elif request.is_queued:
            place = request.topic, request.queue_id, request.queue_offset
            units.append((*place, request.physical_offset, request.size, as_java_long(request.tags_code(levels))))
        if request.is_indexed:
            texts = [f"{request.topic}#{key}" for key in request.index_keys()]
            keys += [IndexedKey(text, request.physical_offset, request.store_timestamp) for text in texts]
    return len(laid_out), refused, units, hashed(keys).tolist()


def assert_dispatched_alike(some: Iterable[Record]) -> None:
    laid_out = lay(laid(some)[1])
    dispatch = BulkDispatch()
    assert outcome(dispatch, dispatch(laid_out)) == one_by_one(laid_out)


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(records() | TELLING, max_size=4))
def test_any_messages_become_what_dispatch_makes_of_each(some: list[Record]) -> None:
    assert_dispatched_alike(some)


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(PROPERTIES, max_size=6), st.sampled_from(TRANSACTION_TYPES))
@example(["KEYS\x01 a  b \x02UNIQ_KEY\x01u v", "UNIQ_KEY\x01u\x02KEYS\x01é a", "KEYS\x01 ", ""], 0)
def test_any_properties_become_the_keys_and_tags_that_dispatch_reads(texts: list[str], transaction_type: int) -> None:
    for topic in (SCHEDULE_TOPIC, "漢"):
        assert_dispatched_alike(
            replace(make_record(0, b"b", topic), properties_stored=text, sys_flag=transaction_type) for text in texts
        )


FILLINGS = st.text(st.sampled_from("ab k\x01\x02\x00\x1f\x7f"), min_size=9, max_size=9)
ALIKE = (
    "KEYS\x01{}{}{}\x02TAGS\x01{}{}\x02UNIQ_KEY\x01{}{}{}{}",
    "UNIQ_KEY\x01{}{}\x02X\x01{}{}\x02KEYS\x01{}{}{}{}{}\x02",
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ALIKE), FILLINGS, st.sampled_from("TU")), max_size=12), TRANSACTIONS)
def test_messages_of_almost_one_shape_become_what_dispatch_makes_of_each(
    some: list[tuple[str, str, str]], transaction_type: int
) -> None:
    with mock.patch.object(bulk, "FEW_ROWS", 1):
        assert_dispatched_alike(
            replace(make_record(0, b"b", topic), properties_stored=text.format(*filling), sys_flag=transaction_type)
            for text, filling, topic in some
        )


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(records() | TELLING, max_size=6))
def test_a_shape_is_made_of_any_message(some: list[Record]) -> None:
    with mock.patch.object(bulk, "FEW_ROWS", 1):
        assert_dispatched_alike([*some, *some])


def test_topics_keep_their_numbers_from_piece_to_piece() -> None:
    content = laid(make_record(number, b"b", topic) for number, topic in enumerate("ABCBA"))[1]
    whole = lay(content)
    dispatch = BulkDispatch()
    pieces = [dispatch(whole.take(slice(at, at + 2))).units["topic"].tolist() for at in range(0, 5, 2)]
    assert [dispatch.topics[number] for piece in pieces for number in piece] == list("ABCBA")
    assert dispatch.topics == ["A", "B", "C"]
