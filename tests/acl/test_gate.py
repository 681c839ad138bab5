"""The gate: before all processors, with rules that follow their files."""

from pathlib import Path

from twisted.internet.address import IPv4Address
from twisted.internet.defer import execute, maybeDeferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl.files import AclFiles
from rmqha.acl.gate import EXCEPTION, RELOAD_SECONDS, AclGate
from rmqha.acl.patience import FREE_TRIES, MAX_WAIT_SECONDS, REFUSALS_PER_SECOND
from rmqha.acl.signing import Credentials, Signer
from rmqha.acl.yamlfile import AclFileError
from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.remoting.protocol import Processor, RemotingProtocol
from rmqha.remoting.rights import Rights
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import OUR_VERSION, RemotingCommand, RequestCode
from rmqha.wire.sends.run import Declined
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, bodies_in
from tests.ha.doubles import LineTransport, content_of, log_lines
from tests.remoting.test_protocol import ECHO, PROCESSORS, commands_in, frame

APP, LATER = Credentials("rocketmq-app", "app-secret"), Credentials("rocketmq-new", "new-secret")


GUESS = Credentials(APP.access_key, "a-guess")
TURN = 1 / REFUSALS_PER_SECOND + 1e-6
MUST_BE_ADMIN = RequestCode.UPDATE_BROKER_CONFIG
FREE_CODE = RequestCode.UNREGISTER_CLIENT
ECHOES: dict[int, Processor] = dict.fromkeys((MUST_BE_ADMIN, FREE_CODE), PROCESSORS[ECHO])


def file_of(*accounts: Credentials) -> str:
    """A plain_acl.yml."""
    lines = [f"- accessKey: {each.access_key}\n  secretKey: {each.secret_key}\n" for each in accounts]
    return f"accounts:\n{''.join(lines)}" if lines else ""


class GateTestCase(SynchronousTestCase):
    """A connection to guarded processors, with files in a folder."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        (self.folder / "acl" / "deep").mkdir(parents=True)
        self.plain = self.folder / "plain_acl.yml"
        self.plain.write_text(file_of(APP))
        self.clock = Clock()
        self.gate = AclGate(AclFiles(self.folder), self.clock, execute)
        self.gate.startService()
        self.lines: list[LineTransport] = []
        self.line = self.connect()

    def connect(self) -> LineTransport:
        """A new connection from the usual host."""
        return self.connect_from("192.0.2.1")

    def connect_from(self, host: str) -> LineTransport:
        """A new connection from this host."""
        protocol = RemotingProtocol(self.gate.guard(ECHOES), self.clock)
        line = LineTransport(self.clock)
        line.peerAddr = IPv4Address("TCP", host, 1)
        line.attach(protocol)
        self.lines.append(line)
        return line

    def tearDown(self) -> None:
        for line in self.lines:
            line.lose(ConnectionLost())
        self.successResultOf(maybeDeferred(self.gate.stopService))
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def send(self, keys: Credentials | None, count: int = 1) -> None:
        """Send requests, signed with these keys."""
        fields = {} if keys is None else Signer(keys)({}, b"", OUR_VERSION)
        self.line.deliver(frame(RemotingCommand(FREE_CODE, 1, ext_fields=fields)) * count)

    def answers(self) -> list[RemotingCommand]:
        """The answers since the last call."""
        return commands_in(self.line.take())

    def ask(self, keys: Credentials | None) -> str | None:
        """The remark of the answer to a request."""
        self.send(keys)
        (answer,) = self.answers()
        self.assertEqual(answer.code, 0 if answer.remark is None else 1)
        return answer.remark

    def later(self) -> None:
        """The time in which files are read again."""
        self.clock.advance(RELOAD_SECONDS)


class GateTests(GateTestCase):
    """Requests."""

    def test_an_account_is_served_and_a_stranger_is_not(self) -> None:
        self.assertIsNone(self.ask(APP))
        self.assertEqual(self.ask(None), f"{EXCEPTION}No accessKey is configured")
        self.assertEqual(self.ask(LATER), f"{EXCEPTION}No acl config for rocketmq-new")

    def test_a_refusal_is_logged_once_and_without_a_secret(self) -> None:
        with log_lines() as lines:
            for _ in range(5):
                self.ask(Credentials(APP.access_key, "not-the-secret"))
        self.assertEqual(lines().count("Check signature failed"), 1)
        self.assertNotIn("secret", lines())

    def refused_now(self) -> int:
        """How many refusals have come on all connections since the last call."""
        lines = [commands_in(line.take()) for line in self.lines]
        return sum(len(answers) for answers in lines)

    def test_guessing_is_slow(self) -> None:
        self.send(GUESS, FREE_TRIES + 3)
        self.assertEqual(self.refused_now(), FREE_TRIES)
        for _ in range(3):
            self.assertEqual(self.refused_now(), 0)
            self.clock.advance(TURN)
            self.assertEqual(self.refused_now(), 1)
            self.clock.advance(0)

    def test_more_connections_guess_no_faster(self) -> None:
        """Each connection had ten free tries of its own, and a rate of its own."""
        for _ in range(50):
            self.line = self.connect()
            self.send(GUESS)
        self.assertEqual(self.refused_now(), FREE_TRIES)
        for _ in range(4 * REFUSALS_PER_SECOND):
            self.clock.advance(TURN)
        self.assertEqual(self.refused_now(), 40)

    def test_who_would_wait_long_is_cut_off(self) -> None:
        """Else a stranger fills the port with connections that wait."""
        lines = [self.connect() for _ in range(400)]
        for self.line in lines:
            self.send(GUESS)
        waiting = sum(not line.disconnecting for line in lines)
        self.assertLessEqual(waiting, FREE_TRIES + MAX_WAIT_SECONDS * REFUSALS_PER_SECOND + 1)
        self.assertEqual(self.refused_now(), FREE_TRIES)
        self.clock.advance(2 * MAX_WAIT_SECONDS)
        self.line = self.connect()
        self.assertIn("Check signature failed", str(self.ask(GUESS)))

    def test_a_neighbour_who_signs_well_does_not_wait(self) -> None:
        """They share an address, as behind one NAT."""
        for _ in range(50):
            self.line = self.connect()
            self.send(GUESS, 5)
        self.refused_now()
        self.line = self.connect()
        for _ in range(100):
            self.assertIsNone(self.ask(APP))

    def test_another_host_does_not_wait(self) -> None:
        self.send(GUESS, FREE_TRIES + 1)
        self.line = self.connect_from("192.0.2.2")
        self.assertIn("Check signature failed", str(self.ask(GUESS)))

    def test_an_account_without_a_permission_does_not_wait(self) -> None:
        self.plain.write_text(file_of(APP) + "  whiteRemoteAddress:\n")
        for _ in range(3 * FREE_TRIES):
            fields = Signer(APP)({}, b"", OUR_VERSION)
            self.line.deliver(frame(RemotingCommand(MUST_BE_ADMIN, 1, ext_fields=fields)))
            (answer,) = self.answers()
            self.assertIn("Need admin permission", str(answer.remark))

    def test_a_refusal_of_a_closed_connection_is_forgotten(self) -> None:
        """An attacker who connects again and again leaves nothing in memory."""
        with log_lines() as lines:
            before = len(self.clock.getDelayedCalls())
            for _ in range(3 * FREE_TRIES):
                self.line = self.connect()
                self.send(GUESS)
                self.line.lose(ConnectionLost())
            self.clock.advance(0)
            self.clock.advance(0)
        self.assertEqual(len(self.clock.getDelayedCalls()), before)
        self.assertNotIn("failed\n", lines().replace("Check signature failed", ""))

    def test_quiet_ends_the_slowness(self) -> None:
        for _ in range(3):
            self.send(GUESS, FREE_TRIES)
            self.assertEqual(self.refused_now(), FREE_TRIES)
            self.clock.advance(FREE_TRIES * TURN)


class SendTests(BrokerStoreTestCase):
    """Sends, which a pass takes, behind the gate."""

    def setUp(self) -> None:
        super().setUp()
        self.open(aclEnable="true")
        self.plain = self.store.root / "config" / "plain_acl.yml"
        self.plain.parent.mkdir(parents=True, exist_ok=True)
        self.plain.write_text(f"{file_of(APP)}  topicPerms:\n  - T=PUB\n")
        self.gate = AclGate(AclFiles(self.plain.parent), self.clock, execute)
        self.gate.startService()
        self.addCleanup(self.gate.stopService)
        broker = BrokerService(self.settings, self.store, self.clock, execute, Surroundings("127.0.0.1"), self.wall)
        for topic in ("T", "U"):
            broker.topics.update(TopicConfig(topic, 4, 4))
        self.stats = broker.stats
        self.peer = self.client(self.gate.guard(broker.processors()), broker.ordinary_sends(self.gate))

    def send(self, number: int, keys: Credentials | None = APP, topic: str = "T", changed: bytes = b"") -> bytes:
        """The frame of a send with this body, signed with these keys; then ``changed`` is added to its body."""
        body = b"%d" % number
        fields = dict(zip("abcdefgh", ("PG", topic, "TBW102", "4", "0", "0", str(NOW_MS), "0"), strict=True))
        signed = fields if keys is None else Signer(keys)(fields, body, OUR_VERSION)
        return frame(RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, ext_fields=signed, body=body + changed))

    def remarks(self, *frames: bytes) -> dict[int, str | None]:
        """Those of the answers to what arrives in one read, by opaque, in the order of the answers."""
        self.peer.line.deliver(b"".join(frames))
        self.clock.advance(0)
        return {answer.opaque: answer.remark for answer in self.peer.answers()}

    def bodies(self) -> list[bytes]:
        """Those of all messages that are stored."""
        return bodies_in(content_of(self.store.commit_log))

    def test_requests_that_arrive_together_are_checked_one_by_one(self) -> None:
        self.assertEqual(self.remarks(self.send(0)), {0: None})
        self.assertEqual(self.stats.sends_taken, 0, "the rules decide about the first one")
        found = self.remarks(self.send(1), self.send(2), self.send(3), self.send(4, GUESS), self.send(5), self.send(6))
        self.assertEqual(list(found), [1, 2, 3, 4, 5, 6])
        self.assertEqual([number for number, remark in found.items() if remark is not None], [4])
        self.assertIn("Check signature failed", str(found[4]))
        self.assertEqual(self.bodies(), [b"0", b"1", b"2", b"3", b"5", b"6"])
        self.assertEqual(self.stats.sends_taken, 5)

    def test_no_pass_takes_what_the_rules_refuse(self) -> None:
        self.remarks(self.send(0))
        refused = {
            1: ("Check signature failed", self.send(1, changed=b"x")),
            2: ("No accessKey is configured", self.send(2, None)),
            3: ("No acl config for rocketmq-new", self.send(3, LATER)),
            4: ("No default permission for topic:U", self.send(4, topic="U")),
        }
        for number, (words, request) in refused.items():
            found = self.remarks(self.send(10), request, self.send(20))
            self.assertIn(words, str(found.pop(number)))
            self.assertEqual(found, {10: None, 20: None})
        self.assertEqual(self.bodies(), [b"0", *[b"10", b"20"] * 4])
        self.assertEqual((self.stats.sends_taken, self.stats.sends_declined[Declined.ACCESS]), (8, 5))

    def test_an_edit_of_the_rules_counts_for_passes_too(self) -> None:
        self.remarks(self.send(0), self.send(1))
        self.plain.write_text(f"{file_of(APP)}  topicPerms:\n  - T=SUB\n")
        self.clock.advance(RELOAD_SECONDS)
        found = self.remarks(self.send(2), self.send(3))
        self.assertTrue(all(found.values()), found)
        self.assertEqual(self.bodies(), [b"0", b"1"])


class ReloadTests(GateTestCase):
    """Files that change."""

    def test_an_edit_counts_soon(self) -> None:
        self.plain.write_text(file_of(LATER))
        self.later()
        self.assertIsNone(self.ask(LATER))
        self.assertIn("No acl config", str(self.ask(APP)))

    def test_files_come_and_go(self) -> None:
        more = self.folder / "acl" / "deep" / "more.yaml"
        more.write_text(file_of(LATER))
        self.later()
        self.assertIsNone(self.ask(LATER))
        self.assertIsNone(self.ask(APP))
        more.unlink()
        self.later()
        self.assertIn("No acl config", str(self.ask(LATER)))

    def test_a_malformed_file_keeps_the_old_rules_and_says_so_once(self) -> None:
        for bad in ("accounts: [", "accounts: 7", "accounts:\n- accessKey: rocketmq-new\n  secretKey: x\n"):
            self.plain.write_text(bad)
            with log_lines() as lines:
                for _ in range(4):
                    self.later()
            self.assertEqual(lines().count("the accounts stay as they were"), 1, bad)
            self.assertIsNone(self.ask(APP))
            (warning,) = self.gate.warnings
            self.assertIn(str(self.plain), warning)
        self.plain.write_text(file_of(APP))
        self.later()
        self.assertEqual(self.gate.warnings, [])

    def test_missing_files_keep_the_old_rules(self) -> None:
        self.plain.unlink()
        self.later()
        self.assertIsNone(self.ask(APP))
        self.assertIn("there is neither plain_acl.yml nor acl/*.yml", self.gate.warnings[0])

    def test_a_file_is_not_read_again_without_a_change(self) -> None:
        found = self.gate.found
        for _ in range(3):
            self.later()
        self.assertIs(self.gate.found, found)

    def test_an_account_in_two_files_is_the_first_ones(self) -> None:
        (self.folder / "acl" / "a.yml").write_text(file_of(Credentials(APP.access_key, "other-one")))
        self.later()
        self.assertIsNone(self.ask(Credentials(APP.access_key, "other-one")))
        self.assertIn("again in", self.gate.warnings[0])

    def test_a_key_that_is_there_twice_changes_nothing(self) -> None:
        """An empty list at the end of the file would lock everybody out, an account's second ``admin`` let it in."""
        for text in (
            f"{file_of(APP)}accounts: []\n",
            f"{file_of(APP)}  admin: false\n  admin: true\n",
            f"globalWhiteRemoteAddresses: []\n{file_of(APP)}globalWhiteRemoteAddresses: ['*']\n",
        ):
            self.plain.write_text(text)
            self.later()
            self.assertIsNone(self.ask(APP))
            self.assertIn("is there twice in one mapping", self.gate.warnings[0])
            self.assertIn("plain_acl.yml", self.gate.warnings[0])

    def test_the_keys_of_tools_are_no_accounts(self) -> None:
        (self.folder / "acl" / "tools.yml").write_text("accessKey: rocketmq-app\n")
        self.later()
        self.assertEqual(self.gate.warnings, [])


class RightsTests(GateTestCase):
    """What processors, and those who push to a client, ask about the account of a connection."""

    def rights(self, line: LineTransport) -> Rights:
        """Those of a connection."""
        assert isinstance(line.protocol, RemotingProtocol)
        return line.protocol.rights

    def account(self, keys: Credentials, *perms: str) -> str:
        """An account of plain_acl.yml with permissions for topics, and SUB for group G."""
        topics = "".join(f"  - {each}\n" for each in perms)
        return f"{file_of(keys).partition(chr(10))[2]}  topicPerms:\n{topics}  groupPerms:\n  - G=SUB\n"

    def write(self, *accounts: str, white: str = "") -> None:
        """Let the file have these accounts."""
        addresses = f"globalWhiteRemoteAddresses:\n- {white}\n" if white else ""
        self.plain.write_text(f"{addresses}accounts:\n{''.join(accounts)}")
        self.later()

    def test_they_are_those_of_the_account_that_signed_by_the_rules_of_the_moment(self) -> None:
        self.write(self.account(APP, "TPub=PUB", "TSub=SUB"))
        self.ask_free()
        rights = self.rights(self.line)
        self.assertEqual(rights.account, APP.access_key)
        self.assertEqual([rights.may_send_to(topic) for topic in ("TPub", "TSub", "T")], [True, False, False])
        self.assertEqual([rights.may_read(topic) for topic in ("TPub", "TSub", "%RETRY%G")], [False, True, True])
        self.assertEqual([rights.may_consume_in(group) for group in ("G", "H")], [True, False])
        self.write(self.account(APP, "TPub=SUB"))
        self.assertEqual((rights.may_send_to("TPub"), rights.may_read("TPub")), (False, True))
        self.write(self.account(LATER, "TPub=SUB"))
        self.assertFalse(rights.may_read("TPub"), "the account is gone")

    def ask_free(self, line: LineTransport | None = None, keys: Credentials = APP) -> Rights:
        """The rights after a request that any account may send."""
        line = line or self.line
        fields = Signer(keys)({"clientID": "c"}, b"", OUR_VERSION)
        line.deliver(frame(RemotingCommand(FREE_CODE, 1, ext_fields=fields)))
        return self.rights(line)

    def test_a_peer_that_need_not_sign_may_do_all(self) -> None:
        self.write(self.account(APP, "TPub=PUB"), white="192.0.2.1")
        rights = self.ask_free()
        self.assertEqual((rights.account, rights.may_send_to("T"), rights.may_read("T")), (None, True, True))

    def test_without_strict_only_requests_are_checked_as_in_java(self) -> None:
        self.gate.files.strict = False
        self.write(self.account(APP, "TPub=PUB"))
        rights = self.ask_free()
        self.assertEqual((rights.account, rights.may_read("T")), (None, True))

    def test_a_refused_request_changes_no_rights(self) -> None:
        self.write(self.account(APP, "TPub=PUB"), self.account(LATER, "T=PUB"))
        before = self.ask_free()
        self.ask_free(keys=GUESS)
        self.assertIs(self.rights(self.line), before)

    def test_who_may_answer_shares_a_topic_with_who_asks(self) -> None:
        boss = f"{self.account(LATER).partition('  topicPerms')[0]}  admin: true\n"
        for sending, reading, may in (
            (["T=PUB"], ["T=SUB"], True),
            (["T=PUB|SUB"], ["T=PUB"], False),
            (["T=PUB"], ["U=SUB"], False),
        ):
            self.write(self.account(APP, *sending), self.account(LATER, *reading))
            asking, answering = self.ask_free(), self.ask_free(self.connect(), LATER)
            self.assertEqual(answering.may_answer(asking), may, (sending, reading))
        self.write(self.account(APP, "T=PUB"), boss)
        self.assertTrue(answering.may_answer(asking))


class StartTests(SynchronousTestCase):
    """A gate without usable files does not start."""

    def test_wrong_files(self) -> None:
        folder = Path(self.mktemp())
        self.assertRaises(AclFileError, AclGate, AclFiles(folder), Clock(), execute)
        folder.mkdir()
        (folder / "plain_acl.yml").write_text("accounts: [")
        self.assertRaises(AclFileError, AclGate, AclFiles(folder), Clock(), execute)
