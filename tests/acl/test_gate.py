"""The gate: before all processors, with rules that follow their files."""

from pathlib import Path

from twisted.internet.defer import execute, maybeDeferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl.files import AclFiles
from rmqha.acl.gate import EXCEPTION, FREE_TRIES, RELOAD_SECONDS, WAIT_SECONDS, AclGate
from rmqha.acl.signing import Credentials, Signer
from rmqha.acl.yamlfile import AclFileError
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import OUR_VERSION, RemotingCommand
from tests.ha.doubles import LineTransport, log_lines
from tests.remoting.test_protocol import ECHO, PROCESSORS, commands_in, frame

APP, LATER = Credentials("rocketmq-app", "app-secret"), Credentials("rocketmq-new", "new-secret")


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
        """A new connection."""
        protocol = RemotingProtocol(self.gate.guard(PROCESSORS), self.clock)
        line = LineTransport(self.clock)
        line.attach(protocol)
        self.lines.append(line)
        return line

    def tearDown(self) -> None:
        for line in self.lines:
            line.lose(ConnectionLost())
        self.successResultOf(maybeDeferred(self.gate.stopService))
        self.clock.advance(WAIT_SECONDS)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def send(self, keys: Credentials | None, count: int = 1) -> None:
        """Send requests, signed with these keys."""
        fields = {} if keys is None else Signer(keys)({}, b"", OUR_VERSION)
        self.line.deliver(frame(RemotingCommand(ECHO, 1, ext_fields=fields)) * count)

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

    def test_guessing_is_slow_on_its_own_connection_only(self) -> None:
        guess = Credentials(APP.access_key, "a-guess")
        self.send(guess, FREE_TRIES + 3)
        self.assertEqual(len(self.answers()), FREE_TRIES)
        guesser, self.line = self.line, self.connect()
        self.assertIsNone(self.ask(APP))
        self.line = guesser
        for _ in range(3):
            self.assertEqual(self.answers(), [])
            self.clock.advance(WAIT_SECONDS)
            self.assertEqual(len(self.answers()), 1)
            self.clock.advance(0)

    def test_success_ends_the_slowness(self) -> None:
        for _ in range(3):
            for _ in range(FREE_TRIES):
                self.assertIsNotNone(self.ask(None))
            self.assertIsNone(self.ask(APP))


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

    def test_the_keys_of_tools_are_no_accounts(self) -> None:
        (self.folder / "acl" / "tools.yml").write_text("accessKey: rocketmq-app\n")
        self.later()
        self.assertEqual(self.gate.warnings, [])


class StartTests(SynchronousTestCase):
    """A gate without usable files does not start."""

    def test_wrong_files(self) -> None:
        folder = Path(self.mktemp())
        self.assertRaises(AclFileError, AclGate, AclFiles(folder), Clock(), execute)
        folder.mkdir()
        (folder / "plain_acl.yml").write_text("accounts: [")
        self.assertRaises(AclFileError, AclGate, AclFiles(folder), Clock(), execute)
