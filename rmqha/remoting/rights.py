"""What the peer of a connection may do. Processors ask it about what a request leads to, not about what it says.

The gate of access control (``rmqha.acl``) sets the rights of a connection before each request that it passes on. Read
them before a request pauses. What is pushed to a client is decided by the rights of the connection that it goes to.
"""

from abc import ABC, abstractmethod


class Rights(ABC):
    """The rights of one account. They follow its file: a question is answered by the rules of that moment."""

    account: str | None = None
    """The access key. None if nobody had to sign."""

    @abstractmethod
    def may_send_to(self, topic: str) -> bool:
        """Whether it may put messages into a topic."""

    @abstractmethod
    def may_read(self, topic: str) -> bool:
        """Whether it may have the messages of a topic. The retry topic of a group is that of its consumers."""

    @abstractmethod
    def may_consume_in(self, group: str) -> bool:
        """Whether it may be a consumer of a group."""

    @abstractmethod
    def may_answer(self, asking: "Rights") -> bool:
        """Whether it may read a topic to which the other may send: so it may have had a question of the other."""


class AllRights(Rights):
    """Without access control, or for a peer at a white address."""

    def may_send_to(self, topic: str) -> bool:
        return True

    def may_read(self, topic: str) -> bool:
        return True

    def may_consume_in(self, group: str) -> bool:
        return True

    def may_answer(self, asking: Rights) -> bool:
        return True


ALL_RIGHTS = AllRights()
