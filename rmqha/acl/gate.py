"""The gate before all processors of a broker: it lets a request pass only if the rules allow it."""

from collections.abc import Mapping
from contextlib import suppress
from math import inf

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.acl.files import AclFiles, Found
from rmqha.acl.needs import SUB, Need, retry_topic, to_send
from rmqha.acl.patience import Patience
from rmqha.acl.rules import Refused
from rmqha.acl.yamlfile import AclFileError
from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.threads import CallInThread
from rmqha.remoting.calls import ACL_EXCEPTION
from rmqha.remoting.protocol import (
    Answer,
    IConnectionObserver,
    Processor,
    Processors,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.remoting.rights import ALL_RIGHTS, Rights
from rmqha.wire.command import RemotingCommand, ResponseCode
from rmqha.wire.sends.run import ISendAccess

RELOAD_SECONDS = 0.5
MAX_KEPT_RIGHTS = 20_000
EXCEPTION = f"org.apache.rocketmq.acl.common.{ACL_EXCEPTION}"


@implementer(IConnectionObserver, ISendAccess)
class AclGate(PeriodicService):
    """Checks requests by the rules of the files, and reads the files again when they change.

    A file that cannot be used changes nothing: the rules stay as they were, and ``warnings`` says why.
    """

    _log = Logger()

    def __init__(self, files: AclFiles, clock: IReactorTime, run_in_thread: CallInThread) -> None:
        """Reads the files. Raises AclFileError."""
        super().__init__("reading the ACL files", RELOAD_SECONDS, self.reload, clock, first_after=RELOAD_SECONDS)
        self.files = files
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._found = files.read()
        self._tried = self._found.stamps
        self._file_problem: str | None = None
        self._refusals = SlaveCheck(clock)
        self._patience = Patience(clock)
        self._rights: dict[str, Rights] = {}
        self._waiting: dict[RemotingProtocol, Deferred[None] | None] = {}
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
            rules = self._found.rules
            if not rules.usual.allow(request.code, request.ext_fields, request.body):
                host, _ = connection.peer_host
                try:
                    account = rules.check(request, host)
                except Refused as error:
                    return self._refuse(connection, host, error)
                connection.rights = (
                    ALL_RIGHTS
                    if account is None or not rules.strict
                    else self._rights_of(account.credentials.access_key)
                )
            return processor(connection, request)

        return check

    def may_send(self, code: int, fields: Mapping[str, str], body: bytes) -> bool:
        return self._found.rules.usual.allow(code, fields, body)

    def _rights_of(self, access_key: str) -> Rights:
        """The rights of an account that the files have, or had."""
        rights = self._rights.get(access_key)
        if rights is None:
            if len(self._rights) >= MAX_KEPT_RIGHTS:
                self._rights.clear()
            rights = self._rights[access_key] = _RightsOf(access_key, self)
        return rights

    def _refuse(self, connection: RemotingProtocol, host: str, error: Refused) -> Answer:
        self._refusals.refused(host, str(error), Event.ACCOUNT_REFUSED)
        refusal = RequestRefused(ResponseCode.SYSTEM_ERROR, f"{EXCEPTION}{error}")
        if not error.is_stranger:
            raise refusal
        seconds = self._patience.seconds(host)
        if seconds == inf:
            connection.hang_up()
        if seconds in (0.0, inf):
            raise refusal
        return self._refuse_later(connection, refusal, seconds)

    async def _refuse_later(
        self, connection: RemotingProtocol, refusal: RequestRefused, seconds: float
    ) -> RemotingCommand:
        """Nothing more is read from the connection until this is answered, so guessing is slow."""
        if connection not in self._waiting:
            connection.on_closed(self)
        waiting = self._waiting[connection] = deferLater(self._clock, seconds)
        with suppress(CancelledError):  # the connection has closed
            await waiting
            self._waiting[connection] = None
        return refusal.answer

    def connection_closed(self, connection: RemotingProtocol) -> None:
        waiting = self._waiting.pop(connection)
        if waiting is not None:
            waiting.cancel()

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
                self._log.error(
                    "the accounts stay as they were: {problem}", event=Event.ACCOUNTS_NOT_REREAD, problem=problem
                )

        return self._run_in_thread(look).addCallbacks(done, failed)

    def _log_found(self) -> None:
        found = self._found
        self._log.info(
            "access control: {accounts} accounts in {files} files of {folder}",
            event=Event.ACCOUNTS_READ,
            accounts=len(found.rules.accounts),
            files=len(found.stamps),
            folder=str(self.files.folder),
        )
        for warning in found.warnings:
            self._log.warn("{warning}", event=Event.ACCOUNTS_WARNING, warning=warning)


class _RightsOf(Rights):
    """What an account may do by the rules of the moment. An account that is gone may do nothing."""

    def __init__(self, access_key: str, gate: AclGate) -> None:
        self.account = access_key
        self._access_key = access_key
        self._gate = gate

    def may_send_to(self, topic: str) -> bool:
        return self._gate.found.rules.may(self._access_key, to_send(topic))

    def may_read(self, topic: str) -> bool:
        return self._gate.found.rules.may(self._access_key, Need(topic, SUB))

    def may_consume_in(self, group: str) -> bool:
        return self.may_read(retry_topic(group))

    def may_answer(self, asking: Rights) -> bool:
        if asking.account is None:
            return True
        return self._gate.found.rules.share_a_topic(asking.account, self._access_key)
