"""Only one process at a time uses a store, Java or ours (spec/store.md 1)."""

import subprocess
import sys

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.errors import StoreInUse
from rmqha.store.log.lockfile import LockFile, is_locked
from tests.fixtures import new_folder, open_files

pytestmark = pytest.mark.process

HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""
"""Takes the lock as Java's FileChannel.lock(0, 1, false) does."""

TRY_AS_JAVA = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("in use")
else:
    print("free")
"""
ASK_US = """
import pathlib, sys
from rmqha.store.log.lockfile import is_locked
print("in use" if is_locked(pathlib.Path(sys.argv[1])) else "free")
"""


class LockFileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.path = self.folder / "lock"

    def ask(self, program: str) -> str:
        """What another process finds."""
        return subprocess.run(
            [sys.executable, "-c", program, str(self.path)], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()

    def hold_elsewhere(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "held\n")
        return process

    def test_the_file_says_lock(self) -> None:
        LockFile(self.path).release()
        self.assertEqual(self.path.read_bytes(), b"lock")

    def test_a_store_that_another_process_has_is_refused(self) -> None:
        process = self.hold_elsewhere()
        with self.assertRaises(StoreInUse) as caught:
            LockFile(self.path)
        self.assertIn(str(self.folder), str(caught.exception))
        self.assertTrue(is_locked(self.path))
        self.assertEqual(open_files(self.folder), 0)
        process.kill()
        process.wait()
        self.assertFalse(is_locked(self.path))
        LockFile(self.path).release()

    def test_our_lock_shuts_others_out_until_it_is_released(self) -> None:
        lock = LockFile(self.path)
        self.assertEqual((self.ask(TRY_AS_JAVA), self.ask(ASK_US)), ("in use", "in use"))
        lock.release()
        self.assertEqual((self.ask(TRY_AS_JAVA), self.ask(ASK_US)), ("free", "free"))

    def test_the_same_process_is_refused_too_and_the_first_lock_stays(self) -> None:
        lock = LockFile(self.path)
        with self.assertRaises(StoreInUse):
            LockFile(self.path)
        self.assertEqual(self.ask(TRY_AS_JAVA), "in use")
        lock.release()
        LockFile(self.path).release()

    def test_looking_at_the_lock_does_not_drop_it(self) -> None:
        """As closing any descriptor of the file would with an ordinary lock."""
        lock = LockFile(self.path)
        self.assertTrue(is_locked(self.path))
        self.assertEqual(self.ask(TRY_AS_JAVA), "in use")
        lock.release()
        self.assertFalse(is_locked(self.path))

    def test_looking_changes_nothing(self) -> None:
        self.assertFalse(is_locked(self.path))
        self.assertFalse(self.path.exists())
        self.path.write_bytes(b"")
        self.path.chmod(0o400)
        self.assertFalse(is_locked(self.path))
        self.assertEqual(self.path.read_bytes(), b"")

    def test_a_folder_that_is_not_there_is_an_input_error(self) -> None:
        with self.assertRaises(FileNotFoundError):
            LockFile(self.folder / "none" / "lock")
