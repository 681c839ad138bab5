"""`make bench-spark`: the log as data, ours against what one does without rmqha, in one run.

Two logs of 1 GiB, of messages of 1 KiB and of 100 B, warm in the page cache; one Spark session of local[2]. The other
sides are ``sc.binaryFiles`` with a parser in Python (which needs segments that fit into memory, so that these have
256 MiB, and a great heap), of all columns and of seven; Spark's own Parquet writer behind our source; and a script of
one process that decodes as we do and writes Parquet with pyarrow, without manifests, fsync or a JVM. Where a run has a
result, both sides must come to the same. Rounds alternate; of each side the median counts. A worker's memory is the
most that was resident of one.
"""

import argparse
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from socket import inet_ntoa
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from rmqha.pipeline.decode import decode
from rmqha.pipeline.jobs import archive as archiving
from rmqha.pipeline.jobs.engine import Engine, LocalEngine, SparkEngine
from rmqha.pipeline.jobs.rebuild import rebuild
from rmqha.pipeline.jobs.verify import verify
from rmqha.pipeline.options import Options, parse_options
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.schema import records_schema
from rmqha.pipeline.segments import read_records
from rmqha.pipeline.session import session
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.testing.records import lay_segments, make_record, write_segments
from rmqha.wire.record import MESSAGE_MAGIC_CODE, Record

WORK = Path(__file__).resolve().parent.parent / ".bench" / "spark"
LOG_BYTES, SEGMENT_BYTES = 1 << 30, 256 << 20
BODY_SIZES = (1024, 100)
TOPICS, BODIES = 8, 4096
ROUNDS = 3
CORES = 2
MASTER, HEAP = f"local[{CORES}]", "6g"
CONF = {"spark.driver.memory": HEAP, "spark.log.level": "ERROR"}
GOAL_VERIFY_GB, VERIFIED_BODY_BYTES = 0.8, 1024
MEMORY_BATCHES_MIB = (4, 16, 64)
HEADER = ">iiiiiqqiq4siq4siiqi"
HEADER_BYTES = struct.calcsize(HEADER)
PARSED_SCHEMA = (
    "topic string, queueId int, queueOffset bigint, physicalOffset bigint, totalSize int, flag int, sysFlag int, "
    "bodyCRC int, bornTimestamp bigint, bornHost string, storeTimestamp bigint, storeHost string, reconsumeTimes int, "
    "preparedTransactionOffset bigint, tags string, keys string, properties string, body binary"
)
FEW_SCHEMA = (
    "topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeTimestamp bigint, properties string, "
    "body binary"
)


def write_benchmark_log(store: Path, body_bytes: int) -> None:
    """A slave's store: a log of words, which can be compressed as text can, of eight topics with four queues each."""
    rng = Random(body_bytes)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 9))) for _ in range(2000)]
    bodies = [b" ".join(rng.choices(words, k=body_bytes // 4 + 1))[:body_bytes] for _ in range(BODIES)]

    def make(number: int, offset: int) -> Record:
        record = make_record(number, bodies[number % BODIES], f"Topic{number // 4 % TOPICS}", offset)
        return replace(record, queue_offset=number // 4 // TOPICS)

    write_segments(store / "commitlog", lay_segments(make, LOG_BYTES, SEGMENT_BYTES), SEGMENT_BYTES)
    end = open_log(parse_options({"path": str(store)})).end
    replace(NodeState.new(), offsets=Offsets(0, end, end, end, end)).write(store)


def heads(segment: bytes) -> Iterator[tuple[tuple[Any, ...], str, str, bytes]]:
    """What one writes to read a segment without rmqha: each record's header, topic, properties and body."""
    at = 0
    while at + HEADER_BYTES < len(segment):
        fields = struct.unpack_from(HEADER, segment, at)
        if fields[1] != MESSAGE_MAGIC_CODE:
            break
        body_at = at + HEADER_BYTES
        topic_at = body_at + fields[-1] + 1
        properties_at = topic_at + segment[topic_at - 1] + 2
        end = at + fields[0]
        topic, properties = segment[topic_at : properties_at - 2].decode(), segment[properties_at:end].decode()
        yield fields, topic, properties, segment[body_at : topic_at - 1]
        at = end


def few_columns(segment: bytes) -> Iterator[tuple[Any, ...]]:
    """Seven columns."""
    for fields, topic, properties, body in heads(segment):
        yield topic, fields[3], fields[5], fields[6], fields[11], properties, body


def all_columns(segment: bytes) -> Iterator[tuple[Any, ...]]:
    """All that our source gives; times as numbers, which Spark turns into times."""
    for fields, topic, properties, body in heads(segment):
        size, _, crc, queue, flag, queue_offset, offset, sys_flag, born, address, port, stored, *rest = fields
        store_address, store_port, times, prepared, _ = rest
        found = dict(pair.split("\1", 1) for pair in properties.split("\2") if pair)
        born_host, store_host = f"{inet_ntoa(address)}:{port}", f"{inet_ntoa(store_address)}:{store_port}"
        yield (
            *(topic, queue, queue_offset, offset, size, flag, sys_flag, crc, born, born_host, stored, store_host),
            *(times, prepared, found.get("TAGS"), found.get("KEYS"), properties, body),
        )


@dataclass(frozen=True)
class Bench:
    """What is done with one log, by us and without us; what the two sides return must be equal."""

    spark: SparkSession
    store: Path

    @property
    def lake(self) -> Path:
        """A folder to write to."""
        return WORK / "lake"

    def options(self, **more: object) -> Options:
        """The options of a job."""
        return parse_options({"path": str(self.store), **{name: str(value) for name, value in more.items()}})

    def read(self, **options: str) -> DataFrame:
        """Our source."""
        return self.spark.read.format("rmqha").options(**options).load(str(self.store))

    def parsed(self, parse: Callable[[bytes], Iterator[tuple[Any, ...]]]) -> "RDD[tuple[Any, ...]]":
        """The other side's rows."""
        files = self.spark.sparkContext.binaryFiles(str(self.store / "commitlog"), CORES)
        return files.flatMap(lambda file: parse(file[1]))

    def all_columns(self) -> None:
        """Every column of every message into the sink that drops it."""
        drop(self.read())

    def all_columns_parsed(self) -> None:
        """The same."""
        frame = self.spark.createDataFrame(self.parsed(all_columns), PARSED_SCHEMA)
        drop(frame.withColumns({name: sql.timestamp_millis(name) for name in ("bornTimestamp", "storeTimestamp")}))

    def few_columns_parsed(self) -> None:
        """Seven columns, rather."""
        drop(self.spark.createDataFrame(self.parsed(few_columns), FEW_SCHEMA))

    def topic_count(self) -> dict[str, int]:
        """Messages by topic, of rows of topics."""
        return counts(self.read(columns="topic").groupBy("topic").count())

    def topic_stats(self) -> dict[str, int]:
        """Messages by topic, counted by the workers."""
        return counts(self.read(view="stats").groupBy("topic").agg(sql.sum("messages")))

    def topic_count_parsed(self) -> dict[str, int]:
        """Messages by topic, by the same query."""
        return counts(self.spark.createDataFrame(self.parsed(few_columns), FEW_SCHEMA).groupBy("topic").count())

    def topic_count_by_hand(self) -> dict[str, int]:
        """Messages by topic, counted by the workers."""
        return dict(self.parsed(few_columns).map(lambda row: row[0]).countByValue())

    def archive(self, engine: Engine, compression: str = "zstd") -> int:
        """Our archive; how many messages it has."""
        return archiving.archive(self.options(output=self.lake, compression=compression), engine).messages

    def script(self) -> int:
        """The plain script: a Parquet file for each segment."""
        schema, rows = records_schema(), 0
        dictionary = [name for name in schema.names if name not in archiving.PLAIN_COLUMNS]
        self.lake.mkdir()
        plan = open_log(self.options())
        for number, piece in enumerate(plan.pieces(plan.min_offset, plan.end)):
            path = self.lake / f"{number}.parquet"
            with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=dictionary) as writer:
                for records in read_records(piece, archiving.ROW_GROUP_BYTES):
                    writer.write_batch(decode(records, schema))
                    rows += len(records)
        return rows

    def spark_parquet(self, compression: str) -> None:
        """Spark's own writer."""
        self.read().write.parquet(str(self.lake), compression=compression)

    def verify(self, engine: Engine) -> int:
        """Prove every record; how many there are."""
        found = verify(self.options(), engine)
        if found.stretches:
            raise SystemExit(f"{self.store} is not sound: {found.problem}")
        return found.messages

    def rebuild(self, engine: Engine) -> int:
        """Queues and index, elsewhere; of how many messages."""
        return rebuild(self.options(output=self.lake), engine).messages


Work = Callable[[Bench], object]


def drop(frame: DataFrame) -> None:
    """Make every row, for nobody."""
    frame.write.format("noop").mode("overwrite").save()


def counts(frame: DataFrame) -> dict[str, int]:
    """Rows of a name and a number."""
    return {row[0]: row[1] for row in frame.collect()}


def by_spark(work: Callable[[Bench, Engine], object]) -> Work:
    """A job with a task for each split."""
    return lambda bench: work(bench, SparkEngine(bench.spark))


def by_one_process(work: Callable[[Bench, Engine], object]) -> Work:
    """A job in this process."""
    return lambda bench: work(bench, LocalEngine())


RUNS: dict[str, Work] = {
    "all columns": Bench.all_columns,
    "all columns, binaryFiles": Bench.all_columns_parsed,
    "7 columns, binaryFiles": Bench.few_columns_parsed,
    "count by topic": Bench.topic_count,
    "count by topic, view=stats": Bench.topic_stats,
    "count by topic, binaryFiles": Bench.topic_count_parsed,
    "countByValue, binaryFiles": Bench.topic_count_by_hand,
    "archive": by_spark(Bench.archive),
    "archive, --engine=local": by_one_process(Bench.archive),
    "plain pyarrow script": Bench.script,
    "df.write.parquet": partial(Bench.spark_parquet, compression="zstd"),
    "archive, snappy": by_spark(partial(Bench.archive, compression="snappy")),
    "df.write.parquet, snappy": partial(Bench.spark_parquet, compression="snappy"),
    "verify": by_spark(Bench.verify),
    "verify, --engine=local": by_one_process(Bench.verify),
    "rebuild": by_spark(Bench.rebuild),
    "rebuild, --engine=local": by_one_process(Bench.rebuild),
}
GOALS = (
    ("all columns", "all columns, binaryFiles", 4.0),
    ("all columns", "7 columns, binaryFiles", 4.0),
    ("count by topic", "count by topic, binaryFiles", 5.0),
    ("count by topic", "countByValue, binaryFiles", 5.0),
    ("archive", "plain pyarrow script", 1 / 1.1),
    ("archive", "df.write.parquet", 2.5),
    ("archive, snappy", "df.write.parquet, snappy", 2.5),
)
"""How many times as fast as which other run one is to be."""
SAME_RESULT = (
    ("count by topic", "count by topic, binaryFiles"),
    ("count by topic", "countByValue, binaryFiles"),
    ("count by topic", "count by topic, view=stats"),
    ("archive", "plain pyarrow script"),
    ("archive", "verify"),
    ("archive", "rebuild"),
)


def measure(bench: Bench, rounds: int) -> dict[str, float]:
    """Seconds of each run, the median of all rounds; one more before them warms everything up."""
    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    for number in range(rounds + 1):
        results = {}
        for name, work in RUNS.items():
            started = time.perf_counter()
            results[name] = work(bench)
            if number:
                seconds[name].append(time.perf_counter() - started)
            shutil.rmtree(bench.lake, ignore_errors=True)
        for one, other in SAME_RESULT:
            if results[one] != results[other]:
                raise SystemExit(f"{one}: {results[one]}, {other}: {results[other]}")
    return {name: median(values) for name, values in seconds.items()}


def tell(seconds: dict[str, float], log_bytes: int, body_bytes: int) -> None:
    """The lines of one log."""
    print(f"\n{log_bytes / 1e9:.2f} GB of messages of {body_bytes} B\n  {'':<32} {'s':>8} {'GB/s':>6}")
    for name, took in seconds.items():
        print(f"  {name:<32} {took:>8.2f} {log_bytes / took / 1e9:>6.2f}", flush=True)
    for ours, other, goal in GOALS:
        ratio = seconds[other] / seconds[ours]
        met = "" if ratio >= goal else "  missed"
        print(f"  {ours} against {other}: {ratio:.2f} times as fast, goal >= {goal:.2f}{met}")
    if body_bytes == VERIFIED_BODY_BYTES:
        rate = log_bytes / seconds["verify"] / 1e9
        print(f"  verify: {rate:.2f} GB/s, goal >= {GOAL_VERIFY_GB}{'' if rate >= GOAL_VERIFY_GB else '  missed'}")


def peak_memory_of_workers() -> float:
    """The most MiB that were resident of one of the Python processes below this one's JVM."""
    listing = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    peaks = []
    for line in listing.splitlines():
        pid, _, command = line.strip().partition(" ")
        if "pyspark.daemon" in command and str(os.getpid()) in ancestors(pid):
            status = Path(f"/proc/{pid}/status").read_text()
            peaks += [int(row.split()[1]) / 1024 for row in status.splitlines() if row.startswith("VmHWM:")]
    return max(peaks)


def ancestors(pid: str) -> Iterator[str]:
    """Its parent, that one's parent and so on."""
    while pid != "0":
        pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        yield pid


def tell_memory(store: Path) -> None:
    """The line of each batchBytes, measured with workers that have done nothing else."""
    for batch in MEMORY_BATCHES_MIB:
        spark = session(MASTER, CONF)
        drop(Bench(spark, store).read(batchBytes=f"{batch}m"))
        peak, goal = peak_memory_of_workers(), 150 + 8 * batch
        spark.stop()
        print(f"  batchBytes={batch}m: {peak:.0f} MiB a worker, goal <= {goal}{'' if peak <= goal else '  missed'}")


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each side")
    parser.add_argument("--body", type=int, nargs="*", default=BODY_SIZES, help="bytes of a message's body")
    parser.add_argument("--keep", action="store_true", help="keep the logs in .bench/spark for the next run")
    arguments = parser.parse_args()
    stores = {body_bytes: WORK / f"{body_bytes}" for body_bytes in arguments.body}
    make_logs(stores)
    print(f"{os.cpu_count()} cores, median of {arguments.rounds} alternating rounds, Spark is {MASTER}, heap {HEAP}")
    for body_bytes, store in stores.items():
        print(f"\nmemory, messages of {body_bytes} B")
        tell_memory(store)
    spark = session(MASTER, CONF)
    for body_bytes, store in stores.items():
        tell(
            measure(Bench(spark, store), arguments.rounds),
            open_log(parse_options({"path": str(store)})).end,
            body_bytes,
        )
    spark.stop()
    if not arguments.keep:
        shutil.rmtree(WORK)


def make_logs(stores: dict[int, Path]) -> None:
    """Those that are not there yet."""
    shutil.rmtree(WORK / "lake", ignore_errors=True)
    missing = {body_bytes: store for body_bytes, store in stores.items() if not store.exists()}
    with ProcessPoolExecutor(CORES) as pool:
        parts = [store.with_suffix(".part") for store in missing.values()]
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
        list(pool.map(write_benchmark_log, parts, missing))
        for part in parts:
            part.rename(part.with_suffix(""))


if __name__ == "__main__":
    main()
