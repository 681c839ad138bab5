"""How many sends of a client the pass over ordinary sends takes, by a node's metrics. Needs no pytest."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

from rmqha.kit.events import Event
from rmqha.testing.nodes import TwistdNode

HTTP_PORT: Final = "--http-port=0"
"""The option of a node whose sends are looked at."""
LEAST_SHARE: Final = 0.95
ANY_CERTIFICATE: Final = ssl.create_default_context()
ANY_CERTIFICATE.check_hostname = False
ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE
SAMPLE: Final = re.compile(
    r'^rmqha_sends_(taken|declined)_total(?:\{(?:[^}]*reason="(\w+)")?[^}]*\})? (\d+)', re.MULTILINE
)


class Sends(NamedTuple):
    """How many sends were taken, and how many were declined, by reason."""

    taken: int
    declined: dict[str, int]

    @classmethod
    def of(cls, node: TwistdNode) -> Self:
        """Of a master since its start."""
        port = node.port("http")
        has_tls = any("TLS" in listening["security"] for listening in node.events(Event.LISTENING, purpose="http"))
        url = f"{'https' if has_tls else 'http'}://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=60, context=ANY_CERTIFICATE) as page:
            samples = SAMPLE.findall(page.read().decode())
        taken = sum(int(number) for kind, _, number in samples if kind == "taken")
        return cls(taken, {reason: int(number) for kind, reason, number in samples if kind == "declined"})

    def since(self, before: Self) -> Sends:
        """What came after."""
        declined = {reason: count - before.declined[reason] for reason, count in self.declined.items()}
        return Sends(self.taken - before.taken, {reason: count for reason, count in declined.items() if count})

    @property
    def share(self) -> float:
        """Of those that were taken."""
        return self.taken / max(1, self.taken + sum(self.declined.values()))


@contextmanager
def most_are_taken(master: TwistdNode, count: int) -> Iterator[None]:
    """Nearly all of the ``count`` sends that come in this context are taken."""
    before = Sends.of(master)
    yield
    found = Sends.of(master).since(before)
    print(f"sends taken: {found.taken}, declined: {found.declined}")
    assert found.share >= LEAST_SHARE, found
    assert found.taken >= LEAST_SHARE * count, found
