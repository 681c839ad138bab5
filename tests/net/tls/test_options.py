"""The TLS options of a node: what they accept, and how they refuse anything else."""

import sys
from io import StringIO
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import TlsMode
from rmqha.tap import Options
from tests.fixtures import new_folder
from tests.net.tls.authority import Authority

MASTER = "--role=async-master"
SLAVE = ("--role=slave", "--master=tls:h:10912")


class OptionsTests(SynchronousTestCase):
    """Files are read, and found wrong, before anything runs."""

    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.ca = Authority(self.folder / "ca")
        self.own = self.ca.issue("broker-a")

    def options(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(arguments)
        return options

    def refusal(self, *arguments: str) -> str:
        """What is said of wrong arguments: one line, with status 2."""
        stderr = StringIO()
        self.patch(sys, "__stderr__", stderr)
        leaving = self.assertRaises(SystemExit, self.options, *arguments)
        self.assertEqual(leaving.code, 2)
        self.assertEqual(stderr.getvalue().count("\n"), 1)
        return stderr.getvalue()

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def test_remoting_ports_take_what_tls_server_mode_says(self) -> None:
        self.assertIsNone(self.options(MASTER).settings.tls_server_mode)
        for mode in TlsMode:
            options = self.options(MASTER, f"--tls-cert={self.own}", f"--set=tls.server.mode={mode.value}")
            self.assertIs(options.settings.tls_server_mode, mode)
        self.assertIsNone(self.options(MASTER, "--set=tls.server.mode=permissive").server_tls)
        self.assertIn(
            "is not one of disabled, permissive, enforcing", self.refusal(MASTER, "--set=tls.server.mode=maybe")
        )

    def test_a_mode_that_the_other_options_contradict_is_refused(self) -> None:
        self.assertIn(
            "tls.server.mode=enforcing needs --tls-cert", self.refusal(MASTER, "--set=tls.server.mode=enforcing")
        )
        for mode in ("permissive", "disabled"):
            said = self.refusal(
                MASTER,
                f"--tls-cert={self.own}",
                f"--tls-ca={self.ca.path}",
                "--tls-verify-slaves",
                f"--set=tls.server.mode={mode}",
            )
            self.assertIn(f"tls.server.mode={mode} accepts clients without certificates", said)

    def test_ports_are_plain_unless_there_is_a_certificate(self) -> None:
        self.assertIsNone(self.options(MASTER).server_tls)
        tls = self.options(MASTER, f"--tls-cert={self.own}").server_tls
        self.assertEqual(str(tls), "TLS, peers need no certificate")

    def test_mutual(self) -> None:
        for role in ([MASTER], SLAVE):
            options = self.options(*role, f"--tls-cert={self.own}", f"--tls-ca={self.ca.path}", "--tls-verify-slaves")
            self.assertEqual(str(options.server_tls), "TLS, peers must show a certificate")
            self.assertEqual(len(options.client_tls.authorities or ()), 1)
            self.assertIsNotNone(options.client_tls.own)

    def test_the_key_may_have_a_file_of_its_own_and_the_certificate_a_chain(self) -> None:
        issued = Authority(self.folder / "chain", "chain").ca.create_child_ca().issue_cert("broker-a")
        chain = self.write("chain.pem", b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key = self.write("key.pem", issued.private_key_pem.bytes())
        options = self.options(MASTER, f"--tls-cert={chain}", f"--tls-key={key}")
        assert options.client_tls.own is not None
        self.assertEqual(len(options.client_tls.own.chain), 2)

    def test_the_authorities_may_be_a_folder(self) -> None:
        folder = self.ca.path.parent
        self.ca.issue("another")
        options = self.options(*SLAVE, f"--tls-ca={folder}")
        self.assertEqual(len(options.client_tls.authorities or ()), 3)

    def test_name_servers_may_be_reached_by_tls(self) -> None:
        (server,) = (
            self.options(MASTER, "--namesrv=tls:ns:9876", f"--tls-ca={self.ca.path}")
            .plan(MemoryReactorClock())
            .name_servers
        )
        self.assertEqual((server[0], repr(server[1])), ("tls:ns:9876", "<TLS to ns>"))

    def test_a_slave_with_tls_is_not_to_be_told_its_master_by_name_servers(self) -> None:
        line = self.refusal("--role=slave", "--namesrv=ns:9876", f"--tls-cert={self.own}")
        self.assertIn("needs --master=tls:HOST:PORT", line)

    def test_the_plan_has_it_all(self) -> None:
        plan = self.options(
            *SLAVE, f"--tls-cert={self.own}", f"--tls-ca={self.ca.path}", "--allow-slaves=10.0.0.1"
        ).plan(MemoryReactorClock())
        self.assertEqual(str(plan.tls), "TLS, peers need no certificate")
        self.assertEqual(str(plan.allow_list), "10.0.0.1/32")
        self.assertEqual((repr(plan.master), repr(plan.master_remoting)), ("<TLS to h>", "<TLS to h>"))

    def test_every_wrong_file_is_named_with_the_reason(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        other_key = self.write("other.pem", key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
        secret = self.write("secret.pem", key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"x")))
        text = self.write("text", b"no PEM at all")
        nowhere = self.folder / "nowhere"
        folder = self.folder / "empty"
        folder.mkdir()
        for arguments, words in (
            ([f"--tls-cert={nowhere}"], (f"{nowhere}: No such file",)),
            ([f"--tls-cert={folder}"], (f"{folder}: Is a directory",)),
            ([f"--tls-cert={text}"], (f"{text}: there is no certificate in PEM format",)),
            ([f"--tls-cert={self.ca.path}"], (f"{self.ca.path}: there is no private key in PEM format",)),
            ([f"--tls-cert={self.own}", f"--tls-key={nowhere}"], (f"{nowhere}: No such file",)),
            ([f"--tls-cert={self.own}", f"--tls-key={text}"], (f"{text}: there is no private key",)),
            ([f"--tls-cert={self.own}", f"--tls-key={secret}"], (f"{secret}: the private key needs a password",)),
            ([f"--tls-cert={self.own}", f"--tls-key={other_key}"], (f"{other_key}: not the key of {self.own}",)),
            ([f"--tls-key={self.own}"], ("a key needs its certificate (--tls-cert)",)),
            ([f"--tls-cert={self.own}", "--tls-verify-slaves"], ("--tls-verify-slaves needs", "--tls-ca")),
            ([f"--tls-ca={self.ca.path}", "--tls-verify-slaves"], ("--tls-verify-slaves needs --tls-cert",)),
            ([f"--tls-ca={self.ca.path}"], ("--tls-ca has no effect",)),
            ([f"--tls-ca={folder}"], (f"{folder}: there is no .pem file",)),
            ([f"--tls-ca={text}"], (f"{text}: there is no certificate",)),
        ):
            with self.subTest(arguments):
                said = self.refusal(MASTER, *arguments)
                for word in words:
                    self.assertIn(word, said)

    def test_a_list_of_names_is_refused_where_nobody_shows_a_name(self) -> None:
        served = f"--tls-cert={self.own}"
        for arguments in ([], [served]):
            said = self.refusal(MASTER, *arguments, "--allow-slaves=10.0.0.1,slave-a")
            self.assertIn("--allow-slaves by name needs --tls-verify-slaves", said)

    def test_a_list_that_is_none_is_refused(self) -> None:
        for text, told in (
            ("", "'' is neither an address"),
            ("10.0.0.1,", "'' is neither"),
            ("10.0.0.1/8", "'10.0.0.1/8' is neither"),
            ("10.0.0.300", "'10.0.0.300' is neither"),
            ("slave a", "'slave a' is neither"),
        ):
            with self.subTest(text):
                self.assertIn(told, self.refusal(MASTER, f"--allow-slaves={text}"))
