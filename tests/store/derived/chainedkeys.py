"""Keys of an index, and what the kernel makes of them."""

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from rmqha.store.derived.index import HASHED_KEY_DTYPE, HashedKeys, chain_keys_plain, link_keys_plain

TIMES = (0, -1, 999, 1000, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63))


@dataclass
class ComparedKeys:
    """How many keys were compared."""

    calls: int = 0
    keys: int = 0

    @property
    def bytes(self) -> int:
        """Of their entries."""
        return 20 * self.keys


def some_keys(rng: Random, slots: int) -> HashedKeys:
    """Keys, of which many share slots."""
    count = rng.choice((1, 2, 50, 500))
    near = rng.choice((1 << 31, slots, 3 * slots))
    keys = np.empty(count, HASHED_KEY_DTYPE)
    keys["hash"] = [min(rng.randrange(near), (1 << 31) - 1) for _ in range(count)]
    keys["physical_offset"] = [rng.getrandbits(62) for _ in range(count)]
    keys["store_timestamp"] = [rng.choice((*TIMES, 1_700_000_000_000 + rng.getrandbits(40))) for _ in range(count)]
    return keys


def compare(kernel: Any, rng: Random, compared: ComparedKeys) -> None:
    """What the kernel makes of keys and slots, some of which lead nowhere, is what the plain functions make of them.

    Raises AssertionError.
    """
    count, first = rng.choice((1, 7, 100, 5000)), rng.choice((1, 2, 1000, (1 << 31) - 1000))
    values = [rng.choice((0, rng.randrange(-5, first + 5), rng.randrange(1 << 31))) for _ in range(min(count, 200))]
    slots = np.resize(np.array(values, np.int64).clip(-5, (1 << 31) - 1), count).astype(">i4")
    before = slots.tobytes()
    keys, begin = some_keys(rng, count), rng.choice(TIMES)
    where = f"keys {keys.tolist()}, slots {slots.tolist()}, from {first} on, {begin}"
    assert kernel.chain_keys(keys, slots, first, begin) == chain_keys_plain(keys, slots, first, begin), where
    assert slots.tobytes() == before, "chaining changes nothing"
    linked = slots.copy()
    kernel.link_keys(keys, linked, first)
    link_keys_plain(keys, slots, first)
    assert linked.tobytes() == slots.tobytes(), where
    compared.calls += 1
    compared.keys += len(keys)
