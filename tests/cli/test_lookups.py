"""``rmqha query``, ``lag`` and ``tail``: in stores, and on nodes of ours."""

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from rmqha.cli.tables import Column, fitting, table_text
from rmqha.kit.events import Event
from rmqha.kit.times import iso_time
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from rmqha.wire.command import RequestCode
from tests.cli.test_cli import CommandTestCase, flip_bit, records_of
from tests.commands import RMQHA, rmqha, rmqha_bytes
from tests.fixtures import copy_of, new_folder
from tests.interop import requests

SMALL_FILES = ("--set=mappedFileSizeCommitLog=1048576", "--set=maxHashSlotNum=1000")
SECONDS = 300
NOBODY = "127.0.0.1:1"


class QueryOfStoreTests(CommandTestCase):
    """A store recorded from a Java slave, with its index."""

    def setUp(self) -> None:
        self.place = copy_of("slave", new_folder(self) / "store")
        self.records = [record for _, record in records_of(self.place)]
        self.wanted = next(record for record in self.records if record.properties.get("KEYS"))
        self.key = self.wanted.properties["KEYS"].split(" ")[0]

    def found(self, *arguments: object) -> list[int]:
        """The offsets in the log of what is found."""
        output = self.output_of("query", self.place, *arguments, "--json")
        return [json.loads(line)["physicalOffset"] for line in output.splitlines()]

    def with_key(self, topic: str | None = None) -> list[int]:
        return [
            record.physical_offset
            for record in self.records
            if self.key in record.properties.get("KEYS", "").split(" ") and topic in (None, record.topic)
        ]

    def test_by_key_all_ways_agree(self) -> None:
        topic = self.wanted.topic
        expected_offsets = self.with_key(topic)
        self.assertTrue(expected_offsets)
        self.assertEqual(self.found("--key", self.key, "--topic", topic), expected_offsets)
        self.assertEqual(self.found("--key", self.key, "--topic", topic, "--scan"), expected_offsets)
        self.assertEqual(self.found("--key", self.key), self.with_key())

    def test_every_message_is_found_by_its_unique_key(self) -> None:
        for record in self.records[:: max(1, len(self.records) // 20)]:
            unique = record.properties.get("UNIQ_KEY")
            if unique and record.topic == self.wanted.topic:
                self.assertIn(record.physical_offset, self.found("--key", unique, "--topic", record.topic))

    def test_without_an_index_the_log_is_read(self) -> None:
        for path in (self.place / "index").iterdir():
            path.unlink()
        self.assertEqual(self.found("--key", self.key, "--topic", self.wanted.topic), self.with_key(self.wanted.topic))

    def test_a_damaged_index_hides_nothing(self) -> None:
        for path in (self.place / "index").iterdir():
            path.write_bytes(b"\xff" * 100)
        self.assertEqual(self.found("--key", self.key, "--topic", self.wanted.topic), self.with_key(self.wanted.topic))

    def test_between_times(self) -> None:
        time = self.wanted.store_timestamp
        way = ("--key", self.key, "--topic", self.wanted.topic)
        self.assertIn(self.wanted.physical_offset, self.found(*way, "--since", time, "--until", iso_time(time)))
        result = self.run_command("query", self.place, *way, "--since", "2100-01-01T00:00:00Z")
        self.assertEqual((result.exit_code, result.stdout, result.stderr), (0, "", "nothing is found\n"))

    def test_by_id(self) -> None:
        self.assertEqual(self.found("--id", self.wanted.msg_id), [self.wanted.physical_offset])
        unique = self.wanted.properties["UNIQ_KEY"]
        self.assertEqual(self.found("--id", unique, "--topic", self.wanted.topic), [self.wanted.physical_offset])
        self.assertEqual(self.found("--id", unique), [self.wanted.physical_offset])

    def test_by_offset(self) -> None:
        record = self.wanted
        self.assertEqual(self.found("--offset", record.physical_offset), [record.physical_offset])
        place = f"{record.queue_id}:{record.queue_offset}"
        self.assertEqual(self.found("--offset", place, "--topic", record.topic), [record.physical_offset])
        for wrong in (record.physical_offset + 1, 10**18):
            self.assertEqual(self.run_command("query", self.place, "--offset", wrong).stderr, "nothing is found\n")
        absent = ("--offset", "0:999999", "--topic", record.topic)
        self.assertEqual(self.run_command("query", self.place, *absent).stderr, "nothing is found\n")

    @pytest.mark.long
    def test_by_time(self) -> None:
        time = self.records[len(self.records) // 2].store_timestamp
        first = next(record for record in self.records if record.store_timestamp >= time)
        found = self.found("--time", time, "-n", 3)
        self.assertEqual((found[0], len(found)), (first.physical_offset, 3))

    def test_wrong_usage(self) -> None:
        store = self.place
        self.assertIn("give one of --key", self.complaint(2, "query", store))
        self.assertIn("give one of --key", self.complaint(2, "query", store, "--key=a", "--id=b"))
        self.assertIn("give one of STORE", self.complaint(2, "query", "--key=a"))
        self.assertIn("give one of STORE", self.complaint(2, "query", store, "--key=a", "--broker=b:1"))
        self.assertIn("go with --key", self.complaint(2, "query", store, "--offset=1", "--scan"))
        self.assertIn("--offset x", self.complaint(2, "query", store, "--offset=x"))
        self.assertIn("needs --topic", self.complaint(2, "query", store, "--offset=0:1"))
        self.assertIn("needs --topic", self.complaint(2, "query", "--broker=b:1", "--key=a"))
        self.assertIn("no such store", self.complaint(2, "query", "/nope", "--key=a"))

    def test_bad_bytes_are_said_and_the_search_goes_on(self) -> None:
        """Of the segment with bad bytes the rest is not searched; the exit code says so."""
        store = self.store()
        records = [record for _, record in records_of(store)]
        flip_bit(store, records[0].physical_offset + 5)
        key = records[1].properties["KEYS"].split(" ")[0]
        result = self.run_command("query", store, "--key", key, "--scan")
        self.assertEqual((result.exit_code, result.stdout), (1, ""))
        self.assertIn("are not a record", result.stderr)
        last = records[-1]
        key = last.properties["KEYS"].split(" ")[0]
        result = self.run_command("query", store, "--key", key, "--scan", "--json")
        offsets = [json.loads(line)["physicalOffset"] for line in result.stdout.splitlines()]
        self.assertIn(last.physical_offset, offsets)


class LagOfStoreTests(CommandTestCase):
    def test_sums_and_queues(self) -> None:
        place = copy_of("slave", new_folder(self) / "store")
        queues = self.json_of("queues", place)
        topic = max(queues, key=lambda name: sum(each["max"] for each in queues[name].values()))
        numbers = sorted(map(int, queues[topic]))
        offsets = ",".join(f"{number}:1" for number in numbers)
        text = '{"offsetTable":{"' + topic + '@G\\u001b[2J":{' + offsets + '},"' + topic + '@Other":{0:0}}}'
        (place / "config" / "consumerOffset.json").write_text(text)
        output = self.output_of("lag", "--store", place, "--json")
        rows = {row["group"]: row for row in map(json.loads, output.splitlines())}
        end = sum(each["max"] for each in queues[topic].values())
        row = rows["G\x1b[2J"]
        self.assertEqual((row["topic"], row["queues"], row["brokerOffset"]), (topic, len(numbers), end))
        self.assertEqual(row["diff"], sum(max(0, each["max"] - 1) for each in queues[topic].values()))
        self.assertTrue(row["lastConsumed"].endswith("Z"))
        self.assertIsNone(rows["Other"]["lastConsumed"])
        table = self.output_of("lag", "--store", place, "--queues")
        self.assertEqual(len(table.splitlines()), 1 + len(numbers) + 1)
        self.assertNotIn("\x1b", table)
        only = self.output_of("lag", "Other", "--store", place, "--topic", topic)
        self.assertEqual(len(only.splitlines()), 2)

    def test_nothing_to_show(self) -> None:
        store = self.store()
        result = self.run_command("lag", "--store", store)
        self.assertEqual((result.exit_code, result.stdout, result.stderr), (0, "", "no group has offsets here\n"))
        self.assertIn("give one of", self.complaint(2, "lag", "--store", store, "--broker=b:1"))
        self.assertIn("give either", self.complaint(2, "lag"))


class TableTests(CommandTestCase):
    COLUMNS = (Column("name", is_name=True), Column("a", rank=1), Column("b", rank=2))
    ROWS = (("x" * 30, "1234567890", "22"), ("y\x1b[2J", "1", "2"))

    def test_less_important_columns_are_left_out_first(self) -> None:
        self.assertEqual(fitting(self.COLUMNS, self.ROWS, 80), [0, 1, 2])
        self.assertEqual(fitting(self.COLUMNS, self.ROWS, 20), [0, 2])
        self.assertEqual(fitting(self.COLUMNS, self.ROWS, 5), [0])

    def test_a_table_keeps_to_its_width(self) -> None:
        for width in (16, 20, 30, 40, 200):
            lines = table_text(self.COLUMNS, self.ROWS, width).splitlines()
            self.assertLessEqual(max(map(len, lines)), width)
            self.assertNotIn("\x1b", "".join(lines))
        self.assertIn("1234567890  22", table_text(self.COLUMNS, self.ROWS, 80))


def output_of(*arguments: str, lines: bytes = b"") -> bytes:
    """What a command that ends well prints."""
    done = rmqha_bytes(*arguments, lines=lines)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


def objects_of(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output_of(*arguments, "--json").splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master of ours that a name server lists, with 20 messages in topic T; gives --namesrv and the broker."""
    work = tmp_path_factory.mktemp("cluster")
    port = free_port()
    with NameServerNode(work) as name_server:
        way = f"--namesrv={name_server.address}"
        options = ["--role=async-master", f"--port={port}", way, *SMALL_FILES]
        with TwistdNode(work, options, name="master") as master:
            master.wait_for_event(Event.REGISTERED)
            lines = b"\n".join(b"line %d" % number for number in range(20))
            output_of("put", "T", way, "--keys=k1 k2", lines=lines)
            count = 20
            master.wait_until_found(
                lambda: len(rmqha_bytes("pull", "T", way, "--body").stdout.splitlines()) >= count or None,
                "messages",
                SECONDS,
            )
            yield f"{way} --broker=127.0.0.1:{port}"


@pytest.mark.process
@pytest.mark.story
def test_query_on_brokers(cluster: str) -> None:
    for way in cluster.split():
        by_key = objects_of("query", way, "--key=k2", "--topic=T", "-n40")
        assert sorted(each["queueOffset"] for each in by_key) == sorted([*range(5)] * 4)
        first = by_key[0]
        queue_place = f"--offset={first['queueId']}:{first['queueOffset']}"
        unique = f"--id={first['properties']['UNIQ_KEY']}"
        for question in ([queue_place, "--topic=T"], [unique, "--topic=T"], [f"--id={first['msgId']}"]):
            assert [each["physicalOffset"] for each in objects_of("query", way, *question)] == [first["physicalOffset"]]
        since = f"--time={iso_time(first['storeTimestamp'])}"
        assert len(objects_of("query", way, since, "--topic=T", "-n7")) == 7
        nothing = rmqha_bytes("query", way, "--key=unknown", "--topic=T")
        assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"nothing is found\n")
        assert rmqha("query", way, "--key=k", "--topic=Unknown").returncode == 2
    assert len(objects_of("query", cluster.split()[1], f"--offset={first['physicalOffset']}")) == 1
    assert rmqha("query", cluster.split()[0], "--offset=0").returncode == 2
    assert rmqha("query", f"--broker={NOBODY}", "--key=k", "--topic=T").returncode == 7


@pytest.mark.process
@pytest.mark.story
def test_tail_shows_the_last_and_follows(cluster: str) -> None:
    way = cluster.split()[0]
    assert len(output_of("tail", "T", way, "--body").splitlines()) == 10
    everything = output_of("tail", "T", way, "--body", "-n100").splitlines()
    assert sorted(everything) == sorted(b"line %d" % number for number in range(20))
    assert len(objects_of("tail", "T", way, "-n3")) == 3
    assert rmqha("tail", "Unknown", way).returncode == 2
    assert rmqha("tail", "T", way, "--from=first").returncode == 2
    arguments = [RMQHA, "tail", "T", way, "-f", "-n1", "--body"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        try:
            assert follower.stdout.readline().startswith(b"line ")
            output_of("put", "T", "new", way)
            assert follower.stdout.readline() == b"new\n"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(SECONDS) == 0
            assert follower.stderr.read() == b""
        finally:
            follower.kill()


@pytest.mark.process
def test_tail_ends_quietly_when_its_reader_ends(cluster: str) -> None:
    way = cluster.split()[0]
    arguments = [RMQHA, "tail", "T", way, "-f", "--from=first"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        try:
            follower.stdout.readline()
            follower.stdout.close()
            while follower.poll() is None:  # it notices at its next line
                rmqha("put", "T", "more", way)
            assert (follower.returncode, follower.stderr.read()) == (0, b"")
        finally:
            follower.kill()


@pytest.mark.process
@pytest.mark.story
def test_lag_on_brokers(cluster: str) -> None:
    by_name_server, by_broker = cluster.split()
    address = by_broker.partition("=")[2]
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "2"}
    requests.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    end = len(output_of("pull", "T", by_broker).splitlines())
    for way in (by_name_server, by_broker):
        (row,) = [each for each in objects_of("lag", way) if each["group"] == "G"]  # a broker has groups of its own
        assert (row["topic"], row["queues"]) == ("T", 4)
        assert (row["brokerOffset"], row["consumerOffset"], row["diff"]) == (end, 2, end - 2)
        assert row["lastConsumed"].endswith("Z")
        queues = {each["queueId"]: each["consumerOffset"] for each in objects_of("lag", "G", way, "--queues")}
        assert queues == {0: 0, 1: 2, 2: 0, 3: 0}
        assert output_of("lag", way).split()[:2] == [b"group", b"topic"]
        assert rmqha_bytes("lag", "nobody", way).stdout == b""
    assert rmqha("lag", f"--broker={NOBODY}").returncode == 7
