"""How long a peer that nobody knows waits for its next refusal (docs/acl.md)."""

from collections import OrderedDict
from itertools import islice
from math import inf

from twisted.internet.interfaces import IReactorTime

from rmqha.kit.rates import Rate, TokenBucket
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


class Patience:
    """Says how long a stranger waits for a refusal, by its address. For IPv6, a /64 counts as one host.

    Only refusals are counted, and only refusals wait. So a host behind the same address that signs well waits for
    nobody.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._all = TokenBucket(Rate(ALL_FREE_TRIES, ALL_REFUSALS_PER_SECOND), clock.seconds())
        self._hosts: OrderedDict[str, TokenBucket] = OrderedDict()

    @property
    def hosts(self) -> int:
        """How many hosts are counted."""
        return len(self._hosts)

    def seconds(self, address: str) -> float:
        """Count a refusal of this address. Gives the seconds until it may be sent; infinity to cut the peer off."""
        now = self._clock.seconds()
        return max(_wait(self._of(network_of(address), now), now), _wait(self._all, now))

    def _of(self, host: str, now: float) -> TokenBucket:
        """The bucket of a host, which becomes the last one. For each new one the first full one is forgotten."""
        bucket = self._hosts.pop(host, None)
        if bucket is None:
            for first in list(islice(self._hosts, 2)):
                if self._hosts[first].tokens(now) >= FREE_TRIES:
                    del self._hosts[first]
            if len(self._hosts) >= MAX_HOSTS:
                host = OTHERS
                bucket = self._hosts.pop(host, None)
        if bucket is None:
            bucket = TokenBucket(Rate(FREE_TRIES, REFUSALS_PER_SECOND), now)
        self._hosts[host] = bucket
        return bucket


def _wait(bucket: TokenBucket, now: float) -> float:
    """Count a refusal. Gives the seconds that it waits; infinity if that is too long, and it is not counted."""
    wait = bucket.seconds_until(1, now)
    if wait > MAX_WAIT_SECONDS:
        return inf
    bucket.take(1, now)
    return 0.0 if wait < MIN_WAIT_SECONDS else wait
