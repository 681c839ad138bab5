"""Sends that are allowed as the send before: only those that the rules allow too, each with a good signature."""

from typing import Any

from hypothesis import given
from hypothesis.strategies import dictionaries, lists, sampled_from, tuples
from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl.rules import AclRules
from rmqha.acl.signing import SECURITY_TOKEN, SIGNATURE, UNIQUE_KEY_QUERY, Credentials
from rmqha.wire.command import RemotingCommand, RequestCode
from tests.acl.test_rules import ACCOUNT, APP, BOSS, CONTENT, rules_of, signed, verdict

V2 = RequestCode.SEND_MESSAGE_V2
FIELDS = {"a": "PG", "b": "TPub", "e": "0", "i": "TAGS\x01a"}
WRONG = Credentials(APP.access_key, "another-secret")
FORGED = "forged"
NO_TEXTS: tuple[Any, ...] = (None, True, 7, 1.5, [], {}, ["TPub"])


def tampered(request: RemotingCommand, **fields: str | None) -> RemotingCommand:
    """The request with other fields under the same signature; without those that are None."""
    found = {**request.ext_fields, **fields}
    return request._replace(ext_fields={name: value for name, value in found.items() if value is not None})


def allows(rules: AclRules, request: RemotingCommand) -> bool:
    """Whether the request may take the short way."""
    return rules.usual.allow(request.code, request.ext_fields, request.body)


def any_request(kind: tuple[Any, ...]) -> RemotingCommand:
    """A request of these choices, perhaps changed after it was signed."""
    keys, code, version, fields, body, change = kind
    request = signed(keys, code, fields, body)._replace(version=version)
    match change:
        case "field":
            return tampered(request, i="TAGS\x01b", x="y")
        case "moved":  # the same bytes are signed, but the topic is another
            return tampered(request, a=fields.get("a", "") + fields.get("b", "")[:1], b=fields.get("b", "")[1:])
        case "body":
            return request._replace(body=request.body + b"x")
        case "unsigned":
            return tampered(request, **{SIGNATURE: None})
        case "renamed":
            return tampered(request, **{SIGNATURE: None, "Signed": request.ext_fields[SIGNATURE]})
        case "forged":
            return tampered(request, **{SIGNATURE: FORGED})
    return request


NAMES = sampled_from(["a", "b", "topic", "i", "x", SECURITY_TOKEN, UNIQUE_KEY_QUERY, SIGNATURE])
VALUES = sampled_from(["", "TPub", "TBoth", "TSub", "%RETRY%GSub", "%RETRY%GDeny", "RMQ_SYS_TRACE_TOPIC", "ü"])
REQUESTS = tuples(
    sampled_from([APP, APP, BOSS, WRONG, Credentials("nobody-knows", "a-secret")]),
    sampled_from([V2, V2, RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE]),
    sampled_from([399, 400]),
    dictionaries(NAMES, VALUES, max_size=6),
    sampled_from([b"", b"body"]),
    sampled_from(["", "", "field", "moved", "body", "unsigned", "renamed", "forged"]),
)


class UsualSendsTests(SynchronousTestCase):
    """The short way through the rules."""

    @given(lists(REQUESTS, max_size=12), sampled_from([True, False]))
    def test_it_allows_nothing_that_the_rules_refuse(self, kinds: list[tuple[Any, ...]], strict: bool) -> None:
        rules = rules_of(CONTENT, strict)
        for request in [*map(any_request, kinds)] * 2:
            before, verdict_before = allows(rules, request), verdict(rules_of(CONTENT, strict), request)
            self.assertTrue(verdict_before is None or not before, request)
            self.assertEqual(verdict(rules, request), verdict_before)

    def test_the_second_send_takes_the_short_way_and_each_change_leaves_it(self) -> None:
        rules = rules_of(CONTENT)
        for code, field in ((V2, "b"), (RequestCode.SEND_BATCH_MESSAGE, "b"), (RequestCode.SEND_MESSAGE, "topic")):
            request = signed(APP, code, {**FIELDS, field: "TPub"}, b"body")
            self.assertFalse(allows(rules, request))
            self.assertIsNone(verdict(rules, request))
            self.assertTrue(allows(rules, request))
            for other in (
                signed(APP, code, {**FIELDS, field: "TPub", "i": "TAGS\x01other"}, b"another body"),
                signed(APP, code, dict(reversed({**FIELDS, field: "TPub"}.items())), b"body"),
            ):
                self.assertTrue(allows(rules, other))
            for other in (
                signed(WRONG, code, {**FIELDS, field: "TPub"}, b"body"),
                signed(APP, code, {**FIELDS, field: "TBoth"}, b"body"),
                signed(APP, code, {**FIELDS, field: "TPub", "x": "y"}, b"body"),
                request._replace(body=b"bodies"),
                tampered(request, i="TAGS\x01other"),
                tampered(request, x="y"),
                tampered(request, e=None, x="0"),
                tampered(request, **{SIGNATURE: None}),
                tampered(request, **{SIGNATURE: FORGED}),
                tampered(request, **{SIGNATURE: ""}),
                tampered(request, **{SIGNATURE: request.ext_fields[SIGNATURE] + "="}),
            ):
                self.assertFalse(allows(rules, other), other)

    def test_what_is_no_text_leaves_it_too(self) -> None:
        """A pass asks before the header's values are made texts."""
        rules = rules_of(CONTENT)
        request = signed(APP, V2, FIELDS)
        self.assertIsNone(verdict(rules, request))
        self.assertTrue(allows(rules, request))
        for name in request.ext_fields:
            for odd in NO_TEXTS:
                other: Any = {**request.ext_fields, name: odd}
                self.assertFalse(rules.usual.allow(V2, other, b""), (name, odd))

    def test_an_allowed_account_allows_no_other(self) -> None:
        rules = rules_of({**CONTENT, "accounts": [ACCOUNT, {**ACCOUNT, "accessKey": "another-app", "topicPerms": []}]})
        self.assertIsNone(verdict(rules, signed(APP, V2, FIELDS)))
        other = signed(Credentials("another-app", APP.secret_key), V2, FIELDS)
        self.assertFalse(allows(rules, other))
        self.assertIsNotNone(verdict(rules, other))

    def test_the_topic_of_a_retry_and_what_some_versions_do_not_sign_is_not_remembered(self) -> None:
        rules = rules_of(CONTENT)
        for fields in ({**FIELDS, "b": "%RETRY%GSub"}, {**FIELDS, UNIQUE_KEY_QUERY: "true"}):
            request = signed(APP, V2, fields)
            self.assertIsNone(verdict(rules, request))
            self.assertFalse(allows(rules, request))
        self.assertEqual(rules.usual.topics, [])
