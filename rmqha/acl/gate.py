"""The gate before all processors of a broker: it lets a request pass only if the rules allow it."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.acl.files import AclFiles, Found
from rmqha.acl.rules import Refused
from rmqha.acl.yamlfile import AclFileError
from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.remoting.protocol import (
    ACL_EXCEPTION,
    Answer,
    Processor,
    Processors,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.services import PeriodicService
from rmqha.wire.command import RemotingCommand, ResponseCode

RELOAD_SECONDS = 0.5
EXCEPTION = f"org.apache.rocketmq.acl.common.{ACL_EXCEPTION}"
FREE_TRIES = 10
"""After this many refusals of strangers in a row, a connection waits before each further one is answered."""
WAIT_SECONDS = 0.1

RunInThread = Callable[[Callable[[], Any]], Deferred[Any]]


class AclGate(PeriodicService):
    """Checks requests by the rules of the files, and reads the files again when they change.

    A file that cannot be used changes nothing: the rules stay as they were, and ``warnings`` says why.
    """

    _log = Logger()

    def __init__(self, files: AclFiles, clock: IReactorTime, run_in_thread: RunInThread) -> None:
        """Reads the files. Raises AclFileError."""
        super().__init__("reading the ACL files", RELOAD_SECONDS, self.reload, clock, first_after=RELOAD_SECONDS)
        self.files = files
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._found = files.read()
        self._tried = self._found.stamps
        self._file_problem: str | None = None
        self._refusals = SlaveCheck(clock)
        self._strangers: WeakKeyDictionary[RemotingProtocol, int] = WeakKeyDictionary()
        self._log_found()

    @property
    def found(self) -> Found:
        """What the files said when they could be read last."""
        return self._found

    @property
    def warnings(self) -> list[str]:
        """What an operator should know."""
        problem = [] if self._file_problem is None else [f"the accounts stay as they were: {self._file_problem}"]
        return [*problem, *self._found.warnings]

    def guard(self, processors: Processors) -> Processors:
        """The same processors, each with the gate before it."""
        return {code: self._guarded(processor) for code, processor in processors.items()}

    def _guarded(self, processor: Processor) -> Processor:
        def check(connection: RemotingProtocol, request: RemotingCommand) -> Answer:
            host, _ = connection.peer_host
            try:
                self._found.rules.check(request, host)
            except Refused as error:
                return self._refuse(connection, host, error)
            if self._strangers:
                self._strangers.pop(connection, None)
            return processor(connection, request)

        return check

    def _refuse(self, connection: RemotingProtocol, host: str, error: Refused) -> Answer:
        self._refusals.refused(host, str(error))
        refusal = RequestRefused(ResponseCode.SYSTEM_ERROR, f"{EXCEPTION}{error}")
        if not error.is_stranger:
            raise refusal
        tries = self._strangers.get(connection, 0) + 1
        self._strangers[connection] = tries
        if tries <= FREE_TRIES:
            raise refusal
        return self._refuse_later(refusal)

    async def _refuse_later(self, refusal: RequestRefused) -> RemotingCommand:
        """Nothing more is read from the connection until this is answered, so guessing is slow."""
        await deferLater(self._clock, WAIT_SECONDS)
        return refusal.answer

    def reload(self) -> Deferred[None]:
        """Read the files if they have changed. The rules count for each request after that."""
        read: list[Found] = []

        def look() -> None:
            stamps = self.files.stamps()
            if stamps != self._tried:
                self._tried = stamps
                read.append(self.files.read())

        def done(_: object) -> None:
            if read:
                self._file_problem = None
                self._found = read[0]
                self._log_found()

        def failed(failure: Failure) -> None:
            failure.trap(AclFileError)
            problem = str(failure.value)
            if problem != self._file_problem:
                self._file_problem = problem
                self._log.error("the accounts stay as they were: {problem}", problem=problem)

        return self._run_in_thread(look).addCallbacks(done, failed)

    def _log_found(self) -> None:
        found = self._found
        self._log.info(
            "access control: {accounts} accounts in {files} files of {folder}",
            accounts=len(found.rules.accounts),
            files=len(found.stamps),
            folder=str(self.files.folder),
        )
        for warning in found.warnings:
            self._log.warn("{warning}", warning=warning)
