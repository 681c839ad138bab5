"""Room for many things, which nobody can use up alone."""

from collections import Counter

from rmqha.remoting.networks import network_of
from rmqha.remoting.protocol import RemotingProtocol

PARTS = 4
"""When half of the room is used, a holder that has one of this many parts gets no more."""


class Shares:
    """Counts what each holder has of a limited room."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of: Counter[str] = Counter()
        self.count = 0
        """Of all holders together."""

    def take(self, holder: str) -> bool:
        """Count one more of this holder. False if there is no room for it."""
        is_half_full = self.count >= self.most // 2
        if self.count >= self.most or (is_half_full and self._of.get(holder, 0) >= self.most // PARTS):
            return False
        self._of[holder] += 1
        self.count += 1
        return True

    def give_back(self, holder: str) -> None:
        """The holder has one less."""
        self.count -= 1
        self._of[holder] -= 1
        if not self._of[holder]:
            del self._of[holder]


def holder_of(connection: RemotingProtocol) -> str:
    """Whose the connection is: its account's, else its address's. For IPv6, a /64 counts as one address."""
    return connection.rights.account or network_of(connection.peer_host[0])
