"""The errors of the client: a type for each cause.

::

    ClientError
    ├── MQClientError            no broker has done it; it may help to try again later
    │   ├── NoAnswer             a server does not answer in time, or cannot be reached
    │   │   └── Unreachable      no connection was made: nothing was sent
    │   ├── InvalidAnswer        an answer cannot be read
    │   ├── TopicNotFound        no server that was asked knows the topic
    │   ├── NoMaster             nobody leads the topic or the queue now
    │   ├── TooManyWaiting       too many sends of this producer wait for their answers
    │   └── ClientStopped        the client, producer or consumer is stopped
    └── MQBrokerError            a broker or a name server refuses it: ``code`` and its remark
        ├── BrokerBusy           code 2
        ├── MessageRefused       code 13: too large, or its topic is too long
        ├── AccessDenied         code 1, by access control (aclEnable): no account, a wrong key, no permission
        ├── NoPermission         code 16
        ├── TopicMissing         code 17
        └── GroupMissing         code 26

A wrong argument raises ValueError, and MessageTooLarge is one. OffsetFileError is an OSError.
"""

from rmqha.remoting.calls import ACL_EXCEPTION, with_remedy
from rmqha.wire.command import RemotingCommand, ResponseCode


class ClientError(Exception):
    """All errors of this package but wrong arguments and errors of files."""


class MQClientError(ClientError):
    """The queue has no known address, or no broker answers."""


class NoAnswer(MQClientError):
    """A server cannot be reached, or does not answer in time. It may have done what was requested."""


class Unreachable(NoAnswer):
    """A server cannot be connected to: nothing was sent to it."""


class InvalidAnswer(MQClientError):
    """An answer cannot be read."""


class TopicNotFound(MQClientError):
    """No server that was asked knows the topic, though there is a master."""


class NoMaster(MQClientError):
    """Nobody leads the topic or the queue now: there are only slaves, or nobody is there, or who is there does not
    lead any more. A failover may end it.
    """


class TooManyWaiting(MQClientError):
    """Too many sends of this producer wait for their answers. Wait for some of them first."""


class ClientStopped(MQClientError):
    """The client, producer or consumer is stopped."""


class MQBrokerError(ClientError):
    """A broker or a name server refuses a request: the code and the remark of its answer."""

    def __init__(self, answer: RemotingCommand) -> None:
        super().__init__(f"code {answer.code}: {with_remedy(answer.remark)}")
        self.code = answer.code

    @staticmethod
    def of(answer: RemotingCommand) -> "MQBrokerError":
        """The error for the code of this answer."""
        if answer.code == ResponseCode.SYSTEM_ERROR and ACL_EXCEPTION in str(answer.remark):
            return AccessDenied(answer)
        return _BY_CODE.get(answer.code, MQBrokerError)(answer)


class BrokerBusy(MQBrokerError):
    """The broker has too much to do now."""


class MessageRefused(MQBrokerError):
    """The message is too large for the broker, or its topic is too long."""


class AccessDenied(MQBrokerError):
    """The broker's access control refuses it: the account is missing or unknown, its key is wrong, or it may not."""


class NoPermission(MQBrokerError):
    """The topic, the group or the broker does not allow it."""


class TopicMissing(MQBrokerError):
    """The broker does not have the topic."""


class GroupMissing(MQBrokerError):
    """The broker does not have the consumer group, and does not create it."""


_BY_CODE: dict[int, type[MQBrokerError]] = {
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.TOPIC_NOT_EXIST: TopicMissing,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupMissing,
}


class MessageTooLarge(ValueError):
    """The message does not fit a request."""


class OffsetFileError(OSError):
    """The file with the offsets of a broadcasting consumer is damaged, or another consumer uses it."""
