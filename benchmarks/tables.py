"""What a version of a table costs: ``python -m benchmarks.tables``.

Three archives of one log take turns: plain Parquet files, a table of Delta and one of Iceberg. A version is what a
batch of a stream commits: its manifest, and the same file in the table's log. The files are staged before, which is
the same work for all three. The median of the last ten versions counts: a version costs more the more there are.
Processor time is that of this process with its threads, and holds on a machine that others use, too.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from rmqha.pipeline.jobs.archive import archive_split, archived_columns, merge_archived
from rmqha.pipeline.jobs.manifest import Archive, Manifest
from rmqha.pipeline.jobs.tableformats import add_to_tables, begin_table
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.options import Options, parse_options
from rmqha.pipeline.plan import open_log
from rmqha.store.log.splits import Split
from rmqha.testing.records import write_log

BODY_BYTES = 1024
SPLIT_BYTES = 64 << 10
SEGMENT_BYTES = 1 << 20
COUNTED = 10
"""The last versions, whose median counts."""
Costs = tuple[float, float]
"""Seconds of the processor, and of the clock."""


def timed_version(archive: Archive, manifest: Manifest) -> Costs:
    """Commit a manifest to an archive and to the table that it may be."""
    clock, processor = time.perf_counter(), time.process_time()
    with archive.locked():
        archive.commit(manifest, {})
        add_to_tables(archive, manifest)
    return time.process_time() - processor, time.perf_counter() - clock


def measure(work: Path, versions: int) -> dict[TableFormat, list[Costs]]:
    """The costs of each version of each archive."""
    write_log(work / "store" / "commitlog", (versions + 1) * SPLIT_BYTES, BODY_BYTES, SEGMENT_BYTES)
    options = parse_options({"path": str(work / "store"), "splitBytes": str(SPLIT_BYTES)})
    log = open_log(options)
    splits = list(log.splits(log.start(), log.stop()))[:versions]
    costs: dict[TableFormat, list[Costs]] = {kind: [] for kind in TableFormat}
    order = list(TableFormat)
    for kind in order:
        (work / kind.value).mkdir()
        begin_table(work / kind.value, kind, archived_columns(options))
    for split in splits:
        for kind in order:
            costs[kind].append(_version(Archive(work / kind.value), split, options))
        order.append(order.pop(0))
    return costs


def _version(archive: Archive, split: Split, options: Options) -> Costs:
    staged = archive_split(split, str(archive.root), options)
    return timed_version(archive, merge_archived(split.start, split.end, [staged], None))


def main() -> None:
    """The table, a line for each kind of archive."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--versions", type=int, default=100, help="how many versions each table gets")
    versions = parser.parse_args().versions
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(Path(folder), versions)
    print(f"seconds a version, median of the first {COUNTED} and of the last {COUNTED} of {versions}")
    print(f"{'':8}   processor   first    last      wall   first    last")
    for kind, found in costs.items():
        cells = [median(one[side] for one in part) for side in (0, 1) for part in (found[:COUNTED], found[-COUNTED:])]
        print(f"{kind.value:8}{cells[0]:20.3f}{cells[1]:8.3f}{cells[2]:18.3f}{cells[3]:8.3f}")


if __name__ == "__main__":
    main()
