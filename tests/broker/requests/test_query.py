"""Looking up messages by key and by id (spec/remoting.md 2.6)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.broker.requests import query
from rmqha.broker.requests.query import QueryProcessors
from rmqha.store.derived import index
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.record import encode_record
from tests import examples
from tests.broker.brokerstore import BrokerStoreTestCase, any_header, bodies_in

LONG_MAX = 2**63 - 1
NOT_FOUND = "can not find message, maybe time range not correct"


class QueryTestCase(BrokerStoreTestCase):
    """Has a store whose messages can be looked up."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.serve()

    def serve(self) -> None:
        """Answer requests about the store that is open."""
        self.peer = self.client(QueryProcessors(self.store, default_query_max_num=2).processors())

    def query(self, key: str, **fields: object) -> RemotingCommand:
        """What mqadmin queryMsgByKey asks, with other fields if they are given."""
        asked = {"topic": "T", "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": LONG_MAX}
        return self.peer.ask(RequestCode.QUERY_MESSAGE, **{**asked, **fields})


class QueryMessageTests(QueryTestCase):
    """Code 12."""

    def test_messages_are_found_by_each_of_their_keys(self) -> None:
        both, _, second = (
            *self.put(b"1", KEYS="k1 k2", UNIQ_KEY="u1"),
            *self.put(b"2", KEYS="k3"),
            *self.put(b"3", KEYS="k2"),
        )
        for key, expected in {"k1": [both], "k2": [both, second], "u1": [both]}.items():
            answer = self.query(key)
            self.assertEqual(answer.code, ResponseCode.SUCCESS, key)
            self.assertEqual(answer.body, b"".join(map(encode_record, expected)), key)

    def test_the_answer_says_how_far_the_index_is(self) -> None:
        fields = {"indexLastUpdateTimestamp": 0, "indexLastUpdatePhyoffset": 0}
        self.assert_answer(self.query("k"), ResponseCode.QUERY_NOT_FOUND, fields)
        self.put(b"1", KEYS="k")
        (last,) = self.put(b"2", KEYS="k")
        fields = {
            "indexLastUpdateTimestamp": last.store_timestamp,
            "indexLastUpdatePhyoffset": last.physical_offset,
        }
        self.assert_answer(self.query("k"), ResponseCode.SUCCESS, fields)
        self.assert_answer(self.query("unknown"), ResponseCode.QUERY_NOT_FOUND, fields)

    def test_what_is_not_there_is_not_found(self) -> None:
        (record,) = self.put(b"1", KEYS="k")
        answers = [
            self.query("K"),
            self.query(""),
            self.query("k", topic="U"),
            self.query("k", maxNum=0),
            self.query("k", maxNum=-1),
            self.query("k", endTimestamp=record.store_timestamp - 1),
            self.query("k", beginTimestamp=record.store_timestamp + 1),
        ]
        self.assert_refused(answers, ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)

    def test_no_more_than_asked_for_are_given(self) -> None:
        self.put(b"1", b"2", b"3", b"4", KEYS="k", UNIQ_KEY="u")
        self.assertEqual(bodies_in(self.query("k", maxNum=3).body), [b"2", b"3", b"4"])

    def test_a_query_by_unique_key_has_its_own_number(self) -> None:
        self.put(b"1", b"2", b"3", b"4", KEYS="k", UNIQ_KEY="u")
        for number in (1, 64, None):
            answer = self.query("u", maxNum=number, _UNIQUE_KEY_QUERY="true")
            self.assertEqual(bodies_in(answer.body), [b"3", b"4"], number)
        self.assertEqual(len(bodies_in(self.query("u", _UNIQUE_KEY_QUERY="false").body)), 4)

    def test_of_more_than_fits_the_newest_are_given(self) -> None:
        first, second, third = self.put(b"1", b"2", b"3", KEYS="k")
        for room, expected in (
            (first.total_size * 3, [b"1", b"2", b"3"]),
            (first.total_size * 3 - 1, [b"2", b"3"]),
            (third.total_size, [b"3"]),
        ):
            self.patch(query, "MAX_BODY_BYTES", room)
            self.assertEqual(bodies_in(self.query("k").body), expected)
        self.assertEqual(first.total_size, second.total_size)

    def test_a_long_chain_keeps_nobody_from_putting(self) -> None:
        """All keys of one slot: others are served while it is walked."""
        self.put(*[b"m"] * 64, KEYS="k")
        self.patch(index, "ENTRIES_A_STEP", 5)
        self.peer.send(
            RequestCode.QUERY_MESSAGE,
            {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": LONG_MAX},
            b"",
        )
        self.assertEqual(self.peer.answers(), [])
        self.put(b"meanwhile", KEYS="k")
        while not (answers := self.peer.answers()):
            self.clock.advance(0)
        self.assertEqual(bodies_in(answers[0].body), [b"m"] * 64)

    def test_a_slave_finds_them_in_its_own_copy(self) -> None:
        self.put(b"1", KEYS="k")
        self.copy_to_slave()
        self.serve()
        self.assertEqual(bodies_in(self.query("k").body), [b"1"])

    def test_a_field_that_lacks_is_named(self) -> None:
        for name in ("topic", "maxNum", "beginTimestamp", "endTimestamp"):
            self.assert_refused([self.query("k", **{name: None})], ResponseCode.SYSTEM_ERROR, f"<{name}>")


class WithoutIndexTests(QueryTestCase):
    """messageIndexEnable=false."""

    def test_nothing_is_found_by_key(self) -> None:
        self.open(messageIndexEnable="false")
        self.serve()
        self.put(b"1", KEYS="k")
        fields = {"indexLastUpdateTimestamp": 0, "indexLastUpdatePhyoffset": 0}
        self.assert_answer(self.query("k"), ResponseCode.QUERY_NOT_FOUND, fields)


class AnyRequestTests(QueryTestCase):
    """Both codes."""

    @settings(max_examples=examples(200), deadline=None)
    @given(
        code=st.sampled_from([RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID]),
        fields=any_header(["topic", "key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY", "offset"]),
    )
    def test_whatever_a_request_says_it_is_answered(self, code: int, fields: dict[str, object]) -> None:
        self.put(b"1", KEYS="*")
        answer = self.peer.ask(code, **{"topic": "T", "key": "*", "maxNum": 1, **fields})
        self.assertIn(answer.code, (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND))
        self.assertEqual(self.flushLoggedErrors(), [])


class ViewMessageTests(QueryTestCase):
    """Code 33."""

    def view(self, offset: object) -> RemotingCommand:
        """What a client asks that has a message id."""
        return self.peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)

    def test_a_message_is_found_by_its_physical_offset(self) -> None:
        for record in self.put(b"1", b"2", b"\xff" * 300):
            answer = self.view(record.physical_offset)
            self.assert_answer(answer, ResponseCode.SUCCESS, {})
            self.assertEqual(answer.body, encode_record(record))

    def test_where_no_message_begins_none_is_found(self) -> None:
        first, second = self.put(b"1", b"2")
        self.assertEqual(first.physical_offset, 0)
        end = second.physical_offset + second.total_size
        for offset in (-1, 1, second.physical_offset - 1, second.physical_offset + 1, end, end + 1, LONG_MAX):
            self.assert_refused([self.view(offset)], ResponseCode.SYSTEM_ERROR, f"by the offset, {offset}")

    def test_a_blank_at_a_segments_end_is_no_message(self) -> None:
        records = self.put(*[bytes(3_000)] * 30)
        last = max(record.physical_offset for record in records if record.physical_offset < 64 * 1024)
        blank = last + records[0].total_size
        self.assertLess(blank, 64 * 1024)
        self.assert_refused([self.view(blank)], ResponseCode.SYSTEM_ERROR, f"by the offset, {blank}")

    def test_a_field_that_lacks_is_named(self) -> None:
        self.assert_refused([self.view(None), self.view("one")], ResponseCode.SYSTEM_ERROR, "<offset>")
