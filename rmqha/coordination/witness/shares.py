"""How much of the witness one address may use, if nobody has to log in: a part, so that others have room."""

from collections.abc import Iterable

from rmqha.coordination.interface import CoordinatorRefused, Delete, Put
from rmqha.coordination.state import MAX_KEYS, MAX_LEASES, MAX_STATE_BYTES, KeysAndLeases

PARTS = 4
"""One address has at most one of so many parts."""


class Shares:
    """Who has written the present keys last, and who has been granted the present leases. A restart forgets it."""

    def __init__(self) -> None:
        self._writers: dict[str, str] = {}
        self._granted: dict[int, str] = {}

    def check_grant(self, network: str, state: KeysAndLeases) -> None:
        """Raises CoordinatorRefused if this address has its part of the leases already."""
        self._granted = {lease: each for lease, each in self._granted.items() if lease in state.leases}
        if sum(each == network for each in self._granted.values()) >= MAX_LEASES // PARTS:
            raise CoordinatorRefused(f"Address {network} has {MAX_LEASES // PARTS} leases already.")

    def granted(self, network: str, lease: int) -> None:
        """This address got a lease."""
        self._granted[lease] = network

    def check_writes(self, network: str, state: KeysAndLeases, writes: Iterable[Put | Delete]) -> None:
        """Raises CoordinatorRefused if this address would have more than its part of the keys, or of their bytes."""
        self._writers = {key: each for key, each in self._writers.items() if key in state.keys}
        sizes = {key: len(key) + len(state.keys[key].value) for key, each in self._writers.items() if each == network}
        before = len(sizes), sum(sizes.values())
        for each in writes:
            if isinstance(each, Put):
                sizes[each.key] = len(each.key) + len(each.value)
            else:
                sizes.pop(each.key, None)
        if len(sizes) > max(before[0], MAX_KEYS // PARTS):
            raise CoordinatorRefused(f"Address {network} has {MAX_KEYS // PARTS} keys already.")
        if sum(sizes.values()) > max(before[1], MAX_STATE_BYTES // PARTS):
            raise CoordinatorRefused(f"The keys of address {network} may have {MAX_STATE_BYTES // PARTS} bytes.")

    def wrote(self, network: str, writes: Iterable[Put | Delete]) -> None:
        """This address has written these keys."""
        self._writers.update({each.key: network for each in writes if isinstance(each, Put)})
