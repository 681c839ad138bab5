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
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from socket import inet_ntoa
from statistics import median
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.processor import tree_seconds
from benchmarks.resultfile import JSON_HELP, save
from benchmarks.sparknetwork import NetworkBench, drop
from rmqha.pipeline.aggregate import in_workers
from rmqha.pipeline.decode import decode
from rmqha.pipeline.jobs import archive as archiving
from rmqha.pipeline.jobs.compact import compact
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
from rmqha.wire.layout import MESSAGE_MAGIC_CODE
from rmqha.wire.record import Record

WORK = Path(__file__).resolve().parent.parent / ".bench" / "spark"
LOG_BYTES, SEGMENT_BYTES = 1 << 30, 256 << 20
BODY_SIZES = (1024, 100)
TOPICS, BODIES = 8, 4096
ROUNDS = 3
CORES = 2
MASTER, HEAP = f"local[{CORES}]", "6g"
CONF = {"spark.driver.memory": HEAP, "spark.log.level": "ERROR"}
COMPACT, GOAL_COMPACT_MB, SMALL_FILE = "compact", 200, "4m"
PAGE_BYTES = 1 << 20
"""Of a Parquet file, unless it is said otherwise."""
GOAL_VERIFY_GB, VERIFIED_BODY_BYTES = 0.8, 1024
MEMORY_BATCHES_MIB = (4, 16, 64)
HEADER = ">iiiiiqqiq4siq4siiqi"
HEADER_BYTES = struct.calcsize(HEADER)
PARSED_SCHEMA = (
    "topic string, queueId int, queueOffset bigint, physicalOffset bigint, totalSize int, flag int, sysFlag int, "
    "bodyCRC int, bornTimestamp bigint, bornHost string, storeTimestamp bigint, storeHost string, reconsumeTimes int, "
    "preparedTransactionOffset bigint, tags string, keys string, properties string, body binary"
)
FEW_COLUMNS = "topic,queueId,queueOffset,physicalOffset,storeTimestamp,properties,body"
FEW_SCHEMA = (
    "topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeTimestamp bigint, properties string, "
    "body binary"
)


def write_benchmark_log(store: Path, body_bytes: int, log_bytes: int = LOG_BYTES) -> None:
    """A slave's store: a log of words, which can be compressed as text can, of eight topics with four queues each."""
    rng = Random(body_bytes)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 9))) for _ in range(2000)]
    bodies = [b" ".join(rng.choices(words, k=body_bytes // 4 + 1))[:body_bytes] for _ in range(BODIES)]

    def make(number: int, offset: int) -> Record:
        record = make_record(number, bodies[number % BODIES], f"Topic{number // 4 % TOPICS}", offset)
        return replace(record, queue_offset=number // 4 // TOPICS)

    write_segments(store / "commitlog", lay_segments(make, log_bytes, SEGMENT_BYTES), SEGMENT_BYTES)
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
        return self.spark.read.format("rmqha").options(properties="raw", **options).load(str(self.store))

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

    def few_columns(self) -> None:
        """Seven columns."""
        drop(self.read(columns=FEW_COLUMNS))

    def few_columns_parsed(self) -> None:
        """The same, times as numbers."""
        drop(self.spark.createDataFrame(self.parsed(few_columns), FEW_SCHEMA))

    def check_few_columns(self) -> None:
        """Raises SystemExit unless both sides have the same seven columns of every message."""
        theirs = self.spark.createDataFrame(self.parsed(few_columns), FEW_SCHEMA)
        stored = sql.timestamp_millis("storeTimestamp")
        ours = digest(self.read(columns=FEW_COLUMNS))
        if ours != digest(theirs.withColumn("storeTimestamp", stored)):
            raise SystemExit("the two sides do not read the same seven columns")

    def topic_count(self) -> dict[str, int]:
        """Messages by topic, of rows of topics."""
        return counts(self.read(columns="topic").groupBy("topic").count())

    def topic_count_in_workers(self) -> dict[str, int]:
        """Messages by topic, by SQL that has the workers count."""
        self.read().createOrReplaceTempView("log")
        return counts(in_workers(self.spark.sql("SELECT topic, count(*) FROM log GROUP BY topic")))

    def topic_stats(self) -> dict[str, int]:
        """Messages by topic, from sums of all kinds by topic and queue."""
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
Pair = TypeVar("Pair", tuple[str, str], tuple[str, str, float])


def digest(frame: DataFrame) -> tuple[Any, ...]:
    """How many rows there are, and the sum of their hashes."""
    row = frame.agg(sql.count("*"), sql.sum(sql.xxhash64(*frame.columns).cast("decimal(38,0)"))).first()
    assert row is not None
    return tuple(row)


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
    "7 columns": Bench.few_columns,
    "7 columns, binaryFiles": Bench.few_columns_parsed,
    "count by topic": Bench.topic_count,
    "count by topic, in_workers": Bench.topic_count_in_workers,
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
    ("7 columns", "7 columns, binaryFiles", 4.0),
    ("count by topic", "count by topic, binaryFiles", 5.0),
    ("count by topic, in_workers", "countByValue, binaryFiles", 5.0),
    ("archive", "plain pyarrow script", 1 / 1.1),
    ("archive", "df.write.parquet", 2.5),
    ("archive, snappy", "df.write.parquet, snappy", 2.5),
)
"""How many times as fast as which other run one is to be."""
SAME_RESULT = (
    ("count by topic", "count by topic, binaryFiles"),
    ("count by topic", "countByValue, binaryFiles"),
    ("count by topic", "count by topic, in_workers"),
    ("count by topic", "count by topic, view=stats"),
    ("archive", "plain pyarrow script"),
    ("archive", "verify"),
    ("archive", "rebuild"),
)


@dataclass(frozen=True)
class Took:
    """Of each round of a run: seconds, and processor seconds of the JVM, the workers and this process."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def measure(bench: Bench, rounds: int, runs: Collection[str]) -> dict[str, Took]:
    """What each of these runs took; one more round before the others warms everything up."""
    took = {name: Took() for name in RUNS if name in runs}
    for number in range(rounds + 1):
        results = {}
        for name in took:
            started, used = time.perf_counter(), tree_seconds(os.getpid())
            results[name] = RUNS[name](bench)
            if number:
                took[name].seconds.append(time.perf_counter() - started)
                took[name].processor.append(tree_seconds(os.getpid()) - used)
            shutil.rmtree(bench.lake, ignore_errors=True)
        for one, other in among(took, SAME_RESULT):
            if results[one] != results[other]:
                raise SystemExit(f"{one}: {results[one]}, {other}: {results[other]}")
    return took


def among(runs: Collection[str], pairs: Iterable[Pair]) -> list[Pair]:
    """Those that compare two of the runs."""
    return [pair for pair in pairs if pair[0] in runs and pair[1] in runs]


def tell(found: dict[str, Took], log_bytes: int, messages: int, body_bytes: int) -> None:
    """The lines of one log."""
    seconds = {name: median(took.seconds) for name, took in found.items()}
    print(f"\n{log_bytes / 1e9:.2f} GB of messages of {body_bytes} B; µs: processor time a message")
    print(f"  {'':<32} {'s':>8} {'GB/s':>6} {'µs':>6}")
    for name, took in seconds.items():
        used = median(found[name].processor) / messages * 1e6
        print(f"  {name:<32} {took:>8.2f} {log_bytes / took / 1e9:>6.2f} {used:>6.2f}", flush=True)
    for ours, other, goal in among(found, GOALS):
        ratio = seconds[other] / seconds[ours]
        used = median(found[other].processor) / median(found[ours].processor)
        met = "" if ratio >= goal else "  missed"
        print(
            f"  {ours} against {other}: {ratio:.2f} times as fast, goal >= {goal:.2f}{met}; "
            f"{used:.2f} times less processor time"
        )
    if body_bytes == VERIFIED_BODY_BYTES and "verify" in found:
        rate = log_bytes / seconds["verify"] / 1e9
        print(f"  verify: {rate:.2f} GB/s, goal >= {GOAL_VERIFY_GB}{'' if rate >= GOAL_VERIFY_GB else '  missed'}")


def tell_compaction(bench: Bench) -> None:
    """The lines of the job ``compact``, on archives of small files, which are made before. Spark's workers start in the
    first turn.
    """
    for name, engine in ((COMPACT, SparkEngine(bench.spark)), (f"{COMPACT}, --engine=local", LocalEngine())):
        for turn in ("first", "second"):
            archiving.archive(bench.options(output=bench.lake, splitBytes=SMALL_FILE), LocalEngine())
            done = compact(bench.lake, engine)
            shutil.rmtree(bench.lake)
            rate = done.log_bytes / done.seconds / 1e6
            goal = f"goal >= {GOAL_COMPACT_MB}{'' if rate >= GOAL_COMPACT_MB else '  missed'}"
            print(
                f"  {name}, {turn} turn: {done.files_before} files to {done.files_after}, {rate:.0f} MB/s, {goal}; "
                f"{done.processor_seconds:.1f} s of processor time in {done.seconds:.1f} s"
            )
    print(f"  zstd alone compresses these bodies at {zstd_rate(bench):.0f} MB/s")


def zstd_rate(bench: Bench) -> float:
    """Megabytes a second of processor time that one processor compresses, as the job does: what no job can beat."""
    data = Path(open_log(bench.options()).files[0].path).read_bytes()
    codec = pa.Codec("zstd")
    started = time.process_time()
    for at in range(0, len(data), PAGE_BYTES):
        codec.compress(data[at : at + PAGE_BYTES])
    return len(data) / (time.process_time() - started) / 1e6


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
    parser.add_argument(
        "--runs",
        nargs="+",
        choices=(*RUNS, COMPACT),
        metavar="RUN",
        help=f"only these runs of the jobs, without memory: {', '.join((*RUNS, COMPACT))}",
    )
    parser.add_argument("--body", type=int, nargs="*", default=BODY_SIZES, help="bytes of a message's body")
    parser.add_argument("--keep", action="store_true", help="keep the logs in .bench/spark for the next run")
    parser.add_argument("--json", type=Path, help=JSON_HELP)
    parser.add_argument("--only", choices=["jobs", "network"], help="one part: our source and jobs, or the network")
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = {}
    if arguments.only != "network":
        figures |= measure_jobs(arguments.rounds, arguments.body, arguments.runs)
    if arguments.only != "jobs" and arguments.runs is None:
        network = NetworkBench(WORK / "network", arguments.rounds, write_benchmark_log)
        figures |= network.tell(lambda master: session(master, CONF))
    if arguments.json is not None:
        save(arguments.json, figures)
    if not arguments.keep:
        shutil.rmtree(WORK)


def measure_jobs(rounds: int, body_sizes: list[int], chosen: list[str] | None) -> dict[str, list[float]]:
    """Our source and jobs against others, and the job ``compact``; or only the ``chosen`` ones."""
    stores = {body_bytes: WORK / f"{body_bytes}" for body_bytes in body_sizes}
    make_logs(stores)
    print(
        f"{os.cpu_count()} cores, median of {rounds} alternating rounds, Spark is {MASTER}, heap {HEAP}; "
        f"load of the machine {os.getloadavg()[0]:.1f}"
    )
    for body_bytes, store in stores.items() if chosen is None else ():
        print(f"\nmemory, messages of {body_bytes} B")
        tell_memory(store)
    spark = session(MASTER, CONF)
    figures: dict[str, list[float]] = {}
    for body_bytes, store in stores.items():
        bench = Bench(spark, store)
        runs = chosen or list(RUNS)
        if "7 columns" in runs:
            bench.check_few_columns()
        found = measure(bench, rounds, runs)
        tell(found, open_log(bench.options()).end, bench.verify(LocalEngine()), body_bytes)
        for name, took in found.items():
            figures |= {f"{name}, {body_bytes} B": took.seconds, f"{name}, {body_bytes} B: processor": took.processor}
        if chosen is None or COMPACT in chosen:
            tell_compaction(bench)
    spark.stop()
    return figures


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
