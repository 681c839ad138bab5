"""Writes small data of every kind that this tree leaves on a disk: ``python -m tests.upgrade.freeze FOLDER``.

``tests/data/frozen`` was written so by the tree of commit 8200a57:

- ``data.tar.xz``: a master's store after SIGKILL and after a clean stop, its slave's, those of a failover pair with its
  witness, archives (Parquet, Delta, Iceberg), and files of settings;
- ``expected.json``: what is in them;
- ``notes.tar.xz``: what goes on later: a replay that was killed with what it had sent, a name server's folder, a store
  whose log was cut, an archive that a stream of Spark writes with its checkpoint;
- ``rmqha.tar.xz``: the package as its wheel installs it, for nodes of that tree beside nodes of a newer one.

``test_frozen.py`` opens them with the tree of today. Do not write them again: an older tree wrote them, and that is
what they are good for.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from rmqha.client import ConsumerOptions, Edge, Message, ReceivedMessage, RetryLater, TransactionOutcome
from rmqha.client.aio import Client, Producer
from rmqha.failover.knownfile import read_known
from rmqha.kit.events import Event
from rmqha.store.log.stretches import survey
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.nodes import NameServerNode, TwistdNode
from rmqha.wire.command import RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.record import Blank
from rmqha.wire.timers import TIMER_TOPIC
from tests.failover.cluster import Cluster, running_cluster
from tests.freezing import freeze, thaw
from tests.interop.requests import any_answer
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
SMALL = ("--set=mappedFileSizeCommitLog=16384", "--set=mappedFileSizeConsumeQueue=6000", "--set=maxHashSlotNum=1000")
UNCLEAN, CLEAN = "master-unclean", "master-clean"
PACKAGE, STORES, NOTES, EXPECTED = "rmqha.tar.xz", "data.tar.xz", "notes.tar.xz", "expected.json"
REPLAY = ("--topic=Orders", "--any-queue")
"""The options of the replay that was killed."""
COMMAND = (sys.executable, "-m", "rmqha.cli")


def facts_of(store: Path) -> dict[str, Any]:
    """What can be read in a store, so that trees of two versions can be compared."""
    queues: dict[str, list[int]] = {}
    bodies: dict[str, Any] = defaultdict(sha256)
    timers = 0
    reader = StoreReader(store)
    try:
        end = survey(reader.log, reader.log.min_offset, reader.log.max_offset, lambda _: None).end
        for _, record in reader.records(0, end):
            if not isinstance(record, Blank):
                queue = f"{record.topic}/{record.queue_id}"
                first, count = queues.get(queue, (record.queue_offset, 0))
                queues[queue] = [first, count + 1]
                bodies[record.topic].update(len(record.body).to_bytes(4) + record.body)
                timers += record.topic == TIMER_TOPIC
    finally:
        reader.close()
    facts = {
        "end": end,
        "unclean": reader.stopped_uncleanly,
        "queues": queues,
        "bodies": {topic: each.hexdigest() for topic, each in bodies.items()},
        "timers": timers,
        "tables": tables_of(store),
    }
    return dict(json.loads(json.dumps(facts)))  # names are texts, as in expected.json


def tables_of(store: Path) -> dict[str, Any]:
    """The tables that clients depend on: queues and permissions of topics, groups, offsets."""

    def table(file: str, name: str) -> dict[str, Any]:
        path = store / "config" / file
        return dict(loads_lenient(path.read_bytes())[name]) if path.exists() else {}

    topics = table("topics.json", "topicConfigTable")
    return {
        "topics": {
            name: [each["readQueueNums"], each["writeQueueNums"], each["perm"]] for name, each in topics.items()
        },
        "groups": sorted(table("subscriptionGroup.json", "subscriptionGroupTable")),
        "offsets": table("consumerOffset.json", "offsetTable"),
        "delays": table("delayOffset.json", "offsetTable"),
    }


async def fill(name_server: str) -> None:
    """Messages of all kinds."""
    failed: set[str] = set()
    seen: set[str] = set()

    async def handle(message: ReceivedMessage) -> None:
        seen.add(message.keys)
        if message.keys in ("orders-3", "orders-4"):
            failed.add(f"{message.keys} {message.reconsume_times}")
            raise RetryLater

    async def check(message: ReceivedMessage) -> TransactionOutcome:
        return TransactionOutcome.UNKNOWN

    outcomes = (TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN)

    async def decide(message: Message) -> TransactionOutcome:
        return outcomes[int(message.keys.rpartition("-")[2]) % 3]

    async with Client(name_server) as client:
        producer = client.producer("freezers", timeout=60.0)
        await send_many(producer, "Orders", 60)
        await send_many(producer, "Bestellungen", 60)
        await producer.send(Message("Orders", b"packed " * 2000, keys="packed").compressed())
        await producer.send_batch([Message("Orders", b"batch %d" % number) for number in range(8)])
        for level in (1, 2, 18):
            await producer.send(Message("Orders", b"level %d" % level, keys=f"level-{level}", delay_level=level))
        now = int(time.time() * 1000)
        for name, due in (("soon", now + 2000), ("late", now + 2 * 24 * 3600 * 1000)):
            await producer.send(Message("Orders", name.encode(), keys=name, properties={"TIMER_DELIVER_MS": str(due)}))
        async with client.transaction_producer("payers", check) as payer:
            for number in range(9):
                await payer.send(Message("Orders", b"paid %d" % number, keys=f"paid-{number}"), decide)
        options = ConsumerOptions(start=Edge.MIN, max_reconsume_times=1, retry_pause_seconds=0.2, persist_seconds=0.5)
        consumer = client.push_consumer("shipping", handle, ["Orders"], options)
        async with consumer:
            wanted = {"soon", "level-1", "level-2", "paid-0", "paid-3", "paid-6"}
            while not wanted <= seen or len(failed) < 4:  # each failed twice: the second one is a dead letter
                await asyncio.sleep(0.1)
        async with client.push_consumer("reading", handle, ["Bestellungen"], ConsumerOptions(start=Edge.MIN)):
            while "bestellungen-59" not in seen:
                await asyncio.sleep(0.1)
        await send_many(producer, "Orders", 5, "after")


async def send_many(producer: Producer, topic: str, count: int, name: str | None = None) -> None:
    """Send so many messages, one after the other, each with a key, a tag, and a body that says which it is."""
    name = name or topic.lower()
    for number in range(count):
        text = f"{name} {number} größe 消息 " * (1 + number % 5)
        await producer.send(Message(topic, text.encode(), f"tag{number % 4}", f"{name}-{number}"))


def make_pair(work: Path, out: Path) -> None:
    """A SYNC_MASTER and its slave, with messages, groups, offsets, a kept setting: after SIGKILL, and after a stop."""
    with NameServerNode(work) as names:
        delay = "--set=messageDelayLevel=1s 2s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
        both = (f"--namesrv={names.address}", "--name=broker-a", "--port=0", delay, *SMALL)
        wheel = ("--set=timerWheelEnable=true", "--set=transactionTimeOut=60000", "--set=fileReservedTime=48")
        master = TwistdNode(work, ["--role=sync-master", *both, *wheel], name="master")
        with master:
            address = f"--master=127.0.0.1:{master.port()}"
            options = ["--role=slave", "--broker-id=1", address, *both]
            slave = TwistdNode(work, [*options, f"--master-remoting=127.0.0.1:{master.port('remoting')}"], name="slave")
            with slave:
                slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
                change = any_answer(
                    f"127.0.0.1:{master.port('remoting')}",
                    RequestCode.UPDATE_BROKER_CONFIG,
                    body=b"fileReservedTime=720",
                )
                assert change.code == ResponseCode.SUCCESS
                asyncio.run(fill(names.address))
                wait_for_tables(master, slave)
                freeze(master.pid)
                shutil.copytree(master.store, out / UNCLEAN)
                thaw(master.pid)
                assert slave.stop() == 0
            shutil.copytree(slave.store, out / "slave")
            assert master.stop() == 0
        shutil.copytree(master.store, out / CLEAN)


def wait_for_tables(master: TwistdNode, slave: TwistdNode) -> None:
    """Until the slave has the master's log and offsets, and there is a snapshot of the tables."""

    def is_equal() -> bool:
        offsets = tables_of(master.store)["offsets"]
        return {"Orders@shipping", "Bestellungen@reading"} <= set(offsets) and tables_of(slave.store)[
            "offsets"
        ] == offsets

    wait_until(is_equal, "the slave to have the master's offsets")
    wait_until(lambda: any((master.store / "rmqha" / "tables").iterdir()), "a snapshot of the tables")


def make_cluster(work: Path, out: Path) -> dict[str, Any]:
    """A failover pair that has had two leaders, killed, and its witness."""
    with running_cluster(work) as cluster:
        cluster.run("config", "set", "ttl=20")
        send(cluster, "before")
        old, new = cluster.pair()
        old.kill()
        new.wait_until_it_leads()
        send(cluster, "after")
        old.start()
        cluster.wait_for_sync(new.name, old.name)
        send(cluster, "both")
        for node in (old, new, cluster.witness):
            os.kill(node.pid, signal.SIGSTOP)
        for node in (old, new):
            shutil.copytree(node.store, out / f"member-{node.name}")
        shutil.copytree(cluster.witness.folder, out / "witness")
        for node in (old, new, cluster.witness):
            node.kill()
        known = read_known(new.store)
        return {
            "leader": new.name,
            "follower": old.name,
            "epoch": known.epoch,
            "cluster_id": known.cluster_id,
            "sync": sorted((new.name, old.name)),
            "broker": "broker-f",
            "cluster": "FailoverCluster",
            "ttl": 20,
        }


def send(cluster: Cluster, name: str) -> None:
    """Some messages to whichever node leads."""

    async def run() -> None:
        async with Client(cluster.name_server) as client:
            await send_many(client.producer("freezers", timeout=60.0, retry_times=100), "Failover", 12, name)

    asyncio.run(run())


def make_archives(store: Path, out: Path) -> None:
    """The same log as an archive of each kind."""
    for kind in ("parquet", "delta", "iceberg"):
        command = [
            sys.executable,
            "-m",
            "rmqha.cli",
            "job",
            "archive",
            str(store),
            f"--output={kind}",
            f"--table={kind}",
        ]
        subprocess.run([*command, "--engine=local"], check=True, cwd=out)


def make_replay(store: Path, work: Path, out: Path) -> None:
    """A replay that was killed, what it keeps, and the store that it has sent a part of the messages to."""
    out.mkdir()
    with NameServerNode(work) as names:
        options = ["--role=async-master", "--name=broker-r", "--port=0", f"--namesrv={names.address}", *SMALL]
        with TwistdNode(work, options, store=out / "target", name="target") as target:
            target.port("remoting")
            words = ("replay", store.name, *REPLAY, f"--namesrv={names.address}", "--rate=20")
            with subprocess.Popen((*COMMAND, *words, f"--progress={out / 'progress'}"), cwd=store.parent) as replay:
                wait_until(lambda: messages_of(out / "target", "Orders") > 30, "a part of the messages")
                replay.kill()
            assert target.stop() == 0
        change = any_answer(
            names.address,
            RequestCode.PUT_KV_CONFIG,
            {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders", "value": "broker-r:4"},
        )
        assert change.code == ResponseCode.SUCCESS
        assert names.stop() == 0
        shutil.copytree(names.folder, out.parent / "namesrv")


def messages_of(store: Path, topic: str) -> int:
    """How many messages of a topic a store has now; 0 before it has a log."""
    if not any((store / "commitlog").glob("*")):
        return 0
    return sum(count for name, (_, count) in facts_of(store)["queues"].items() if name.startswith(f"{topic}/"))


def make_cut(store: Path) -> None:
    """One of the store's last messages is damaged, and ``recover`` has cut the log there."""
    last = max((store / "commitlog").iterdir())
    with last.open("r+b") as file:
        place = last.read_bytes().index(b"\x06Orders")  # a message's topic, after the last byte of its body
        file.seek(place - 1)
        file.write(b"?")
    subprocess.run((*COMMAND, "recover", str(store), "--apply", "--force"), check=True)
    assert any((store / "rmqha" / "cut").iterdir())


def make_stream(store: Path, out: Path) -> None:
    """The archive that a stream of Spark has begun, and its checkpoint."""
    from rmqha.pipeline.session import session  # needs Java

    with session() as spark:
        splits = spark.readStream.format("rmqha").option("view", "splits").load(str(store))
        writing = splits.writeStream.format("rmqha_archive").option("checkpointLocation", str(out / "checkpoint"))
        writing.trigger(availableNow=True).start(str(out / "lake")).awaitTermination()


def make_notes(store: Path, work: Path, out: Path) -> None:
    """All of ``NOTES``, from a master's store."""
    make_replay(store, work, out / "replay")
    shutil.copytree(store, out / "cut")
    make_cut(out / "cut")
    (out / "stream").mkdir()
    make_stream(store, out / "stream")


def make_settings(out: Path) -> None:
    """Files that operators write."""
    folder = out / "settings"
    shutil.copytree(PROJECT / "packaging" / "etc", folder)
    (folder / "broker.conf").write_text(
        "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerRole=SYNC_MASTER\n"
        "flushDiskType=ASYNC_FLUSH\n"
        "deleteWhen=04\nfileReservedTime=48\nmappedFileSizeCommitLog=16384\nmessageDelayLevel=1s 2s 10s\n"
        "listenPort=10911\nenablePropertyFilter=true\naclEnable=true\ntransactionCheckInterval=60000\n"
    )
    (folder / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses:\n- 10.10.103.*\naccounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n"
        "  whiteRemoteAddress:\n  admin: false\n  defaultTopicPerm: DENY\n  defaultGroupPerm: SUB\n"
        "  topicPerms:\n  - Orders=DENY\n  - Bestellungen=PUB|SUB\n  groupPerms:\n  - shipping=SUB\n"
        "- accessKey: rocketmq2\n  secretKey: 12345678\n  whiteRemoteAddress: 192.168.1.*\n  admin: true\n"
    )
    (folder / "tools.yml").write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
    (folder / "login").write_text("user=rmqha\npassword=secret\n")


def make_package(out: Path, work: Path) -> None:
    """The package as its wheel installs it, for nodes of this tree beside nodes of a newer one."""
    subprocess.run([sys.executable, "-m", "build", "--wheel", f"--outdir={work}", str(PROJECT)], check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(work / "package")
    pack(work / "package", out / PACKAGE)


def pack(folder: Path, archive: Path) -> None:
    """A solid archive of all files of a folder."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, path.name)


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work, out = Path(name) / "work", Path(name) / "out"
        work.mkdir()
        out.mkdir()
        make_pair(work, out)
        expected: dict[str, Any] = {"cluster": make_cluster(work / "cluster", out)}
        make_archives(out / CLEAN, out)
        make_settings(out)
        stores = [folder for folder in out.iterdir() if (folder / "commitlog").is_dir()]
        expected["stores"] = {store.name: facts_of(store) for store in sorted(stores)}
        pack(out, target / STORES)
        notes = Path(name) / "notes"
        notes.mkdir()
        make_notes(out / CLEAN, work, notes)
        pack(notes, target / NOTES)
        (target / EXPECTED).write_text(json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        make_package(target, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
