"""Reads a request's header, field by field."""

from collections.abc import Callable
from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.header import Header
from rmqha.remoting.protocol import RequestRefused
from rmqha.wire.command import RemotingCommand, ResponseCode


def header(**fields: str) -> Header:
    """Of a request with these fields."""
    return Header(RemotingCommand(1, ext_fields=fields))


class HeaderTests(SynchronousTestCase):
    def assert_refused(self, read: Callable[[], object], remark: str) -> None:
        """Reading this refuses the request with code 1."""
        answer = self.assertRaises(RequestRefused, read).answer
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertIn(remark, answer.remark or "")

    def test_fields_are_read_as_what_they_are(self) -> None:
        fields = header(topic="T", queueId="3", offset="-9223372036854775808", unitMode="TRUE")
        self.assertEqual((fields.text("topic"), fields.integer("queueId")), ("T", 3))
        self.assertEqual((fields.integer("offset"), fields.boolean("unitMode")), (-(2**63), True))

    def test_anything_but_true_is_false_as_in_java(self) -> None:
        for text in ("false", "1", "yes", ""):
            self.assertIs(header(unitMode=text).boolean("unitMode", True), False)

    def test_a_field_that_lacks_is_named(self) -> None:
        for read in (Header.text, Header.integer, Header.boolean):
            self.assert_refused(partial(read, header(a="b"), "queueId"), "the custom field <queueId> is null")

    def test_or_has_its_default_be_it_none(self) -> None:
        fields = header()
        self.assertEqual((fields.text("a", "x"), fields.integer("a", 5), fields.boolean("a", True)), ("x", 5, True))
        self.assertEqual((fields.text("a", None), fields.integer("a", None), fields.boolean("a", None)), (None,) * 3)

    def test_an_empty_text_is_a_text(self) -> None:
        self.assertEqual(header(subscription="").text("subscription", "*"), "")

    def test_what_java_reads_as_no_number_is_named(self) -> None:
        for text in ("", "x", "1.0", "1_000", "٣", " 1", str(2**63), str(-(2**63) - 1), "9" * 5000):
            self.assert_refused(partial(header(offset=text).integer, "offset", 0), "<offset> is not a number")
