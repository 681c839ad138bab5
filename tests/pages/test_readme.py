"""The commands of README and docs/ work as written, one after another in one folder, with other paths and ports."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from rmqha.pipeline.session import JavaError, find_java
from rmqha.testing.nodes import free_port
from tests.needs import need
from tests.net.tls.authority import Authority
from tests.pages.pages import commands_of, python_of
from tests.pages.reader import Reader

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    found = Reader(tmp_path_factory.mktemp("folder"))
    try:
        yield found
    finally:
        found.kills()


def put(reader: Reader) -> None:
    """As many as make it worth while."""
    reader.runs("rmqha put TopicTest hello --count=200 --broker=127.0.0.1:10911")


def test_five_minute_tour(reader: Reader) -> None:
    reader.moves("tour")
    master, slave, *looks, pull = commands_of("README: A five-minute tour")
    reader.starts(master, reader.master)
    log = reader.starts(slave, reader.slave)
    reader.waits_for_line(log, "slave is IN_SYNC")
    put, *looks = looks
    assert "SEND_OK 1000" in reader.runs(put)
    reader.waits_until_copied(log, "/data/replica")
    status, dump, verify = map(reader.runs, looks)
    assert "IN_SYNC" in status
    assert len(dump.splitlines()) == 3
    assert verify
    reader.swaps_last_two()
    reader.stops_last()
    assert reader.runs(pull).splitlines() == ["hello"] * 3


@pytest.mark.story
def test_a_broker_pair(reader: Reader) -> None:
    reader.moves("pair")
    name_server, master, slave = commands_of("operating: A broker pair")
    reader.starts(name_server, reader.name_server)
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")
    put(reader)
    assert "SEND_OK 3" in reader.runs("rmqha put TopicTest hello --count=3 --namesrv=127.0.0.1:9876")


@pytest.mark.story
def test_a_copy_of_your_broker(reader: Reader) -> None:
    reader.moves("copy")
    slave, *commands = commands_of("operating: A copy of your broker")
    reader.starts("twistd -n --pidfile= rmqha --role=async-master --store=/data/master", reader.master)
    put(reader)
    reader.waits_until_copied(reader.starts(slave, reader.slave), "/data/replica")
    when_stopped = ("rebuild", "recover", "repair", "restore-cut")
    of_brokers = [command for command in commands if "--namesrv" in command]
    assert [command.split()[1] for command in of_brokers] == ["tail", "query", "lag", "top"]
    of_stores = [command for command in commands if command not in of_brokers]
    at_any_time = [command for command in of_stores if command.split()[1] not in when_stopped]
    assert len(at_any_time) == len(of_stores) - len(when_stopped) == 5
    for command in at_any_time:
        reader.runs(command)
    broker = f"127.0.0.1:{reader.master}"  # no name server runs here, and nothing ends the endless ones
    for command in of_brokers[:3]:
        reader.runs(command.replace("--namesrv ns-a:9876", f"--broker {broker}").replace(" -f", ""))
    assert broker in reader.runs(of_brokers[3].replace("--namesrv ns-a:9876", f"{broker} -n 1"))
    reader.stops_last()
    for command in of_stores:
        if command.split()[1] != "status":  # which ends with 7 where no node runs
            reader.runs(command)


@pytest.mark.story
def test_when_bytes_of_the_log_are_bad(reader: Reader) -> None:
    """Of the copy before, as a broken master's store: each command does what its page says of it."""
    reader.stops()
    store, replica = reader.data / "store", reader.data / "replica"
    shutil.copytree(replica, store)
    replica_port = free_port()
    verify, repair, recover, restore_cut = commands_of("repair: Commands")
    log = min((store / "commitlog").iterdir())
    good = log.read_bytes()
    at = good.index(b"hello", len(good.rstrip(b"\0")) // 2)
    log.write_bytes(good[:at] + b"HELLO" + good[at + 5 :])
    assert "rmqha repair" in reader.fails(verify, 1)
    assert reader.runs(f"{recover.partition('#')[0]} --json")
    (kept,) = json.loads(reader.runs("rmqha restore-cut /data/store --json"))["kept"]
    assert reader.runs(restore_cut.replace("72108410", str(kept["offset"])))
    node = f"twistd -n --pidfile= rmqha --role=async-master --store=/data/replica --port={replica_port}"
    reader.starts(node, replica_port)
    assert "repaired" in reader.runs(repair.replace("replica-host:10922", f"127.0.0.1:{replica_port + 1}"))
    reader.stops()
    assert log.read_bytes() == good
    assert reader.runs(verify)


@pytest.mark.story
def test_the_log_as_data(reader: Reader) -> None:
    """Of the copy that the section before has made."""
    try:
        find_java()
    except JavaError as error:
        need(str(error))
    for command in commands_of("spark: Commands"):
        assert reader.runs(command)
    assert list((reader.data / "lake" / "orders").rglob("*.parquet"))
    streamed = python_of("spark: Archives").replace("/lake/orders", "/lake/streamed")
    reader.runs_python(
        f"{python_of('spark: In Python and SQL')}\n{streamed}\n"
        "for query in spark.streams.active:\n    query.processAllAvailable()\n    query.stop()\n"
    )
    assert list((reader.data / "lake" / "streamed").rglob("*.parquet"))
    prove, restore, verify = commands_of("spark: A store from an archive")
    assert "nothing was written" in reader.runs(prove)
    assert "every byte is proved" in reader.runs(restore)
    assert "identical" in reader.runs(verify)
    compare, sends = commands_of("spark: Finding missing messages")
    assert "messages are there" in reader.runs(compare)
    (reader.folder / "sent.csv").write_text("key,time\nnever-stored,2026-11-23T10:00:00Z\n")
    assert "missing: TopicTest keys never-stored" in reader.fails(sends, 1)
    assert "never-stored" in (reader.folder / "lost.csv").read_text()


@pytest.mark.story
def test_the_day_the_master_dies(reader: Reader) -> None:
    """The whole story of the runbook: the master is lost, the slave takes over, the old master comes back."""
    reader.moves("lost-master")
    promote_dry, promote, new_master = commands_of("runbook: The master is gone")
    rewind_dry, rewind, old_master = commands_of("runbook: The old master comes back")
    reader.starts("twistd -n --pidfile= rmqha-namesrv", reader.name_server)
    reader.starts("twistd -n --pidfile= rmqha --role=async-master --store=/data/master --port=10911", reader.master)
    slave = "twistd -n --pidfile= rmqha --role=slave --master=127.0.0.1:10912 --store=/data/slave --port=10921"
    log = reader.starts(slave, reader.slave)
    put(reader)
    reader.waits_for_line(log, "slave is IN_SYNC")
    reader.waits_until_copied(log, "/data/slave")
    reader.noted_time = datetime.now(UTC).isoformat()
    reader.stops_last()
    reader.runs("rmqha put TopicTest alone --count=20 --broker=127.0.0.1:10911")
    reader.stops_last()  # the master is gone, with 20 messages that nobody else has
    assert "nothing was changed" in reader.runs(promote_dry)
    assert "is now the ASYNC_MASTER" in reader.runs(promote)
    reader.starts(new_master, reader.master)
    reader.waits_until_it_runs("rmqha put TopicTest new --count=5 --namesrv=127.0.0.1:9876")
    assert "would cut" in reader.runs(rewind_dry)
    assert "20 messages" in reader.runs(rewind)
    reader.waits_for_line(reader.starts(old_master, reader.slave), "slave is IN_SYNC")
    reader.waits_until_it_runs("rmqha verify /data/master --against /data/slave")
    for command in commands_of("runbook: Backups"):
        assert reader.runs(command)
    restore_dry, restore = commands_of("runbook: Somebody deleted or sent something by mistake")
    assert "nothing was changed" in reader.runs(restore_dry)
    assert reader.runs(restore)
    assert "prefix" in reader.runs("rmqha verify /data/before --against /data/slave")
    dump_deleted, replay_deleted = commands_of("runbook: A topic was deleted by mistake")
    assert len(reader.runs(dump_deleted).splitlines()) == 3
    assert "TopicTest: " in reader.runs(replay_deleted)
    reader.kept = next((reader.data / "master" / "rmqha" / "cut").glob("0*")).name
    reader.waits_until_confirmed("/data/slave")
    reader.runs("rmqha job archive /data/slave --output /lake/orders")
    count, replay, replay_archived = commands_of("runbook: Messages that were cut or lost")
    assert "TopicTest: 20 messages" in reader.runs(count)
    assert "SEND_OK 20" in reader.runs(replay)
    assert "SEND_OK 5" in reader.runs(replay_archived)  # what was put after the time that was noted
    prove, restore, verify, start = commands_of("runbook: All stores are lost, and an archive is left")
    for command, said in ((prove, "nothing was written"), (restore, "proved"), (verify, "sound messages")):
        assert said in reader.runs(command)
    reader.stops()
    reader.starts("twistd -n --pidfile= rmqha-namesrv", reader.name_server)
    reader.starts(start, reader.master)
    reader.waits_until_it_runs("rmqha put TopicTest again --count=5 --namesrv=127.0.0.1:9876")


def test_name_servers(reader: Reader) -> None:
    reader.moves("name-servers")
    name_server, master, slave = commands_of("name-servers: Name servers")
    reader.starts(name_server, reader.name_server)
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")


@pytest.mark.story
def test_encrypted_and_authenticated(reader: Reader) -> None:
    reader.moves("tls")
    ca = Authority(reader.folder / "certificates")
    shutil.copy(ca.path, reader.folder / "ca.pem")
    for name, host in (
        ("broker-a", "localhost"),
        ("slave-a.example.com", "slave-a.example.com"),
        ("operator", "operator"),
    ):
        shutil.copy(ca.issue(host), reader.folder / f"{name}.pem")
    master, slave, status = commands_of("tls: Encrypted and authenticated")
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")
    assert "IN_SYNC" in reader.runs(status) or "peer" in reader.runs(status)
    reader.stops()
