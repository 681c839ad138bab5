"""What a node is told of access control: its files, and its own account."""

import os
import sys
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl.signing import Signer
from rmqha.settings.settings import properties_of
from rmqha.tap import Options

ACCOUNTS = "accounts:\n- accessKey: rocketmq-app\n  secretKey: app-secret\n"
TOOLS = "accessKey: rocketmq-app\nsecretKey: app-secret\n"


class OptionsTests(SynchronousTestCase):
    """The options of ``twistd rmqha``."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        (self.folder / "plain_acl.yml").write_text(ACCOUNTS)
        (self.folder / "tools.yml").write_text(TOOLS)
        self.conf = self.folder / "broker.conf"
        self.conf.write_text("brokerRole=ASYNC_MASTER\naclEnable=true\n")

    def options(self, *words: str) -> Options:
        """The options, with a store."""
        options = Options()
        options.parseOptions([f"--store={self.folder / 'store'}", *words])
        return options

    def folder_of(self, *words: str) -> Path | None:
        """Where the node looks for accounts."""
        acl = self.options(*words).plan(None).acl
        return None if acl is None else acl.folder

    def test_the_files_are_beside_the_configuration(self) -> None:
        self.assertEqual(self.folder_of(f"--conf={self.conf}"), self.folder)

    def test_a_folder_can_be_given(self) -> None:
        acl = (
            self.options("--role=async-master", "--set=aclEnable=true", f"--set=aclFolder={self.folder}").plan(None).acl
        )
        assert acl is not None
        self.assertEqual((acl.folder, acl.strict), (self.folder, True))

    def test_rocketmqs_home_is_the_last_resort(self) -> None:
        conf = self.folder / "home" / "conf"
        conf.mkdir(parents=True)
        (conf / "plain_acl.yml").write_text(ACCOUNTS)
        with patch.dict(os.environ, {"ROCKETMQ_HOME": str(self.folder / "home")}):
            self.assertEqual(self.folder_of("--role=async-master", "--set=aclEnable=true"), conf)

    def test_without_acl_enable_nobody_is_asked(self) -> None:
        self.assertIsNone(self.folder_of("--role=async-master"))

    def test_what_cannot_be_used_is_wrong_usage(self) -> None:
        master = ("--role=async-master", "--set=aclEnable=true")
        (self.folder / "plain_acl.yml").write_text("accounts:\n- accessKey: rocketmq-app\n  secretKey: short\n")
        with patch.dict(os.environ):
            os.environ.pop("ROCKETMQ_HOME", None)
            for words, reason in (
                (master, "aclEnable=true needs aclFolder"),
                ((*master, f"--set=aclFolder={self.folder / 'none'}"), "there is neither plain_acl.yml"),
                ((*master, f"--set=aclFolder={self.folder}"), "secretKey has fewer than 7 characters"),
                (("--role=async-master", f"--set=aclFile={self.conf}"), "is not a mapping"),
            ):
                printed = StringIO()
                self.patch(sys, "__stderr__", printed)
                self.assertRaises(SystemExit, self.options, *words)
                self.assertIn(reason, printed.getvalue())
                self.assertNotIn("secretKey: short", printed.getvalue())

    def test_the_nodes_own_account_signs_and_is_in_no_setting(self) -> None:
        options = self.options("--role=slave", "--master=127.0.0.1:10912", f"--set=aclFile={self.folder / 'tools.yml'}")
        assert isinstance(options.plan(None).sign, Signer)
        self.assertIs(options.client_tls.sign, options.plan(None).sign)
        shown = f"{properties_of(options.settings)}{options.plan(None)!r}{options.settings!r}"
        self.assertNotIn("app-secret", shown)
