"""Rights that a test chooses."""

from collections.abc import Iterable

from rmqha.remoting.rights import Rights


class Granted(Rights):
    """The topics that an account may send to, and those that it may read: the retry topic of a group is the group."""

    def __init__(self, account: str | None = "app", sends: Iterable[str] = (), reads: Iterable[str] = ()) -> None:
        self.account = account
        self.sends = set(sends)
        self.reads = set(reads)

    def may_send_to(self, topic: str) -> bool:
        return topic in self.sends

    def may_read(self, topic: str) -> bool:
        return topic in self.reads

    def may_consume_in(self, group: str) -> bool:
        return f"%RETRY%{group}" in self.reads

    def may_answer(self, asking: Rights) -> bool:
        return any(asking.may_send_to(topic) for topic in self.reads)
