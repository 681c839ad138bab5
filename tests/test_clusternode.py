"""What a member of a failover cluster does if its disk is full: it says so, and its agent decides what comes of it."""

import errno
import shutil
from collections import namedtuple
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred, execute
from twisted.trial.unittest import SynchronousTestCase

from rmqha import clusternode
from rmqha.clusternode import ClusterNode
from rmqha.exitcodes import ExitCode
from rmqha.failover.knownfile import read_known
from rmqha.failover.member import DiskFull, Known, NodeFailed
from rmqha.store.offline.promote import MIN_FREE_BYTES
from tests.fixtures import new_folder

Usage = namedtuple("Usage", "total used free")


class DiskNode(ClusterNode):
    """Uses its disk, and does nothing else."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.running = True
        self.ended: list[ExitCode] = []

    @property
    def _root(self) -> Path:
        return self.store

    def _run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        return execute(function)

    def stop_with(self, code: ExitCode, reason: str) -> None:
        self.ended.append(code)


class FullDiskTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self)
        (self.store / "rmqha").mkdir()
        self.node = DiskNode(self.store)
        self.known = Known(7, "a", 123)
        self.use(self.node.write_known(self.known))

    def use(self, asked: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await asked

        return self.successResultOf(Deferred.fromCoroutine(wait()))

    def fails(self, asked: Awaitable[Any], kind: type[Exception]) -> str:
        async def wait() -> Any:
            return await asked

        return str(self.failureResultOf(Deferred.fromCoroutine(wait()), kind).value)

    def refuse(self, code: int) -> None:
        """The disk refuses each file."""

        def write(*_: Any) -> None:
            raise OSError(code, "refused")

        self.patch(clusternode, "write_known", write)

    def test_what_is_not_written_is_told_at_once_and_the_node_runs_on(self) -> None:
        for code in (errno.ENOSPC, errno.EDQUOT):
            self.refuse(code)
            self.assertIn("refused", self.fails(self.node.write_known(replace(self.known, epoch=8)), DiskFull))
            self.assertIn("refused", self.fails(self.node.check_room(), DiskFull), "as with a quota")
        self.assertEqual((self.node.ended, read_known(self.store)), ([], self.known))

    def test_a_disk_that_fails_ends_the_node(self) -> None:
        self.refuse(errno.EIO)
        self.fails(self.node.write_known(replace(self.known, epoch=8)), NodeFailed)
        self.assertEqual(self.node.ended, [ExitCode.IO_ERROR])

    def test_there_is_room_only_for_a_whole_promotion(self) -> None:
        for free in (0, MIN_FREE_BYTES - 1):
            with mock.patch.object(shutil, "disk_usage", return_value=Usage(1 << 40, 1 << 40, free)):
                self.assertIn(f"{free} bytes free", self.fails(self.node.check_room(), DiskFull))
        with mock.patch.object(shutil, "disk_usage", return_value=Usage(1 << 40, 1 << 40, MIN_FREE_BYTES)):
            self.use(self.node.check_room())
        self.assertEqual((self.node.ended, read_known(self.store)), ([], self.known))
