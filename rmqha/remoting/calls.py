"""The requests that one end of a connection sends, and their answers."""

from collections.abc import Mapping
from itertools import count

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import Interface

from rmqha.kit.events import Event
from rmqha.wire.command import (
    ONEWAY_FLAG,
    OUR_VERSION,
    CommandError,
    RemotingCommand,
    ResponseCode,
    Sign,
)

CALL_TIMEOUT_SECONDS = 3.0
MAX_OPAQUE = 2**31 - 1
ACL_EXCEPTION = "AclException: "
GIVE_ACCOUNT = "give an account with --acl-file, or a node with aclFile"
CHECK_KEYS = "check accessKey and secretKey in the file of --acl-file or aclFile"
ADVICE_OF_5 = {
    "username cannot be null": f"the broker has authenticationEnabled=true: {GIVE_ACCOUNT}",
    "check signature failed": CHECK_KEYS,
}
"""What to do if ACL 2.0 of RocketMQ 5.x refuses with these words."""


class RemotingError(Exception):
    """A call was answered with an error, or will not be answered. ``answer`` is the answer, or None."""

    def __init__(self, message: str, answer: RemotingCommand | None = None) -> None:
        super().__init__(message)
        self.answer = answer


def with_remedy(remark: str | None) -> str:
    """The remark of a refusal. If access control is the reason, the text also says what to do."""
    text = str(remark)
    for words, advice in ADVICE_OF_5.items():
        if words in text:
            return f"{text} ({advice}; docs/acl.md)"
    before, exception, reason = text.partition(ACL_EXCEPTION)
    if not exception:
        return text
    reason = reason.partition(", org.apache.")[0]  # Java adds a line of its source
    if reason.startswith("No accessKey"):
        advice = f"the broker has aclEnable=true: {GIVE_ACCOUNT}"
    elif reason.startswith(("No acl config", "Check signature")):
        advice = CHECK_KEYS
    else:
        advice = "the account may not do this"
    return f"{before}{exception}{reason} ({advice}; docs/acl.md)"


class ISender(Interface):
    """A connection that sends frames."""

    def send(command: RemotingCommand) -> None:
        """Send a request or an answer. Raises CommandError if it does not fit a frame."""


class Calls:
    """Sends requests over a connection, each with an opaque of its own, and gives each call its answer."""

    _log = Logger()

    def __init__(self, sender: ISender, clock: IReactorTime) -> None:
        self._sender = sender
        self._clock = clock
        self._opaque = count(1)
        self._waiting: dict[int, Deferred[RemotingCommand]] = {}
        self.sign: Sign | None = None
        """Signs all requests, if it is set."""

    def call(self, code: int, ext_fields: Mapping[str, str], body: bytes, timeout: float) -> Deferred[RemotingCommand]:
        """Send a request. Fires with the answer, or fails with RemotingError, or TimeoutError after ``timeout`` s."""
        opaque = self._next_opaque()

        def forget(_: object) -> None:
            self._waiting.pop(opaque, None)

        answer: Deferred[RemotingCommand] = Deferred(forget)
        self._waiting[opaque] = answer
        try:
            self._sender.send(RemotingCommand(code, opaque, ext_fields=self._signed(ext_fields, body), body=body))
        except CommandError as error:
            del self._waiting[opaque]
            answer.errback(RemotingError(str(error)))
            return answer
        return answer.addTimeout(timeout, self._clock)

    def push(self, code: int, ext_fields: Mapping[str, str], body: bytes) -> None:
        """Send a one-way request, which has no answer. Raises CommandError if it does not fit a frame."""
        fields = self._signed(ext_fields, body)
        self._sender.send(RemotingCommand(code, self._next_opaque(), ONEWAY_FLAG, None, fields, body))

    def _next_opaque(self) -> int:
        return next(self._opaque) & MAX_OPAQUE

    def _signed(self, ext_fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """The header fields of a request, with a signature if there is one. Raises CommandError."""
        if self.sign is None:
            return ext_fields
        try:
            return self.sign(ext_fields, body, OUR_VERSION)
        except (TypeError, UnicodeEncodeError) as error:
            raise CommandError(f"a request cannot be signed: {error}") from error

    def answered(self, answer: RemotingCommand) -> None:
        """An answer has come."""
        waiting = self._waiting.pop(answer.opaque, None)
        if waiting is None:
            self._log.debug(
                "an answer without a waiting call, opaque {opaque}", event=Event.ANSWER_UNEXPECTED, opaque=answer.opaque
            )
        elif answer.code != ResponseCode.SUCCESS:
            waiting.errback(RemotingError(f"code {answer.code}: {with_remedy(answer.remark)}", answer))
        else:
            waiting.callback(answer)

    def fail(self, reason: str) -> None:
        """No further answer will come."""
        calls, self._waiting = self._waiting, {}
        for waiting in calls.values():
            waiting.errback(RemotingError(reason))
