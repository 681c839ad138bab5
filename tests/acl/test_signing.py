"""The signature of a request is Java's, and no secret is shown."""

from base64 import b64decode, b64encode
from hmac import digest

import pytest
from hypothesis import given
from hypothesis.strategies import binary, dictionaries, sampled_from, text
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.acl import signing
from rmqha.acl.signing import (
    ACCESS_KEY,
    MAX_PICKS,
    SECURITY_TOKEN,
    SIGNATURE,
    UNIQUE_KEY_QUERY,
    Credentials,
    Signer,
    SigningKey,
    signature_of,
    signed_content,
    signed_fields,
)
from rmqha.kit.connecting import connect_protocol
from rmqha.net.endpoints import IN_THIS_PROCESS, SigningEndpoint
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import OUR_VERSION, RemotingCommand
from tests.acl.vectors import CASES, of_java
from tests.ha.doubles import LineTransport
from tests.remoting.test_protocol import commands_in

KEYS = Credentials("RocketMQ", "12345678")


class SignatureTests(SynchronousTestCase):
    """What Java's AclSigner has signed."""

    def test_signatures_are_javas(self) -> None:
        vectors = of_java()
        self.assertEqual([{**each, "signature": ""} for each in vectors], [{**each, "signature": ""} for each in CASES])
        for each in vectors:
            content = signed_content(each["fields"], b64decode(each["body"]), OUR_VERSION)
            self.assertEqual(signature_of(content, each["secret"]), each["signature"])

    def test_old_clients_do_not_sign_the_flag_of_a_unique_key(self) -> None:
        fields = {"key": "k", UNIQUE_KEY_QUERY: "true", "topic": "T"}
        self.assertEqual(signed_content(fields, b"", 399), b"kT")
        self.assertEqual(signed_content(fields, b"", 400), b"truekT")

    @given(binary(), binary(), text(min_size=7, max_size=80))
    @pytest.mark.long
    def test_it_is_an_hmac(self, fields: bytes, body: bytes, secret: str) -> None:
        expected = b64encode(digest(secret.encode(), fields + body, "sha1"))
        self.assertEqual(SigningKey(secret).signature(fields, body), expected)

    @given(dictionaries(text(max_size=4), text(max_size=3), max_size=12), sampled_from([399, 400]))
    def test_values_are_in_the_order_of_names(self, fields: dict[str, str], version: int) -> None:
        for _ in range(2):  # the second time by what the first one kept
            for more in ({}, {SIGNATURE: "s"}, {UNIQUE_KEY_QUERY: "u"}):
                names = sorted({**fields, **more}, key=lambda name: name.encode("utf-16-be"))
                signed = [name for name in names if name != SIGNATURE and (name != UNIQUE_KEY_QUERY or version > 399)]
                expected = "".join({**fields, **more}[name] for name in signed).encode()
                self.assertEqual(signed_fields({**fields, **more}, version), expected)

    def test_few_orders_are_kept(self) -> None:
        for number in range(3 * MAX_PICKS):
            signed_fields({f"name-{number}": "x", "y": "z", "long" * 1000 * (number % 2): ""}, OUR_VERSION)
        self.assertLessEqual(len(signing._PICKS), MAX_PICKS)
        self.assertLess(max(len("".join(names)) for _, names in signing._PICKS), 1025)

    def test_a_signature_is_not_signed(self) -> None:
        self.assertEqual(signed_content({"a": "1", SIGNATURE: "x"}, b"b", OUR_VERSION), b"1b")


class SignerTests(SynchronousTestCase):
    """What signs our requests."""

    def test_it_adds_the_account_and_the_signature(self) -> None:
        fields = Signer(KEYS)({"topic": "T"}, b"body", OUR_VERSION)
        self.assertEqual(fields, {"topic": "T", ACCESS_KEY: "RocketMQ", SIGNATURE: fields[SIGNATURE]})
        self.assertEqual(fields[SIGNATURE], signature_of(b"RocketMQTbody", "12345678"))

    def test_it_sends_and_signs_a_token(self) -> None:
        fields = Signer(Credentials("RocketMQ", "12345678", "token"))({}, b"", OUR_VERSION)
        self.assertEqual(fields[SECURITY_TOKEN], "token")
        self.assertEqual(fields[SIGNATURE], signature_of(b"RocketMQtoken", "12345678"))

    def test_keys_can_be_replaced(self) -> None:
        signer = Signer(KEYS)
        signer.credentials = Credentials("another", "87654321")
        self.assertEqual(signer({}, b"", OUR_VERSION)[ACCESS_KEY], "another")

    def test_no_secret_is_shown(self) -> None:
        keys = Credentials("RocketMQ", "a-secret", "a-token")
        for shown in (repr(keys), str(keys), repr(Signer(keys)), f"{keys}"):
            self.assertNotIn("a-secret", shown)
            self.assertNotIn("a-token", shown)

    def test_short_keys_are_refused_without_being_shown(self) -> None:
        for keys in (("short", "12345678"), ("RocketMQ", "123456")):
            error = self.assertRaises(ValueError, Credentials, *keys)
            self.assertIn("fewer than 7 characters", str(error))
            self.assertNotIn("123456", str(error))


@implementer(IStreamClientEndpoint)
class LineEndpoint:
    """Connects to a line that records what is written."""

    def __init__(self, clock: Clock) -> None:
        self.line = LineTransport(clock)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        protocol = protocolFactory.buildProtocol(IN_THIS_PROCESS)
        assert protocol is not None
        self.line.attach(protocol)
        return succeed(protocol)


class ConnectionTests(SynchronousTestCase):
    """A connection made through a SigningEndpoint."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = LineEndpoint(self.clock)
        signing = SigningEndpoint(self.endpoint, Signer(KEYS))
        self.protocol = self.successResultOf(connect_protocol(signing, RemotingProtocol({}, self.clock)))

    def sent(self) -> RemotingCommand:
        """The only command that was sent."""
        (command,) = commands_in(self.endpoint.line.value())
        return command

    def test_calls_are_signed(self) -> None:
        self.protocol.call(10, {"topic": "T"}, b"body").addErrback(lambda _: None)
        self.assertEqual(self.sent().ext_fields[SIGNATURE], signature_of(b"RocketMQTbody", "12345678"))

    def test_requests_without_an_answer_are_signed(self) -> None:
        self.protocol.push(15, {"topic": "T"})
        self.assertEqual(self.sent().ext_fields[SIGNATURE], signature_of(b"RocketMQT", "12345678"))
