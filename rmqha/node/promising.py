"""A failover cluster's leader asks its members not to try for the lead, while the coordinator does not answer.

See PROMISE_TO_FOLLOW in spec/remoting.md 2.24.
"""

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint

from rmqha.failover.member import Promise
from rmqha.node.plan import IClusterMember
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.header import Header
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused, call_once
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

LEADER, EPOCH, SESSION, MILLISECONDS = "leader", "epoch", "session", "ms"
PROMISE_TIMEOUT_SECONDS = 2.0


async def ask_for_promise(endpoint: IStreamClientEndpoint, promise: Promise, clock: IReactorTime) -> bool:
    """Ask the member at a remoting port. False if it refuses.

    Raises RemotingError, TimeoutError, or what connecting raises.
    """
    fields = {
        LEADER: promise.leader,
        EPOCH: str(promise.epoch),
        SESSION: promise.session,
        MILLISECONDS: str(round(promise.seconds * 1000)),
    }
    asking = Deferred.fromCoroutine(call_once(endpoint, RequestCode.PROMISE_TO_FOLLOW, clock, fields))
    try:
        await asking.addTimeout(PROMISE_TIMEOUT_SECONDS, clock)
    except RemotingError as error:
        if error.answer is None:
            raise
        return False
    return True


class PromiseProcessor:
    """Answers PROMISE_TO_FOLLOW. The member decides."""

    def __init__(self, member: IClusterMember) -> None:
        self._member = member

    def processors(self) -> Processors:
        """By request code."""
        return {RequestCode.PROMISE_TO_FOLLOW: self._answer}

    def _answer(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        header = Header(request)
        asked = Promise(
            header.text(LEADER), header.integer(EPOCH), header.text(SESSION), header.integer(MILLISECONDS) / 1000
        )
        if not self._member.promise(asked):
            reason = f"this node does not follow {asked.leader[:100]} in epoch {asked.epoch}"
            raise RequestRefused(ResponseCode.NO_PERMISSION, reason)
        return RemotingCommand(ResponseCode.SUCCESS)
