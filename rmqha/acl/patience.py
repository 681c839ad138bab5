"""How long a peer that nobody knows waits for its next refusal (docs/acl.md)."""

from collections import OrderedDict
from itertools import islice
from math import inf

from twisted.internet.interfaces import IReactorTime

from rmqha.remoting.networks import network_of

FREE_TRIES = 10
"""A host gets this many refusals at once after a quiet time."""
REFUSALS_PER_SECOND = 10
"""And then this many in a second, over all its connections."""
ALL_FREE_TRIES, ALL_REFUSALS_PER_SECOND = 200, 200
"""The same for all hosts together."""
MIN_WAIT_SECONDS = 0.001
"""A shorter wait counts as none."""
MAX_WAIT_SECONDS = 25.0
"""Who would wait for longer is cut off, so at most 250 connections of a host wait. Their end is not seen meanwhile."""
MAX_HOSTS = 4096
"""Hosts that are counted at the same time. All further ones count as one host."""
OTHERS = ""


class GuessingPace:
    """Refusals at a rate. Its only state is the time at which it is quiet again."""

    __slots__ = ("_at_once", "_per_second", "quiet_at")

    def __init__(self, at_once: int, per_second: int) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self.quiet_at = 0.0

    def wait(self, now: float) -> float:
        """Count a refusal. Gives the seconds that it waits; infinity if that is too long, and it is not counted."""
        quiet_at = max(self.quiet_at, now) + 1 / self._per_second
        wait = max(0.0, quiet_at - now - self._at_once / self._per_second)
        if wait > MAX_WAIT_SECONDS:
            return inf
        self.quiet_at = quiet_at
        return 0.0 if wait < MIN_WAIT_SECONDS else wait


class Patience:
    """Says how long a stranger waits for a refusal, by its address. For IPv6, a /64 counts as one host.

    Only refusals are counted, and only refusals wait. So a host behind the same address that signs well waits for
    nobody.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._all = GuessingPace(ALL_FREE_TRIES, ALL_REFUSALS_PER_SECOND)
        self._hosts: OrderedDict[str, GuessingPace] = OrderedDict()

    @property
    def hosts(self) -> int:
        """How many hosts are counted."""
        return len(self._hosts)

    def seconds(self, address: str) -> float:
        """Count a refusal of this address. Gives the seconds until it may be sent; infinity to cut the peer off."""
        now = self._clock.seconds()
        return max(self._of(network_of(address), now).wait(now), self._all.wait(now))

    def _of(self, host: str, now: float) -> GuessingPace:
        """The pace of a host, which becomes the last one. The first one that is quiet is forgotten for each new one."""
        pace = self._hosts.pop(host, None)
        if pace is None:
            for first in list(islice(self._hosts, 2)):
                if self._hosts[first].quiet_at <= now:
                    del self._hosts[first]
            if len(self._hosts) >= MAX_HOSTS:
                host = OTHERS
                pace = self._hosts.pop(host, None)
        if pace is None:
            pace = GuessingPace(FREE_TRIES, REFUSALS_PER_SECOND)
        self._hosts[host] = pace
        return pace
