"""Proves that the log of another store continues an archive: that both hold the same bytes where both have any.

A store is known by its id, and a new replica has a new id. Its log may equal the old one byte for byte. Then the
archived ranges have the same hashes. A manifest has a hash for each of its ranges of the log. If it has none (because
it is older), or if the log holds only a part of a range, the archived messages are compared with those of the log.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.decode import decode
from rmqha.pipeline.jobs.engine import Engine
from rmqha.pipeline.jobs.logorder import batches_in_log_order
from rmqha.pipeline.jobs.manifest import Archive, Manifest, WrongArchive, archived_path
from rmqha.pipeline.plan import LogPlan
from rmqha.pipeline.schema import COLUMNS, records_schema
from rmqha.pipeline.segments import open_segment, read_records
from rmqha.store.errors import CorruptLogError
from rmqha.store.log.splits import Split
from rmqha.store.nodestate import NodeState

WINDOW_BYTES = 4 << 20
ROWS_BYTES = 8 << 20
NEEDED_COLUMNS = ("physicalOffset", "bodyCRC")
"""With these columns the messages of an archive can be distinguished."""
NOT_COMPARED = ("body",)
"""An archive may hold a body decompressed. Then its CRC is compared, and the log's body is checked against that."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an archive says about the log from ``start`` to ``end``: the hash of its bytes, and the file of its
    messages.

    Without a hash only the messages are compared.
    """

    start: int
    end: int
    sha256: str | None
    path: Path | None

    def within(self, low: int, high: int) -> "Claim | None":
        """The part of the claim between two offsets; None if there is none, or if it could not be compared."""
        start, end = max(self.start, low), min(self.end, high)
        is_whole = (start, end) == (self.start, self.end)
        digest = self.sha256 if is_whole else None
        return Claim(start, end, digest, self.path) if start < end and (digest or self.path) else None


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a comparison: the first offset that differs, None if there is none; or why they cannot be
    compared.
    """

    differs_at: int | None = None
    what: str = ""
    unproved: str | None = None


def claims_of(root: Path, manifest: Manifest) -> Iterator[Claim]:
    """The claims of a manifest. Raises ArchiveError, OSError."""
    paths = {}
    for file in manifest.files:
        path = archived_path(root, file)
        paths.update(dict.fromkeys(file.ranges, path))
    hashes = {(one.start, one.end): one.sha256 for one in manifest.hashes}
    for whole in sorted(paths.keys() | hashes.keys()):
        yield Claim(*whole, hashes.get(whole), paths.get(whole))


def check_claim(split: Split, claims: dict[int, Claim], must_prove: bool) -> Found:
    """Compare the archived content of a split with the log. Raises StoreError, OSError."""
    claim = claims[split.start]
    if claim.sha256 is not None and _hash_of(split) == claim.sha256:
        return Found()
    found = Found() if claim.path is None else _compare_rows(split, claim.path, must_prove and claim.sha256 is None)
    if found.differs_at is None and claim.sha256 is not None:
        return Found(split.start, f"or after it, before {split.end}")
    return found


def _hash_of(split: Split) -> str:
    """The hash of the log's bytes; of fewer bytes if the file is shorter. Raises DataLossError, OSError."""
    digest = sha256()
    with open_segment(split.path, split.base) as segment:
        for at in range(split.start, split.end, WINDOW_BYTES):
            digest.update(segment.read(at, min(WINDOW_BYTES, split.end - at)).data)
    return digest.hexdigest()


class _Rows:
    """The rows of an archived file, in order, that start in a range of the log."""

    def __init__(self, file: pq.ParquetFile, names: Sequence[str], split: Split) -> None:
        self._batches = batches_in_log_order(file, names, ROWS_BYTES)
        self._split = split
        self._schema = pa.schema([file.schema_arrow.field(name) for name in names])
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0

    def take(self, count: int) -> pa.Table:
        """The next ``count`` rows, fewer at the end."""
        while self._rows < count and (batch := next(self._batches, None)) is not None:
            offsets = batch["physicalOffset"].to_numpy()
            batch = batch.filter(pa.array((offsets >= self._split.start) & (offsets < self._split.end)))
            self._pending.append(batch)
            self._rows += len(batch)
        table = pa.Table.from_batches(self._pending, self._schema)
        taken, rest = table.slice(0, count), table.slice(count)
        self._pending, self._rows = rest.to_batches(), len(rest)
        return taken


def _compare_rows(split: Split, path: Path, must_prove: bool) -> Found:
    """The first offset at which the log's messages differ from the archived ones, or why this cannot be decided."""
    with pq.ParquetFile(path) as file:
        names = _compared_columns(file.schema_arrow)
        if not set(NEEDED_COLUMNS) <= set(names):
            why = f"{path} has neither a hash of the log nor the columns {' and '.join(NEEDED_COLUMNS)}"
            return Found(unproved=why if must_prove else None)
        archived = _Rows(file, names, split)
        schema = records_schema(names)
        try:
            for records in read_records(split, WINDOW_BYTES, verify_body=True):
                logged = pa.Table.from_batches([decode(records, schema)])
                found = _first_difference(logged, archived.take(len(logged)).cast(schema))
                if found is not None:
                    return found
        except CorruptLogError as error:
            return Found(error.offset, error.reason)
        left = archived.take(1)
        return Found(left["physicalOffset"][0].as_py(), "the log has no such message") if len(left) else Found()


def _compared_columns(archived: pa.Schema) -> list[str]:
    """The archived columns that the log can provide unchanged."""
    return [
        name
        for name, kind in COLUMNS.items()
        if name not in NOT_COMPARED and name in archived.names and archived.field(name).type == kind
    ]


def _first_difference(logged: pa.Table, archived: pa.Table) -> Found | None:
    if logged.equals(archived):
        return None
    for ours, theirs in zip(logged.to_pylist(), archived.to_pylist(), strict=False):
        if ours != theirs:
            names = [name for name in ours if ours[name] != theirs[name]]
            return Found(min(ours["physicalOffset"], theirs["physicalOffset"]), f"in {', '.join(names)}")
    return Found(logged["physicalOffset"][len(archived)].as_py(), "the archive has no such message")


class Proof:
    """Proves that an archive belongs to a store's log. ``plan`` opens the log, and is called only if a proof needs it.

    A range is proved once, unless the log of another store is archived in between.
    """

    def __init__(
        self,
        archive: Archive,
        state: NodeState | None,
        plan: Callable[[], LogPlan],
        engine: Engine,
        bar: IBar = NO_BAR,
    ) -> None:
        self.proved: list[tuple[int, int]] = []
        """The compared ranges of the log, in the form of the manifests."""
        self._archive = archive
        self._state = state
        self._plan = plan
        self._engine = engine
        self._bar = bar
        self._done: set[tuple[int, int]] = set()

    def pending(self) -> list[Manifest]:
        """The claims that are not proved yet. Raises ArchiveError, OSError."""
        strangers = self._archive.strangers(self._state)
        return [manifest for manifest in strangers if (manifest.start, manifest.end) not in self._done]

    def prove(self) -> None:
        """Prove all pending claims. Raises WrongArchive with the first difference; StoreError, OSError."""
        pending = self.pending()
        if not pending:
            return
        self._prove(pending, self._plan())
        self._done |= {(manifest.start, manifest.end) for manifest in pending}

    def _prove(self, pending: Sequence[Manifest], plan: LogPlan) -> None:
        root, reached = self._archive.root, self._archive.covered()[-1][1]
        whose = f"{root} is the archive of store {pending[0].store_id} up to {reached}"
        ours = f"the log of store {None if self._state is None else self._state.store_id}"
        is_nameless = self._state is None and pending[0].store_id is None
        if reached < plan.min_offset and not is_nameless:
            raise WrongArchive(f"{whose}; {ours} starts at {plan.min_offset}: the messages between would be missing")
        claims = [
            within
            for manifest in pending
            for claim in claims_of(root, manifest)
            if (within := claim.within(plan.min_offset, plan.end)) is not None
        ]
        if not claims and plan.end > reached and not is_nameless:
            raise WrongArchive(
                f"{whose}; {ours} has no bytes of that range, so it cannot be proved to continue it: archive to a new "
                "folder"
            )
        claims.sort(key=lambda claim: claim.start)
        splits = [_split_of(plan, claim, whose, ours) for claim in claims]
        on_split = partial(check_claim, claims={claim.start: claim for claim in claims}, must_prove=not is_nameless)
        for found in self._engine.run(on_split, splits, self._bar):
            if found.unproved is not None:
                raise WrongArchive(
                    f"{whose}; {ours} cannot be proved to be the same, because {found.unproved}: "
                    "archive to a new folder"
                )
            if found.differs_at is not None:
                raise WrongArchive(
                    f"{whose}; {ours} differs from it at {found.differs_at} ({found.what}): archive to a new folder"
                )
        self.proved += [(claim.start, claim.end) for claim in claims]


def _split_of(plan: LogPlan, claim: Claim, whose: str, ours: str) -> Split:
    for file in plan.files:
        if file.base <= claim.start and claim.end <= file.end:
            return file.split(claim.start, claim.end)
    raise WrongArchive(f"{whose}; {ours} has segments of another size: archive to a new folder")
