"""A slave with a real store, as in a node, on a Clock. The test plays its master."""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from twisted.internet.defer import Deferred, execute, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.questions import MasterAccess
from rmqha.ha.slave.replica import MasterView, StartFrom
from rmqha.ha.slave.slaveservice import HASlaveService, OnGap, SlaveOptions
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.wire.transfer import TransferDecoder
from tests.ha.doubles import (
    SEGMENT_SIZE,
    Attempt,
    FakeEndpoint,
    LineTransport,
    LogImage,
    append,
    content_of,
    reports_in,
)

NOBODY = ConnectionRefusedError()


@implementer(ISlaveOwner)
class SlaveOwner:
    """The node around the slave of a test, which keeps what it is told in ``case``."""

    def __init__(self, case: "SlaveNodeTestCase") -> None:
        self._case = case

    def finished(self, code: ExitCode, reason: str) -> None:
        self._case.ends.append((code, reason))

    def disk_failed(self, failure: Failure) -> None:
        self._case.disk_failures.append(failure)

    def in_state(self, state: ReplicaState) -> None:
        pass

    def queues_behind(self) -> int:
        return self._case.behind

    def wall_seconds(self) -> float:
        return time.time()

    def rewind(self) -> bool:
        return False

    def state_written(self) -> Deferred[None]:
        return self._case.state_written


class SlaveNodeTestCase(SynchronousTestCase):
    """``start`` runs a slave; ``self.view`` is what the master's remoting port says, or the error it meets there."""

    def setUp(self) -> None:
        for name in ("fsync", "fdatasync"):  # durability does not matter here, and these calls take most of the time
            self.patch(os, name, lambda fd: None)
        self.clock = Clock()
        self.ends: list[tuple[ExitCode, str]] = []
        self.disk_failures: list[Failure] = []
        self.view: MasterView | Exception | Deferred[MasterView] = NOBODY
        self.questions: list[bool] = []
        self.behind = 0
        """How many bytes of the log are in no queue."""
        self.state_written: Deferred[None] = succeed(None)

    def start(
        self,
        image: LogImage | None = None,
        once: bool = False,
        start_from: str = "min",
        on_gap: OnGap = OnGap.STOP,
        remoting: bool = True,
        observer: bool = False,
        store: Path | None = None,
        run_in_thread: Callable[[Callable[[], None]], Deferred[None]] = execute,
        **properties: str,
    ) -> None:
        """Run a slave whose store holds the image."""
        folder = Path(self.mktemp()) if store is None else store
        settings = {
            "storePathRootDir": str(folder),
            "brokerRole": "SLAVE",
            "mappedFileSizeCommitLog": str(SEGMENT_SIZE if image is None else image.segment_size),
            **properties,
        }
        self.store = MessageStore(make_settings({key: value for key, value in settings.items() if value}))
        self.log = self.store.commit_log
        self.held = b""
        if image is not None:
            self.log.begin_at(image.start)
            append(self.log, image)
            self.held = image.content
        self.flusher = self.store.start_flushing(self.clock, run_in_thread, self.disk_failures.append)
        self.endpoint = FakeEndpoint(self.clock)
        self.service = HASlaveService(
            self.store,
            self.flusher,
            SlaveOptions(StartFrom.parse(start_from), on_gap, once, observer),
            MasterAccess(self.endpoint, self.ask_remoting if remoting else None),
            SlaveOwner(self),
            self.clock,
        )
        self.service.startService()
        self.addCleanup(self.stop)

    def ask_remoting(self, with_segment_size: bool) -> Awaitable[MasterView]:
        """Plays the master's remoting port."""
        self.questions.append(with_segment_size)
        if isinstance(self.view, Deferred):
            return self.view
        answer: Deferred[MasterView] = Deferred(lambda _: call.cancel())
        how = answer.errback if isinstance(self.view, Exception) else answer.callback
        call = self.clock.callLater(0, how, self.view)
        return answer

    def stop(self) -> None:
        """Stop the slave; nothing may be left on the clock."""
        if self.service.running:
            stopped = self.service.stopService()
            self.clock.advance(0)
            self.successResultOf(stopped)
            closed = self.store.close(self.flusher)
            self.clock.advance(0)
            self.successResultOf(closed)
            self.assertEqual(self.endpoint.attempts, [])
            self.assertEqual([str(call) for call in self.clock.getDelayedCalls()], [])

    def next_attempt(self) -> Attempt:
        """Wait until the slave connects, or probes."""
        for _ in range(400):
            if self.endpoint.attempts:
                return self.endpoint.next()
            self.clock.advance(0.125)
        raise AssertionError("the slave does not connect any more")

    def accept(self) -> LineTransport:
        """Wait until the slave connects, and let it; the remoting port has answered then."""
        line = self.next_attempt().accept()
        self.clock.advance(0)
        return line

    def connect(self) -> tuple[LineTransport, int]:
        """Wait until the slave connects; its first report."""
        line = self.accept()
        (request,) = reports_in(line.take())
        return line, request

    def lose(self, line: LineTransport) -> None:
        """The line breaks."""
        line.lose()
        self.clock.advance(0)

    def silence(self, seconds: float) -> None:
        """Time passes, nobody says anything."""
        self.clock.pump([0.125] * int(seconds * 8))

    def content(self) -> bytes:
        """What the store holds."""
        return content_of(self.log)

    @staticmethod
    def held_bytes(line: LineTransport) -> int:
        """How many bytes of an unfinished frame wait in memory."""
        decoder: TransferDecoder = line.protocol._decoder  # type: ignore[union-attr]  # a proxy of ClientService's
        return len(decoder._held)
