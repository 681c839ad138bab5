"""The keys and leases of a coordinator: one state machine for the witness and for the model of tests.

It does no I/O, and knows no clock: each call that needs the time is given it. What changes keys or leases is an
``Operation``. The same operations in the same order give the same state, so the witness keeps them in its journal.
"""

import base64
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmqha.coordination.interface import (
    Change,
    Compare,
    CompareTarget,
    CoordinatorError,
    CoordinatorRefused,
    Delete,
    KeyValue,
    LeaseGone,
    Put,
    Snapshot,
    TransactionResult,
)

FIRST_REVISION = 1
"""The revision of a coordinator without keys, as in etcd."""
MAX_KEY_CHARACTERS = 512
MAX_VALUE_BYTES = 64 * 1024
MAX_KEYS = 2048
MAX_STATE_BYTES = 2 * 1024**2
"""All keys and values together."""
MAX_LEASES = 1024
MAX_TTL_SECONDS = 86_400
MAX_OPERATIONS = 64
"""The comparisons of a transaction, and its writes."""
MAX_CHANGES = 4096
MAX_CHANGES_BYTES = 8 * 1024**2
"""The changes that are kept for watches."""


class Compacted(CoordinatorError):
    """The changes since this revision are no longer kept."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease begins."""

    lease: int
    ttl: int


@dataclass(frozen=True, slots=True)
class End:
    """A lease ends, with its keys."""

    lease: int


@dataclass(frozen=True, slots=True)
class Write:
    """The writes of a transaction whose comparisons were true."""

    writes: tuple[Put | Delete, ...]


Operation = Grant | End | Write


def to_json(operation: Operation) -> list[Any]:
    """An operation as JSON values; ``from_json`` is the reverse."""
    match operation:
        case Grant(lease, ttl):
            return ["grant", lease, ttl]
        case End(lease):
            return ["end", lease]
        case Write(writes):
            return ["write", [_write_to_json(each) for each in writes]]


def _write_to_json(write: Put | Delete) -> list[Any]:
    if isinstance(write, Delete):
        return [write.key]
    return [write.key, base64.b64encode(write.value).decode("ascii"), write.lease]


def from_json(value: Any) -> Operation:
    """The operation that ``to_json`` has written. Raises ValueError."""
    match value:
        case ["grant", int(lease), int(ttl)]:
            return Grant(lease, ttl)
        case ["end", int(lease)]:
            return End(lease)
        case ["write", list(writes)]:
            return Write(tuple(map(_write_from_json, writes)))
    raise ValueError("an operation of an unknown kind")


def _write_from_json(value: Any) -> Put | Delete:
    match value:
        case [str(key)]:
            return Delete(key)
        case [str(key), str(content), int(lease)]:
            return Put(key, base64.b64decode(content, validate=True), lease)
    raise ValueError("a write of an unknown kind")


def check_ttl(ttl: int) -> None:
    """Raises CoordinatorRefused for a lease of a length that no coordinator grants."""
    if not 0 < ttl <= MAX_TTL_SECONDS:
        raise CoordinatorRefused(f"The ttl of a lease is between 1 and {MAX_TTL_SECONDS} s.")


def check_transaction(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
    """Raises CoordinatorRefused for a transaction that no coordinator takes."""
    if len(compares) > MAX_OPERATIONS or len(writes) > MAX_OPERATIONS:
        raise CoordinatorRefused(f"A transaction has at most {MAX_OPERATIONS} comparisons and as many writes.")
    keys = {each.key for each in writes}
    if len(keys) < len(writes):
        raise CoordinatorRefused("A transaction writes each key at most once.")
    for key in (*keys, *(each.key for each in compares)):
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            raise CoordinatorRefused(f"A key has 1 to {MAX_KEY_CHARACTERS} characters.")
    if any(isinstance(each, Put) and len(each.value) > MAX_VALUE_BYTES for each in writes):
        raise CoordinatorRefused(f"A value has at most {MAX_VALUE_BYTES} bytes.")


class History:
    """The last changes, for watches. What is older than ``compacted`` is gone."""

    def __init__(self, revision: int) -> None:
        self.compacted = revision
        """The changes of this revision, and of all before it, are not kept."""
        self._changes: deque[tuple[int, tuple[Change, ...], int]] = deque()
        self._bytes = 0

    def add(self, revision: int, changes: tuple[Change, ...]) -> None:
        """Keep the changes of a new revision. The oldest give way."""
        size = sum(len(each.key) + (0 if each.value is None else len(each.value.value)) for each in changes)
        self._changes.append((revision, changes, size))
        self._bytes += size
        while len(self._changes) > MAX_CHANGES or self._bytes > MAX_CHANGES_BYTES:
            self.compact(self._changes[0][0])

    def compact(self, revision: int) -> None:
        """Forget the changes up to this revision."""
        while self._changes and self._changes[0][0] <= revision:
            self.compacted, _, size = self._changes.popleft()
            self._bytes -= size

    def after(self, revision: int, prefix: str) -> Iterator[tuple[int, tuple[Change, ...]]]:
        """The changes of keys that start with ``prefix``, revision by revision. Raises Compacted at once."""
        if revision < self.compacted:
            raise Compacted(f"The changes up to revision {self.compacted} are no longer kept.")
        return self._after(revision, prefix)

    def _after(self, revision: int, prefix: str) -> Iterator[tuple[int, tuple[Change, ...]]]:
        last = self._changes[-1][0] if self._changes else revision
        first = max(0, len(self._changes) - (last - revision))  # each revision has one entry
        for number in range(first, len(self._changes)):
            at, changes, _ = self._changes[number]
            found = tuple(each for each in changes if each.key.startswith(prefix))
            if found:
                yield at, found


class KeysAndLeases:
    """The state. ``apply`` alone changes keys and leases; the ends of leases in time are beside them."""

    def __init__(
        self, revision: int = FIRST_REVISION, keys: Iterable[KeyValue] = (), leases: Mapping[int, int] | None = None
    ) -> None:
        """``leases`` are ttls by id. Their time starts with ``start_leases``."""
        self.revision = revision
        self.keys = {each.key: each for each in keys}
        self.leases = dict(leases or {})
        self._bytes = sum(map(_size, self.keys.values()))
        self._keys_of: dict[int, set[str]] = {}
        for each in self.keys.values():
            if each.lease:
                self._keys_of.setdefault(each.lease, set()).add(each.key)
        self._ends: dict[int, float] = {}

    def copy(self) -> "KeysAndLeases":
        """A copy that changes by itself."""
        copied = KeysAndLeases(self.revision, self.keys.values(), self.leases)
        copied._ends = dict(self._ends)
        return copied

    def start_leases(self, now: float) -> None:
        """Give each lease its whole ttl from now on."""
        self._ends = {lease: now + ttl for lease, ttl in self.leases.items()}

    def prolong(self, seconds: float) -> None:
        """Let every lease end later: for this time nobody could keep them alive."""
        self._ends = {lease: end + seconds for lease, end in self._ends.items()}

    def keep_later_ends(self, other: "KeysAndLeases") -> None:
        """Let leases that were kept alive in another copy end no earlier than there."""
        self._ends = {lease: max(end, other._ends.get(lease, end)) for lease, end in self._ends.items()}

    def range(self, prefix: str) -> Snapshot:
        """The keys that start with ``prefix``."""
        return Snapshot(self.revision, {key: found for key, found in self.keys.items() if key.startswith(prefix)})

    def overdue(self, now: float) -> list[End]:
        """The leases whose time is over."""
        return [End(lease) for lease, end in self._ends.items() if end <= now]

    @property
    def next_end(self) -> float | None:
        """When the next lease is over."""
        return min(self._ends.values(), default=None)

    def grant(self, ttl: int, lease: int) -> Grant:
        """A new lease. Its id was never used before: an old client could keep alive what is not its own.

        Raises CoordinatorRefused.
        """
        check_ttl(ttl)
        if len(self.leases) >= MAX_LEASES:
            raise CoordinatorRefused(f"There are {MAX_LEASES} leases already.")
        if lease in self.leases:
            raise CoordinatorRefused("There is a lease with this id already.")
        return Grant(lease, ttl)

    def keep_alive(self, lease: int, now: float) -> int:
        """The lease's time starts anew. Returns its ttl. Raises LeaseGone."""
        self.check_lease(lease)
        ttl = self.leases[lease]
        self._ends[lease] = max(now + ttl, self._ends[lease])
        return ttl

    def time_to_live(self, lease: int, now: float) -> int:
        """For how many whole seconds the lease lives if nobody keeps it alive. Raises LeaseGone."""
        self.check_lease(lease)
        return max(0, math.floor(self._ends[lease] - now))

    def check_lease(self, lease: int) -> None:
        """Raises LeaseGone if there is no such lease."""
        if lease not in self.leases:
            raise LeaseGone(f"The lease {lease} has ended.")

    def holds(self, compare: Compare) -> bool:
        """Whether a comparison is true."""
        found = self.keys.get(compare.key)
        match compare.target:
            case CompareTarget.VALUE:
                return found is not None and found.value == compare.value
            case CompareTarget.CREATE:
                return compare.value == (0 if found is None else found.create_revision)
            case CompareTarget.MOD:
                return compare.value == (0 if found is None else found.mod_revision)

    def transaction(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Write | None:
        """The writes if all comparisons are true, else None. Raises CoordinatorRefused, LeaseGone."""
        check_transaction(compares, writes)
        if not all(map(self.holds, compares)):
            return None
        for each in writes:
            if isinstance(each, Put) and each.lease:
                self.check_lease(each.lease)
        self._check_room(writes)
        return Write(tuple(writes))

    def _check_room(self, writes: Sequence[Put | Delete]) -> None:
        new = self._bytes
        keys = len(self.keys)
        for each in writes:
            before = self.keys.get(each.key)
            new -= 0 if before is None else _size(before)
            keys += (isinstance(each, Put)) - (before is not None)
            new += len(each.key) + len(each.value) if isinstance(each, Put) else 0
        if keys > MAX_KEYS and keys > len(self.keys):
            raise CoordinatorRefused(f"There are {MAX_KEYS} keys already.")
        if new > MAX_STATE_BYTES and new > self._bytes:
            raise CoordinatorRefused(f"All keys and values together may have {MAX_STATE_BYTES} bytes.")

    def apply(self, operation: Operation, now: float) -> tuple[Change, ...]:
        """Do what was decided. The revision grows by one if a key changed. Returns the changes."""
        match operation:
            case Grant(lease, ttl):
                self.leases[lease] = ttl
                self._ends[lease] = now + ttl
                return ()
            case End(lease):
                self.leases.pop(lease, None)
                self._ends.pop(lease, None)
                return self._write([Delete(key) for key in sorted(self._keys_of.get(lease, ()))])
            case Write(writes):
                return self._write(writes)

    def _write(self, writes: Sequence[Put | Delete]) -> tuple[Change, ...]:
        revision = self.revision + 1
        changes = tuple(change for each in writes if (change := self._write_one(each, revision)) is not None)
        if changes:
            self.revision = revision
        return changes

    def _write_one(self, write: Put | Delete, revision: int) -> Change | None:
        before = self.keys.get(write.key)
        if before is not None:
            self._bytes -= _size(before)
            self._leave(before)
        if isinstance(write, Delete):
            return None if self.keys.pop(write.key, None) is None else Change(write.key, None)
        created = revision if before is None else before.create_revision
        made = self.keys[write.key] = KeyValue(write.key, write.value, created, revision, write.lease)
        self._bytes += _size(made)
        if made.lease:
            self._keys_of.setdefault(made.lease, set()).add(made.key)
        return Change(write.key, made)

    def _leave(self, key: KeyValue) -> None:
        """The key is not on its lease any more."""
        keys = self._keys_of.get(key.lease)
        if keys is not None:
            keys.discard(key.key)
            if not keys:
                del self._keys_of[key.lease]

    def result(self, write: Write | None) -> TransactionResult:
        """What a transaction answers after its ``Write`` was applied; None: a comparison was false."""
        return TransactionResult(write is not None, self.revision)


def _size(key: KeyValue) -> int:
    return len(key.key) + len(key.value)
