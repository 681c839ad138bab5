"""Credentials come from a file or the environment; a wrong one is refused in words that show no secret."""

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl.credentials import credentials_of_environment, make_signer, read_credentials, reread_credentials
from rmqha.acl.signing import Credentials
from rmqha.acl.yamlfile import MAX_FILE_BYTES, AclFileError

KEYS = Credentials("rocketmq2", "12345678")


class FileTests(SynchronousTestCase):
    """A tools.yml."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())

    def write(self, text: str) -> Path:
        """The file with this text."""
        self.path.write_text(text)
        return self.path

    def test_rocketmqs_file_is_read(self) -> None:
        self.assertEqual(read_credentials(self.write("accessKey: rocketmq2\nsecretKey: 12345678\n\n")), KEYS)

    def test_a_token_is_read(self) -> None:
        text = "accessKey: rocketmq2\nsecretKey: '12345678'\nsecurityToken: token\n"
        self.assertEqual(read_credentials(self.write(text)).security_token, "token")

    def test_a_wrong_file_is_refused_without_its_secret(self) -> None:
        for text, reason in {
            "": "accessKey and secretKey are missing",
            "secretKey: my-secret": "accessKey is missing",
            "accessKey: rocketmq2": "secretKey is missing",
            "accessKey: short\nsecretKey: my-secret": "accessKey has fewer than 7 characters",
            "accessKey: [rocketmq2]\nsecretKey: my-secret": "accessKey is not a text",
            "my-secret": "not a mapping",
            "accessKey: rocketmq2\nsecretKey: my-secret\naccessKey: rocketmq3": "'accessKey' in line 3 is there twice",
            "accessKey: rocketmq2\nsecretKey: 'my-secret": "not YAML in line",
            "a: &a my-secret\nb: *a": "alias",
            "a: !!python/object/apply:os.system [my-secret]": "not YAML",
            "[" * 100 + "my-secret": "more than 20 levels",
            "x" * (MAX_FILE_BYTES + 1): "larger than",
        }.items():
            error = self.assertRaises(AclFileError, read_credentials, self.write(text))
            self.assertIn(reason, str(error))
            self.assertIn(str(self.path), str(error))
            self.assertNotIn("my-secret", str(error))

    def test_bytes_that_are_no_text_are_refused(self) -> None:
        self.path.write_bytes(b"\xff\xfe\xfa")
        self.assertIn("not YAML", str(self.assertRaises(AclFileError, read_credentials, self.path)))

    def test_a_missing_file_is_refused(self) -> None:
        self.assertIn("No such file", str(self.assertRaises(AclFileError, make_signer, self.path)))

    def test_keys_that_have_changed_are_used(self) -> None:
        signer = make_signer(self.write("accessKey: rocketmq2\nsecretKey: 12345678"))
        assert signer is not None
        self.assertFalse(reread_credentials(signer, self.path))
        self.write("accessKey: rocketmq2\nsecretKey: 87654321")
        self.assertTrue(reread_credentials(signer, self.path))
        self.assertEqual(signer.credentials.secret_key, "87654321")
        self.write("accessKey: rocketmq2")
        self.assertRaises(AclFileError, reread_credentials, signer, self.path)
        self.assertEqual(signer.credentials.secret_key, "87654321")

    def test_without_a_file_nothing_is_read_again(self) -> None:
        self.assertFalse(reread_credentials(None, self.path))


class EnvironmentTests(SynchronousTestCase):
    """RMQHA_ACCESS_KEY and RMQHA_SECRET_KEY."""

    def test_both_are_needed(self) -> None:
        both = {"RMQHA_ACCESS_KEY": "rocketmq2", "RMQHA_SECRET_KEY": "12345678"}
        self.assertEqual(credentials_of_environment(both), KEYS)
        self.assertIsNone(credentials_of_environment({"RMQHA_ACCESS_KEY": "", "HOME": "/"}))
        for name in both:
            other = {key: value for key, value in both.items() if key != name}
            error = self.assertRaises(AclFileError, credentials_of_environment, other)
            self.assertIn(f"{name} must be set too", str(error))
