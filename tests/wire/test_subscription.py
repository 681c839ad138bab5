"""Tag expressions: which messages a consumer wants (spec/remoting.md 2.3.2)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.javahash import java_hash
from rmqha.wire.subscription import SubscriptionData, tag_codes

TAGS = st.text(st.characters(exclude_characters="|", exclude_categories=["Cs", "Cc", "Z"]), min_size=1)
BLANKS = st.text("\0\t\n\r \x1f")


class TagCodesTests(SynchronousTestCase):
    """From expressions to the codes of tags."""

    def test_the_codes_are_those_that_java_computes(self) -> None:
        """The vectors of spec/remoting.md."""
        for tag, code in {"A": 65, "TagA": 2598919, "中文": 646394, "polygenelubricants": -2147483648}.items():
            self.assertEqual(tag_codes(tag), {code}, tag)

    def test_nothing_and_a_star_stand_for_all(self) -> None:
        for expression in ("", "*"):
            self.assertIsNone(tag_codes(expression), expression)

    def test_a_star_among_tags_is_a_tag(self) -> None:
        self.assertEqual(tag_codes("* || TagA"), {42, 2598919})
        self.assertEqual(tag_codes(" * "), {42}, "only what is exactly a star stands for all")

    @given(st.lists(st.tuples(BLANKS, TAGS, BLANKS), min_size=2))
    def test_tags_between_bars_are_trimmed_as_java_does(self, parts: list[tuple[str, str, str]]) -> None:
        expression = "||".join(before + tag + after for before, tag, after in parts)
        self.assertEqual(tag_codes(expression), {java_hash(tag) for _, tag, _ in parts})

    def test_blank_parts_are_skipped_and_other_blanks_are_part_of_a_tag(self) -> None:
        self.assertEqual(tag_codes("|| A || \t ||"), {65})
        self.assertEqual(tag_codes("\u00a0A"), {java_hash("\u00a0A")}, "Java's trim knows only those up to a space")

    def test_blanks_alone_name_no_tag(self) -> None:
        self.assertEqual(tag_codes(" || "), frozenset())


class SubscriptionDataTests(SynchronousTestCase):
    """Subscriptions, as heartbeats and pulls tell of them."""

    def test_only_messages_with_one_of_the_tags_are_wanted(self) -> None:
        wanted = SubscriptionData("T", "TagA || polygenelubricants").wanted
        assert wanted is not None
        self.assertTrue(wanted(2598919))
        self.assertTrue(wanted(-2147483648))
        self.assertFalse(wanted(0), "a message without tags")
        self.assertFalse(wanted(65))

    def test_only_the_low_32_bits_of_a_tags_code_count(self) -> None:
        """Of a delayed message it is a time."""
        wanted = SubscriptionData("T", "TagA").wanted
        assert wanted is not None
        self.assertTrue(wanted(5 << 32 | 2598919))
        self.assertFalse(wanted(5 << 32 | 2598918))

    def test_without_tags_there_is_nothing_to_ask(self) -> None:
        self.assertIsNone(SubscriptionData("T").wanted)

    def test_a_heartbeats_subscription_is_read(self) -> None:
        content = {
            "classFilterMode": False,
            "codeSet": [1, 2, 3],
            "expressionType": "TAG",
            "subString": "TagA",
            "subVersion": 1795200168832,
            "tagsSet": ["TagA"],
            "topic": "TopicT1",
        }
        subscription = SubscriptionData.from_json(content)
        self.assertEqual(subscription, SubscriptionData("TopicT1", "TagA", 1795200168832))
        self.assertEqual(subscription.codes, {2598919}, "the expression counts, whatever the client made of it")

    def test_what_a_heartbeat_leaves_out_or_says_is_null_has_a_default(self) -> None:
        nulls = {"subString": None, "subVersion": None, "expressionType": None, "tagsSet": None, "codeSet": None}
        for content in ({"topic": "T"}, {"topic": "T", **nulls}, {"topic": "T", "subString": ""}):
            subscription = SubscriptionData.from_json(content)
            self.assertEqual(subscription, SubscriptionData("T"))
            self.assertTrue(subscription.is_tag_type)

    def test_what_is_no_subscription_is_refused(self) -> None:
        contents: list[Any] = [None, [], "T", {}, {"topic": None}, {"topic": 3}, {"topic": "T", "subVersion": "today"}]
        for content in contents:
            with self.assertRaises(ValueError, msg=str(content)):
                SubscriptionData.from_json(content)

    def test_an_expression_of_another_kind_is_known_as_such(self) -> None:
        for subscription in (
            SubscriptionData.from_json({"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}),
            SubscriptionData.from_request("T", "a > 1", "SQL92"),
        ):
            self.assertFalse(subscription.is_tag_type)
            self.assertEqual((subscription.sub_string, subscription.expression_type), ("a > 1", "SQL92"))

    def test_a_pulls_expression_is_read(self) -> None:
        for kind in ("", "TAG"):
            self.assertEqual(SubscriptionData.from_request("T", "TagA", kind).codes, {2598919})
            self.assertIsNone(SubscriptionData.from_request("T", "", kind).codes)
            self.assertTrue(SubscriptionData.from_request("T", "*", kind).is_tag_type)

    def test_an_expression_that_java_could_not_parse_is_refused(self) -> None:
        for expression, kind in (("||", "TAG"), ("||||", ""), ("", "SQL92")):
            with self.assertRaises(ValueError, msg=expression):
                SubscriptionData.from_request("T", expression, kind)
        self.assertEqual(SubscriptionData.from_request("T", "|||", "TAG").codes, {java_hash("|")})
