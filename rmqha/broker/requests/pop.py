"""Requests of POP consumption, which RocketMQ 5 added. This broker refuses them in words that the client shows."""

from enum import IntEnum

from twisted.logger import Logger

from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.wire.command import RemotingCommand, ResponseCode


class PopCode(IntEnum):
    """Codes of POP requests (RocketMQ 5.3.3)."""

    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    PEEK_MESSAGE = 200_052
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POP_ROLLBACK = 200_056
    BATCH_ACK_MESSAGE = 200_151


class PopProcessor:
    """Refuses POP requests. The log gets one line, because a consumer shows the refusal only in its own log."""

    _log = Logger()

    def __init__(self) -> None:
        self._is_told = False

    def processors(self) -> Processors:
        """By request code."""
        return {int(code): self._refuse for code in PopCode}

    def _refuse(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        name = PopCode(request.code).name
        if not self._is_told:
            self._is_told = True
            host, port = connection.peer_host
            self._log.warn(
                "{client} sent {request}: this broker does not support POP consumption, and the consumer gets no "
                "messages. Further such requests are refused without a line here",
                client=f"{host}:{port}",
                request=name,
            )
        raise RequestRefused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request type {request.code} ({name}) not supported: this broker (rmqha) has no POP consumption. Use a "
            "push consumer with clientRebalance=true, or a pull consumer",
        )
