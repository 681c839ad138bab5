"""Requests of POP consumption, which RocketMQ 5 added. This broker refuses them in words that the client shows."""

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

POP_CODES = (
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
    RequestCode.POP_ROLLBACK,
    RequestCode.BATCH_ACK_MESSAGE,
)


class PopProcessor:
    """Refuses POP requests. The log gets one line, because a consumer shows the refusal only in its own log."""

    _log = Logger()

    def __init__(self) -> None:
        self._is_told = False

    def processors(self) -> Processors:
        """By request code."""
        return dict.fromkeys(POP_CODES, self._refuse)

    def _refuse(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        name = RequestCode(request.code).name
        if not self._is_told:
            self._is_told = True
            host, port = connection.peer_host
            self._log.warn(
                "{client} sent {request}: this broker does not support POP consumption, and the consumer gets no "
                "messages. Further such requests are refused without a line here",
                event=Event.POP_REFUSED,
                client=f"{host}:{port}",
                request=name,
            )
        raise RequestRefused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request type {request.code} ({name}) not supported: this broker (rmqha) has no POP consumption. Use a "
            "push consumer with clientRebalance=true, or a pull consumer",
        )
