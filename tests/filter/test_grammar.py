"""SQL92 filters: what expressions mean, as RocketMQ 4.9.3 has it (``tests/interop/test_sql_filters.py`` asks it)."""

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.filter.expressions import MAX_DEPTH, SqlError, SqlFilter
from rmqha.filter.grammar import MAX_SQL_CHARACTERS, parse, parsing
from rmqha.filter.values import NoMatch, Value
from tests import examples

MESSAGE = {"a": "1", "b": "2", "n": "-5", "f": "1.5", "word": "abc", "yes": "true", "quote": "it's"}


class GrammarTestCase(SynchronousTestCase):
    """Expressions and the message above."""

    def value(self, text: str) -> Value:
        """What an expression gives."""
        return parse(text).root.value(MESSAGE)

    def assert_values(self, expected: dict[str, Value]) -> None:
        self.assertEqual({text: self.value(text) for text in expected}, expected)

    def assert_wrong(self, *texts: str) -> None:
        """These are refused."""
        for text in texts:
            try:
                found = parse(text)
            except SqlError as error:
                self.assertLess(len(str(error)), 200)
            else:
                self.fail(f"{text!r} was taken as {found}")


class ValueTests(GrammarTestCase):
    """Conditions."""

    def test_comparisons_of_numbers(self) -> None:
        self.assert_values(
            {
                "a = 1": True,
                "1 = a": True,
                "a <> 1": False,
                "a < 2": True,
                "a <= 1": True,
                "n = -5": True,
                "f >= 1.5": True,
                "1 = 1.0": True,
                "7l = 7": True,
            }
        )

    def test_three_values(self) -> None:
        self.assert_values(
            {
                "missing = 1": None,
                "NOT (missing = 1)": None,
                "missing = 1 OR a = 1": True,
                "missing = 1 AND a = 1": None,
                "missing = 1 AND a = 2": False,
                "missing IS NULL": True,
                "a IS NULL": False,
                "a IS NOT NULL": True,
                "missing = gone": True,
                "missing IN ('x')": None,
                "missing NOT IN ('x')": None,
                "missing BETWEEN 1 AND 2": None,
            }
        )

    def test_texts_are_compared_as_numbers_or_not_at_all(self) -> None:
        self.assert_values({"a < b": True, "b > f": True, "word = 'abc'": True, "word <> 'x'": True})
        for text in ("word < 5", "word > a", "word = 5", "word <> 5", "a = 1 AND word = 5", "word = 5 OR TRUE"):
            self.assertRaises(NoMatch, self.value, text)
            self.assertFalse(parse(text).matches(MESSAGE))
        self.assertTrue(parse("TRUE OR word = 5").matches(MESSAGE))

    def test_between_and_in(self) -> None:
        self.assert_values(
            {
                "a BETWEEN 1 AND 2": True,
                "b BETWEEN a AND 5": True,
                "n BETWEEN -10 AND -1": True,
                "n NOT BETWEEN -10 AND -1": False,
                "a NOT BETWEEN 5 AND 1": True,
                "quote IN ('x', 'it''s')": True,
                "a NOT IN ('2')": True,
                "a IN ('1') AND b IN ('2')": True,
            }
        )

    def test_booleans(self) -> None:
        self.assert_values(
            {
                "yes = TRUE": True,
                "yes": False,
                "NOT yes": True,
                "TRUE AND NOT FALSE": True,
                "a = TRUE": False,
                "NULL": None,
                "(a = 1) = TRUE": True,
            }
        )

    def test_precedence_comments_and_blanks(self) -> None:
        self.assert_values(
            {
                "a = 9 AND b = 9 OR a = 1": True,
                "a = 1 or b = 9 and b = 8": True,
                "/* x ** */ a -- y\n= 1": True,
                "a=1\tAND\r\nb=2": True,
            }
        )

    def test_what_follows_an_expression_is_refused(self) -> None:
        """RocketMQ ignores it, and the consumer gets other messages than it asks for."""
        self.assert_wrong("a = 1 b", "a = 1 LIMIT 5 ?", "a = 1)", "a = 1 -", "a = 007", "a LIKE 'x'", "word CONTAINS")
        self.assert_wrong(
            "a = 1 ?", "a = 1;", "a = 1 NOT b", "a = 1 AND", "a = 1 '", "word CONTAINS a", "word NOT LIKE 'a'"
        )

    def test_words_of_rocketmq_5(self) -> None:
        """A missing property, another value and an empty text give false, also with NOT."""
        self.assert_values(
            {
                "word CONTAINS 'b'": True,
                "word CONTAINS 'B'": False,
                "word NOT contains 'b'": False,
                "word startsWith 'ab' AND word ENDSWITH 'bc'": True,
                "word NOT STARTSWITH 'b' AND word NOT ENDSWITH 'b'": True,
                "missing CONTAINS 'b'": False,
                "missing NOT CONTAINS 'b'": False,
                "word CONTAINS ''": False,
                "word NOT ENDSWITH ''": False,
                "5 CONTAINS '5'": False,
                "quote CONTAINS 't''s'": True,
                "'abc' CONTAINS 'b' = TRUE": True,
            }
        )

    def test_a_property_may_have_the_name_of_such_a_word(self) -> None:
        found = parse("CONTAINS = 'x' OR NOT endswith AND startswith STARTSWITH 'a'")
        self.assertTrue(found.matches({"CONTAINS": "x"}))
        self.assertTrue(found.matches({"endswith": "x", "startswith": "ab"}))


class WrongTests(GrammarTestCase):
    """Expressions that nobody can use."""

    def test_they_are_refused(self) -> None:
        self.assert_wrong(
            *("", " ", "5", "'x'", "a =", "a = NULL", "a > 'x'", "a > TRUE", "a > 1 > 2", "5 IN ('5')", "a IN ()"),
            *(
                "a IN (1)",
                "a BETWEEN 5 AND 1",
                "a BETWEEN 'a' AND 'b'",
                "TRUE = 5",
                "a == 1",
                "a != 1",
            ),
            *('a = "x"', "a = 0.0", "a = 1e400", "a = 9223372036854775808", "(a", "a = 'x", "IS NULL", "NOT"),
        )

    def test_the_text_says_where(self) -> None:
        for text, expected in {
            "a = 1 AND b = ;": "character 15: ';' cannot be there",
            "a BETWEEN 1 5": "character 13: '5' cannot be there",
            "a >": "the expression ends too early",
        }.items():
            with self.assertRaises(SqlError) as caught:
                parse(text)
            self.assertEqual(str(caught.exception), expected)

    def test_length_and_depth_are_limited(self) -> None:
        self.assert_wrong("a = 1 " + " " * MAX_SQL_CHARACTERS)
        for deep in ("(" * 2000 + "a" + ")" * 2000, "-" * 4000, "NOT " * 1000, "a" + " IS NULL" * 400, "/*" * 2000):
            self.assert_wrong(deep)
        for fine in ("(" * 90 + "a = 1" + ")" * 90, "NOT " * 90 + "a = 1", "a" + " IS NULL" * 90):
            parse(fine).matches(MESSAGE)

    def test_long_ones_are_no_problem(self) -> None:
        for word, result in (("OR", False), ("AND", False)):
            found = parse(f" {word} ".join(["a = 7"] * 400))
            self.assertIs(found.root.value(MESSAGE), result)
        self.assertLess(found.root.depth, MAX_DEPTH)

    def test_parsing_pauses(self) -> None:
        steps = parsing(" OR ".join(["a=1"] * 500))
        self.assertGreater(sum(1 for _ in steps), 10)

    def test_a_nested_between_looks_at_each_part_once(self) -> None:
        """RocketMQ looks twice at each level, so 2^n times."""
        text = "a"
        for _ in range(40):
            text = f"-({text} BETWEEN 1 AND 2)"
        self.assertIsNone(self.value(f"{text} IS NULL AND missing = 1"))

    @given(st.text(st.sampled_from("aAbN01.eELl'\"()=<>,+-*/ \n;NOTIRSULBEWD"), max_size=60) | st.text(max_size=60))
    @settings(max_examples=examples(1000), deadline=None)
    def test_any_text_is_parsed_or_refused(self, text: str) -> None:
        try:
            found = parse(text)
        except SqlError:
            return
        self.assertIsInstance(found, SqlFilter)
        self.assertIn(found.matches(MESSAGE), (True, False))
