"""The name server's plugin: what its options accept and refuse, its recipe, and that twistd finds it."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import IServiceCollection, IServiceMaker, loadApplication
from twisted.internet.task import Clock
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase

from rmqha import __version__
from rmqha.coordination.address import Login
from rmqha.namesrv_tap import NameServerProcess, Options
from rmqha.tap import Options as NodeOptions
from rmqha.wire.compiled import implementation
from tests.fixtures import new_folder
from tests.net.tls.authority import Authority
from tests.waiting import WAIT_SECONDS

CHECKOUT = Path(__file__).parent.parent
TWISTD = str(Path(sys.executable).with_name("twistd"))


class OptionsTests(SynchronousTestCase):
    def options(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(arguments)
        return options

    def test_it_needs_none(self) -> None:
        options = self.options()
        self.assertEqual(options.listen_port, 9876)
        self.assertEqual(options.folder, Path("~/namesrv").expanduser())
        self.assertEqual((options["bind"], options["log-format"]), ("", "text"))

    def test_each_can_be_given(self) -> None:
        options = self.options("--port=0", "--folder=here", "--bind=::1", "--log-format=json")
        self.assertEqual((options.listen_port, options.folder), (0, Path.cwd() / "here"))
        self.assertEqual((options["bind"], options["log-format"]), ("::1", "json"))

    def test_the_witness_has_options_of_its_own(self) -> None:
        self.assertIsNone(self.options().witness)
        plan = self.options("--witness=0", "--folder=here", "--bind=127.0.0.1").witness
        assert plan is not None
        self.assertEqual((plan.port, plan.folder, plan.address), (0, Path.cwd() / "here" / "witness", "127.0.0.1"))
        self.assertEqual((plan.allowed, plan.tls, plan.read_login()), (None, None, None))
        login = new_folder(self) / "login"
        login.write_text("user=rmqha\npassword=secret\n")
        found = self.options(
            "--witness=9877", "--witness-folder=there", "--witness-bind=10.0.0.1", f"--witness-login={login}",
            "--witness-allow=10.0.0.0/8,::1",
        ).witness  # fmt: skip
        assert found is not None
        self.assertEqual((found.port, found.folder, found.address), (9877, Path.cwd() / "there", "10.0.0.1"))
        self.assertEqual(found.read_login(), Login("rmqha", "secret"))
        peers = found.peers(Clock())
        self.assertTrue(peers.may_connect("10.1.2.3"))
        self.assertFalse(peers.may_connect("11.1.2.3"))
        self.assertEqual(peers.network_of("2001:db8::1"), peers.network_of("2001:db8::2"))

    def test_wrong_ones_are_told_in_one_line(self) -> None:
        for argument, words in (
            ("--witness=x", "witness=x is not a port"),
            ("--witness-folder=x", "witness-folder is for the witness: it needs --witness=PORT"),
            ("--witness-tls-ca=x", "witness-tls-ca is for the witness"),
            ("--port=http", "port=http is not a port"),
            ("--port=65536", "between 0 and 65535"),
            ("--port=", "port= is not a port"),
            ("--folder=", "folder='' is not a folder"),
            ("--folder=~nobody-of-this-name/x", "home"),
            ("--allow-brokers=10.0.0.1/8", "allow-brokers=10.0.0.1/8: .*host bits"),
            ("--allow-admin=operator", "--allow-admin by name needs --tls-verify-slaves"),
            ("--log-format=xml", "log-format is 'xml', not text or json"),
            ("--store=x", "store"),
        ):
            with self.subTest(argument):
                stderr = StringIO()
                self.patch(sys, "__stderr__", stderr)
                leaving = self.assertRaises(SystemExit, self.options, argument)
                self.assertEqual(leaving.code, 2)
                self.assertRegex(stderr.getvalue(), r"^rmqha: .*" + words + r".*\(see twistd rmqha-namesrv --help\)\n$")

    def test_folders_among_the_segments_of_a_log_are_refused(self) -> None:
        segments = new_folder(self) / "commitlog"
        segments.mkdir()
        (segments / f"{0:020d}").touch()
        for options in ([f"--folder={segments}"], ["--witness=9877", f"--witness-folder={segments}/witness"]):
            with self.subTest(options):
                stderr = StringIO()
                self.patch(sys, "__stderr__", stderr)
                leaving = self.assertRaises(SystemExit, self.options, *options)
                self.assertEqual(leaving.code, 2)
                self.assertIn(f"the folder of segments {segments}: name another place", stderr.getvalue())

    def test_a_witness_that_everybody_may_use_is_told_of(self) -> None:
        certificate = Authority(new_folder(self)).issue("witness")
        login = new_folder(self) / "login"
        login.write_text("user=rmqha\npassword=secret\n")
        by_tls = f"--witness-tls-cert={certificate}"
        for options, is_open in (
            ([], True),
            (["--bind=10.0.0.1"], True),
            ([by_tls], True),
            (["--bind=127.0.0.1"], False),
            (["--witness-bind=::1"], False),
            (["--witness-allow=10.0.0.0/8"], False),
            ([f"--witness-login={login}"], False),
            ([by_tls, f"--witness-tls-ca={certificate}"], False),
        ):
            with self.subTest(options):
                plan = self.options("--witness=9877", *options).witness
                assert plan is not None
                self.assertEqual(plan.is_open_to_all, is_open)

    def test_wrong_options_of_the_witness_are_told(self) -> None:
        for option, words in (
            ("--witness-allow=10.0.0.1/8", "host bits"),
            ("--witness-allow=node-a", "'node-a' is not an address or a network"),
            ("--witness-login=/nowhere/login", "No such file"),
            ("--witness-tls-cert=/nowhere/cert", "No such file"),
            ("--witness-tls-key=/key", "need --witness-tls-cert"),
            ("--witness-folder=", "is not a folder"),
        ):
            with self.subTest(option):
                stderr = StringIO()
                self.patch(sys, "__stderr__", stderr)
                leaving = self.assertRaises(SystemExit, self.options, "--witness=9877", option)
                self.assertEqual(leaving.code, 2)
                self.assertRegex(stderr.getvalue(), words)


class VersionTests(SynchronousTestCase):
    def test_both_plugins_show_the_version_of_rmqha(self) -> None:
        for kind in (Options, NodeOptions):
            stdout = StringIO()
            self.patch(sys, "stdout", stdout)
            leaving = self.assertRaises(SystemExit, kind().parseOptions, ["--version"])
            self.assertEqual(leaving.code, 0)
            self.assertTrue(stdout.getvalue().startswith(f"rmqha, version {__version__} (Twisted "), stdout.getvalue())
            self.assertIn(f"; {implementation()})", stdout.getvalue())


class RecipeTests(SynchronousTestCase):
    def test_the_recipe_is_a_name_server_which_makes_nothing_on_disk(self) -> None:
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(new_folder(self))
        application: Any = loadApplication(str(CHECKOUT / "tac" / "namesrv.tac"), "python")
        (process,) = IServiceCollection(application)
        self.assertIsInstance(process, NameServerProcess)
        self.assertEqual(os.listdir(), [])


class PluginTests(SynchronousTestCase):
    def test_it_is_among_the_plugins(self) -> None:
        makers = {maker.tapname: maker for maker in getPlugins(IServiceMaker)}
        self.assertIn("rmqha-namesrv", makers)
        self.assertIs(makers["rmqha-namesrv"].options, Options)

    @pytest.mark.process
    def test_its_options_install_no_reactor_and_import_neither_a_broker_nor_pages(self) -> None:
        dear = ("twisted.internet.reactor", "rmqha.broker", "rmqha.web", "numpy", "rich", "importlib.metadata")
        code = f"import sys, rmqha.namesrv_tap; sys.exit(', '.join(sys.modules.keys() & set({dear})) or None)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @pytest.mark.process
    def test_its_help_tells_every_option(self) -> None:
        done = subprocess.run(
            [TWISTD, "rmqha-namesrv", "--help"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in ("port", "bind", "folder", "log-format"):
            self.assertIn(f"--{name}=", done.stdout)
