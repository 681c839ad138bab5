"""mqadmin's requests about the accounts change the files, safely and for administrators only."""

import os
from collections.abc import Mapping

import orjson
import yaml
from twisted.internet.defer import execute

from rmqha.acl.admin import AclAdminProcessor, BrokerNames
from rmqha.acl.signing import Credentials, Signer
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import OUR_VERSION, RemotingCommand
from tests.acl.test_gate import APP, ECHOES, LATER, GateTestCase
from tests.ha.doubles import LineTransport, log_lines
from tests.remoting.test_protocol import frame

BOSS = Credentials("administrator", "admin-secret")
FILE = """\
# a comment
accounts:
- accessKey: rocketmq-app
  secretKey: app-secret
  topicPerms: [T=PUB]
- accessKey: administrator
  secretKey: admin-secret
  admin: true
"""


class AdminTests(GateTestCase):
    """The requests 50 to 54."""

    def setUp(self) -> None:
        super().setUp()
        self.plain.write_text(FILE)
        self.plain.chmod(0o640)
        self.later()

    def connect(self) -> LineTransport:
        names = BrokerNames("10.0.0.1:10911", "broker-a", "DefaultCluster")
        admin = AclAdminProcessor(self.gate, execute, lambda: names).processors()
        line = LineTransport(self.clock)
        line.attach(RemotingProtocol(self.gate.guard({**ECHOES, **admin}), self.clock))
        self.lines.append(line)
        return line

    def order(self, code: int, fields: Mapping[str, str] | None = None, keys: Credentials = BOSS) -> RemotingCommand:
        """The answer to a request."""
        signed = Signer(keys)(fields or {}, b"", OUR_VERSION)
        self.line.deliver(frame(RemotingCommand(code, 1, ext_fields=signed)))
        self.clock.advance(0)
        (answer,) = self.answers()
        return answer

    def test_a_new_account_counts_when_the_answer_comes(self) -> None:
        fields = {"accessKey": LATER.access_key, "secretKey": LATER.secret_key, "admin": "false"}
        with log_lines() as lines:
            answer = self.order(50, {**fields, "topicPerms": "A=PUB,B=SUB", "groupPerms": "G=SUB"})
        self.assertEqual((answer.code, self.ask(LATER)), (0, None))
        self.assertIn("changes the account rocketmq-new", lines())
        self.assertNotIn("new-secret", lines())
        account = yaml.safe_load(self.plain.read_text())["accounts"][2]
        self.assertEqual(account["topicPerms"], ["A=PUB", "B=SUB"])

    def test_a_change_keeps_what_it_does_not_name_and_the_previous_file(self) -> None:
        self.assertEqual(self.order(50, {"accessKey": APP.access_key, "defaultTopicPerm": "SUB"}).code, 0)
        content = yaml.safe_load(self.plain.read_text())
        self.assertEqual(content["accounts"][0]["topicPerms"], ["T=PUB"])
        self.assertEqual(content["accounts"][0]["defaultTopicPerm"], "SUB")
        self.assertEqual(content["dataVersion"][0]["counter"], 1)
        backup = self.plain.with_name("plain_acl.yml.bak")
        self.assertEqual(backup.read_text(), FILE)
        self.assertEqual([path.stat().st_mode & 0o777 for path in (self.plain, backup)], [0o640, 0o640])
        self.assertEqual(len(os.listdir(self.folder)), 3, "acl, the file and its backup")

    def test_nobody_else_can_read_the_new_file_at_any_time(self) -> None:
        """Not while it is written, and not if a crash has left a readable file of its name."""
        self.plain.chmod(0o600)
        temporary = self.plain.with_name("plain_acl.yml.tmp")
        temporary.write_text("left")
        temporary.chmod(0o644)
        seen: list[int] = []
        flush = os.fsync

        def flush_and_look(fd: int) -> None:
            if temporary.exists():
                seen.append(temporary.stat().st_mode & 0o777)
            flush(fd)

        self.patch(os, "fsync", flush_and_look)
        self.addCleanup(os.umask, os.umask(0))
        self.assertEqual(self.order(50, {"accessKey": APP.access_key, "admin": "true"}).code, 0)
        self.assertEqual(seen, [0o600])
        self.assertEqual(self.plain.stat().st_mode & 0o777, 0o600)
        self.assertFalse(temporary.exists())

    def test_an_account_is_changed_in_its_own_file(self) -> None:
        more = self.folder / "acl" / "more.yml"
        more.write_text("accounts:\n- {accessKey: rocketmq-new, secretKey: new-secret}\n")
        self.later()
        self.order(50, {"accessKey": LATER.access_key, "admin": "true"})
        self.assertIn("admin: true", more.read_text())
        self.assertEqual(self.plain.read_text(), FILE)

    def test_deleting(self) -> None:
        self.assertEqual(self.order(51, {"accessKey": APP.access_key}).code, 0)
        self.assertIn("No acl config", str(self.ask(APP)))
        answer = self.order(51, {"accessKey": APP.access_key})
        self.assertEqual((answer.code, answer.remark), (210, "there is no account rocketmq-app"))

    def test_white_addresses(self) -> None:
        self.assertEqual(self.order(53, {"globalWhiteAddrs": "10.0.0.*, 10.1.1.1"}).code, 0)
        self.assertEqual(yaml.safe_load(self.plain.read_text())["globalWhiteRemoteAddresses"], ["10.0.0.*", "10.1.1.1"])
        self.assertEqual(self.order(53, {"globalWhiteAddrs": "nowhere"}).code, 211)

    def test_a_wrong_change_changes_nothing(self) -> None:
        for fields in (
            {"accessKey": "short"},
            {"accessKey": "long-enough"},
            {"accessKey": APP.access_key, "topicPerms": "T"},
        ):
            answer = self.order(50, fields)
            self.assertEqual(answer.code, 209)
            self.assertEqual(self.plain.read_text(), FILE)
        self.plain.write_text("accounts: [")
        self.assertEqual(self.order(50, {"accessKey": APP.access_key, "admin": "true"}).code, 209)
        self.assertEqual(self.plain.read_text(), "accounts: [")

    def test_only_administrators(self) -> None:
        for code in (50, 51, 53, 54):
            answer = self.order(code, {"accessKey": APP.access_key}, keys=APP)
            self.assertIn("Need admin permission", str(answer.remark))
        self.assertEqual(self.plain.read_text(), FILE)

    def test_versions_and_accounts_without_secrets(self) -> None:
        self.order(50, {"accessKey": APP.access_key, "admin": "false"})
        fields = self.order(52).ext_fields
        self.assertEqual(orjson.loads(fields["version"])["counter"], 1)
        self.assertEqual(list(orjson.loads(fields["allAclFileVersion"])), [str(self.plain.absolute())])
        self.assertEqual((fields["brokerName"], fields["clusterName"]), ("broker-a", "DefaultCluster"))
        body = self.order(54).body
        self.assertNotIn(b'secret"', body.replace(b"secretKey", b""))
        self.assertNotIn(b"app-secret", body)
        keys = [each["accessKey"] for each in orjson.loads(body)["plainAccessConfigs"]]
        self.assertEqual(keys, ["rocketmq-app", "administrator"])
