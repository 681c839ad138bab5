"""`make demo`: two pairs of master and slave as twistd processes; each master is killed, each copy proved identical.

The first master is sent messages over the network by ``rmqha.client``, which are read back from its slave when it is
gone; the second has a store that a real RocketMQ 4.9.3 broker wrote. In the end Spark SQL counts what both copies hold.
All is left in .demo.
"""

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from rmqha.client import Message, MQClient, Producer, PullConsumer, SendResult
from rmqha.client.bulk import BulkPull, put_all
from rmqha.pipeline.session import JavaError, session
from rmqha.store.metadata import TopicConfigTable
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.archive import unpack
from rmqha.testing.nodes import PATIENCE_SECONDS, TwistdNode, free_port
from rmqha.wire.record import Record, parse_msg_id

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".demo"
DATA = PROJECT / "tests" / "data"
FIXTURE, FACTS, DECODED_BY_JAVA = DATA / "master-crash.tar.xz", DATA / "facts.json", DATA / "expected.jsonl.gz"
TOPIC = "DemoTopic"
MESSAGES, BODY_BYTES = 5000, 1024
QUERY = """
    SELECT topic, count(*) AS messages, count(DISTINCT queueId, queueOffset) AS places, sum(totalSize) AS bytes,
           min(storeTimestamp) AS first, max(storeTimestamp) AS last
    FROM log GROUP BY topic ORDER BY topic
"""
SPARK_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "false",  # where it is, PySpark 4.3 may end with a BrokenPipeError
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it has a short life
}
LONGEST_NAME = 26
COLUMNS = "topic,queueId,queueOffset,totalSize,storeTimestamp"
SMALL_FILES = ("--set=mappedFileSizeCommitLog=16777216", "--set=maxHashSlotNum=10000", "--set=maxIndexNum=40000")


def pair(name: str, role: str, *options: str, store: Path | None = None) -> tuple[TwistdNode, TwistdNode]:
    """A master and its slave, not started yet."""
    port = free_port()
    master = TwistdNode(WORK / name, [f"--role={role}", f"--port={port}", *options], store=store, name="master")
    slave_options = ["--role=slave", f"--master=127.0.0.1:{port + 1}", "--port=0", *options]
    return master, TwistdNode(WORK / name, slave_options, name="slave")


def prove(master: TwistdNode, slave: TwistdNode) -> str:
    """Compare the stores of two nodes that have ended; how many messages, and from where to where."""
    verify = [sys.executable, "-m", "rmqha.cli", "verify", str(slave.store), "--against", str(master.store)]
    if subprocess.run(verify, check=False).returncode != 0:
        raise SystemExit(f"{slave.store} is no copy of {master.store}")
    reader = StoreReader(slave.store)
    proof = reader.verify(lambda _: None)
    reader.close()
    return f"{proof.messages} messages, {proof.min_offset} to {proof.end}"


def copied(slave: TwistdNode, end: int) -> None:
    """Wait until the slave has all up to ``end``."""
    slave.wait_for_state(lambda state: state.state == "IN_SYNC" and state.offsets.verified >= end, "a copy of it all")


def wait_for_topic(slave: TwistdNode) -> None:
    """Wait until the slave knows of the topic, as it does soon after its start."""
    slave.wait_until_found(
        lambda: TopicConfigTable.read(slave.store / "config").topic_config_table.get(TOPIC),
        f"the slave to know {TOPIC}",
        PATIENCE_SECONDS,
    )


def wait_for_queues(slave: TwistdNode, last: int) -> None:
    """Wait until the slave's queues have the message at ``last`` in its log. SEND_OK means only that its log has it."""
    slave.wait_for_state(lambda state: state.dispatched is not None and state.dispatched > last, "queues of it all")


async def send(reactor: Any, master: TwistdNode, numbers: range) -> tuple[Counter[str], int]:
    """Send messages with these numbers: how many ended how, and where the last one begins in the log."""
    client = MQClient.of_broker(reactor, f"127.0.0.1:{master.port('remoting')}")
    statuses: Counter[str] = Counter()
    starts: list[int] = []

    def sent(result: SendResult) -> None:
        statuses[result.status.name] += 1
        starts.append(parse_msg_id(result.offset_msg_id)[1])

    messages = (Message(TOPIC, b"%0*d" % (BODY_BYTES, number), keys=f"k{number}") for number in numbers)
    await put_all(Producer(client, "demo-producer"), messages, sent)
    await client.stop()
    return statuses, max(starts)


def told(statuses: Counter[str]) -> str:
    """Each status with its number."""
    return ", ".join(f"{status} {number}" for status, number in statuses.items())


async def read_back(reactor: Any, node: TwistdNode) -> list[int]:
    """The numbers of all messages that the node gives, sorted."""
    client = MQClient.of_broker(reactor, f"127.0.0.1:{node.port('remoting')}")
    numbers: list[int] = []

    def got(record: Record) -> None:
        numbers.append(int(record.body))

    await BulkPull(PullConsumer(client, "demo-consumer"), reactor, got).run(TOPIC)
    await client.stop()
    return sorted(numbers)


async def live(reactor: Any, table: Table) -> None:
    """A SYNC_MASTER that is sent messages, and what its slave gives of them when it is gone."""
    master, slave = pair("live", "sync-master", "--set=slaveTimeout=60000", *SMALL_FILES)
    with master:
        alone, _ = await send(reactor, master, range(1))
        table.add_row("live", "1 message sent to a SYNC_MASTER without a slave", told(alone))
        with slave:
            copied(slave, 1)
            started = time.monotonic()
            statuses, last = await send(reactor, master, range(1, MESSAGES))
            rate = MESSAGES / (time.monotonic() - started)
            table.add_row("live", f"{MESSAGES - 1} more with one, {rate:.0f} a second", told(statuses))
            wait_for_topic(slave)
            master.kill()
            wait_for_queues(slave, last)
            numbers = await read_back(reactor, slave)
            if statuses["SEND_OK"] != MESSAGES - 1 or numbers != list(range(MESSAGES)):
                raise SystemExit(f"sent {statuses}, and {len(set(numbers))} of {MESSAGES} were read back")
            table.add_row("live", "kill -9 of the master; pulled from its slave", f"{len(numbers)}, each once")
            if slave.stop() != 0:
                raise SystemExit("the slave did not stop cleanly")
    table.add_row("live", "the slave's store against the master's", f"identical: {prove(master, slave)}")


def java(table: Table) -> None:
    """A store that a real broker wrote, and a fresh slave of it."""
    store = WORK / "java" / "master-store"
    store.mkdir(parents=True)
    unpack(FIXTURE, store)
    master, slave = pair("java", "async-master", store=store)
    with master, slave:
        end = master.wait_for_state(lambda state: state.state == "SERVING", "SERVING").offsets.verified
        copied(slave, end)
        master.kill()
        if slave.stop() != 0:
            raise SystemExit("the slave did not stop cleanly")
    table.add_row("java", "a store that Java wrote, copied by a fresh slave", f"identical: {prove(master, slave)}")


async def demo(reactor: Any, console: Console) -> None:
    """Both pairs, then their table."""
    shutil.rmtree(WORK, ignore_errors=True)
    table = Table("pair", "what", "outcome")
    await live(reactor, table)
    java(table)
    console.print(table)


def written_by_java() -> tuple[int, Counter[str]]:
    """Where the log of the real broker ended, and its messages by topic as Java's decoder counts them."""
    with gzip.open(DECODED_BY_JAVA, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return json.loads(FACTS.read_text())["maxOffset"], Counter(line["topic"] for line in records if "blank" not in line)


def query(console: Console) -> None:
    """Spark SQL over the stores of both slaves, whose masters are gone."""
    try:
        spark = session(conf=SPARK_CONF)
    except JavaError as error:
        raise SystemExit(f"left out: Spark SQL over the slaves' stores. {error}") from None
    table = Table("pair", "topic", "messages", "bytes", "first", "last")
    table.columns[1].no_wrap, table.columns[1].max_width = True, LONGEST_NAME
    expected: dict[str, tuple[str | int, Counter[str]]] = {
        "live": ("latest", Counter({TOPIC: MESSAGES})),
        "java": written_by_java(),
    }
    for name, (end, messages) in expected.items():
        log = spark.read.format("rmqha").option("columns", COLUMNS).option("endingOffset", end)
        log.load(str(WORK / name / "slave-store")).createOrReplaceTempView("log")
        rows = spark.sql(QUERY).collect()
        for row in rows:
            table.add_row(name, row.topic, str(row.messages), str(row.bytes), f"{row.first:%T}", f"{row.last:%T}")
        if {row.topic: row.messages for row in rows} != messages or any(row.places != row.messages for row in rows):
            console.print(table)
            raise SystemExit(f"{name}: sent were {messages}, and Spark counts otherwise")
    spark.stop()
    print(f"\nSpark SQL over the slaves' stores, of the second one over what Java wrote:{QUERY}")
    console.print(table)


def main() -> None:
    """Raises SystemExit with the reason where something is not as it must be."""
    console = Console()
    started = time.monotonic()
    try:
        react(lambda reactor: Deferred.fromCoroutine(demo(reactor, console)))
    except SystemExit as ended:  # so it always ends; Spark does not go with a reactor that runs
        if ended.code:
            raise
    query(console)
    console.print(f"{time.monotonic() - started:.1f} s in all; try .venv/bin/rmqha status .demo/live/slave-store")


if __name__ == "__main__":
    main()
