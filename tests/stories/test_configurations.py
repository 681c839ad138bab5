"""The configurations of ``examples/``, run as its command runs them: producers go from master to master, and the slave
of a killed one gives consumers what it had.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed_reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from examples import cluster
from rmqha.client import Message, MQClient, MQClientError, Producer, PullConsumer, SendResult, SendStatus
from rmqha.client.bulk import BulkPull, put_all
from rmqha.settings.settings import BrokerRole
from rmqha.tap import Options
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.record import Record
from tests.inreactor import with_reactor
from tests.waiting import WAIT_SECONDS

REACTOR: Any = installed_reactor
COMMAND = [sys.executable, cluster.__file__]
TOPIC = "T"
"""A slave asks for its master's topics each ten seconds."""
A, B = "broker-a", "broker-b"
PATIENT = ("--set=slaveTimeout=60000",)
"""A slave answers each put, however busy the machine."""


class FilesTests(SynchronousTestCase):
    def nodes(self, name: str) -> dict[str, tuple[str, str, int | None]]:
        """Of each file, as a node reads it that is told nothing else: brokerName, brokerRole and brokerId."""
        nodes, ports = {}, []
        for file in (cluster.EXAMPLES / name).iterdir():
            options = Options()
            options.parseOptions([f"--conf={file}"])
            settings = options.settings
            nodes[file.name] = settings.broker_name, settings.broker_role.value, settings.broker_id
            ports.append(settings.listen_port)
            self.assertEqual(settings.store_path_root_dir, Path("store", name, file.stem))
        self.assertTrue(all(after - before >= 10 for before, after in pairwise(sorted(ports))), ports)
        return nodes

    def test_two_masters_with_a_slave_each(self) -> None:
        for name, role in (("2m-2s-async", "ASYNC_MASTER"), ("2m-2s-sync", "SYNC_MASTER")):
            expected = {
                "broker-a.properties": (A, role, 0),
                "broker-a-s.properties": (A, "SLAVE", 1),
                "broker-b.properties": (B, role, 0),
                "broker-b-s.properties": (B, "SLAVE", 1),
            }
            self.assertEqual(self.nodes(name), expected)

    def test_a_failover_pair(self) -> None:
        expected = {"a.properties": (A, "SYNC_MASTER", None), "b.properties": (A, "SLAVE", None)}
        self.assertEqual(self.nodes("failover"), expected)

    def test_two_masters_alone(self) -> None:
        expected = {"broker-a.properties": (A, "ASYNC_MASTER", 0), "broker-b.properties": (B, "ASYNC_MASTER", 0)}
        self.assertEqual(self.nodes("2m-noslave"), expected)


@contextlib.asynccontextmanager
async def stopping(client: MQClient) -> AsyncIterator[MQClient]:
    """The client, which disconnects in the end."""
    try:
        yield client
    finally:
        await client.stop()


class Sender:
    """Sends messages, several at a time, and keeps what became of them."""

    def __init__(self, client: MQClient) -> None:
        self.results: list[SendResult] = []
        self._producer = Producer(client, "PG", timeout=WAIT_SECONDS)

    async def send(self, count: int, sent: Callable[[SendResult], None] = lambda _: None) -> list[SendResult]:
        """The results of so many messages; ``sent`` hears of each."""
        results: list[SendResult] = []

        def took(result: SendResult) -> None:
            results.append(result)
            sent(result)

        await put_all(self._producer, (Message(TOPIC, b"%d" % number) for number in range(count)), took)
        self.results += results
        return results


def brokers_of(results: Iterable[SendResult]) -> Counter[str]:
    return Counter(result.queue.broker_name for result in results)


def assert_alternated(results: list[SendResult]) -> None:
    """Both masters have got about half."""
    brokers = brokers_of(results)
    assert brokers.keys() == {A, B}
    assert min(brokers.values()) > 0.4 * len(results), brokers


def statuses_of(results: Iterable[SendResult]) -> set[SendStatus]:
    return {result.status for result in results}


def stored_by(broker: str, results: Iterable[SendResult]) -> set[str]:
    """The ids of the messages that this broker has taken with SEND_OK."""
    return {
        result.msg_id
        for result in results
        if result.status is SendStatus.SEND_OK and result.queue.broker_name == broker
    }


async def wait_for_messages(client: MQClient, wanted: set[str]) -> None:
    """Read the topic until all of these are in it: what is sent is to be read a moment later."""
    deadline = REACTOR.seconds() + WAIT_SECONDS
    while missing := wanted - await read(client):
        assert REACTOR.seconds() < deadline, f"{len(missing)} of {len(wanted)} messages are missing"
        await deferLater(REACTOR, 0.1)


async def read(client: MQClient) -> set[str]:
    """The ids of all messages that there are now."""
    found: set[str] = set()

    def got(record: Record) -> None:
        found.add(record.properties["UNIQ_KEY"])

    with contextlib.suppress(MQClientError):  # a slave that does not know the topic yet
        await BulkPull(PullConsumer(client, "CG"), REACTOR, got).run(TOPIC)
    return found


@pytest.mark.process
@pytest.mark.parametrize("name", ["2m-2s-async", "2m-2s-sync"])
@with_reactor
async def test_with_one_master_killed_its_slave_is_read_and_the_other_master_written(name: str, tmp_path: Path) -> None:
    with cluster.running(name, tmp_path, base_port=0, options=PATIENT) as running:
        async with stopping(MQClient.of_name_servers(REACTOR, running.name_server.address)) as client:
            sender = Sender(client)
            before = await sender.send(100)
            assert_alternated(before)
            assert statuses_of(before) == {SendStatus.SEND_OK}
            slave_address = f"127.0.0.1:{running.nodes[f'{A}-s'].port('remoting')}"
            async with stopping(MQClient.of_broker(REACTOR, slave_address)) as slave:
                await wait_for_messages(slave, stored_by(A, before))
            during = await sender.send(400, kill_at(100, running.nodes[A]))
            after = await sender.send(50)
            assert brokers_of(after) == {B: 50}
            assert statuses_of(after) == {SendStatus.SEND_OK}
            promised = during if running.settings[A].broker_role is BrokerRole.SYNC_MASTER else []
            assert stored_by(A, during)
            await wait_for_messages(client, stored_by(A, [*before, *promised]) | stored_by(B, sender.results))
        statuses = running.stop()
    assert statuses == {A: -signal.SIGKILL, f"{A}-s": 0, B: 0, f"{B}-s": 0, "namesrv": 0}


def kill_at(count: int, node: TwistdNode) -> Callable[[SendResult], None]:
    """What kills the node when it hears of a result for the ``count``th time."""
    results: list[SendResult] = []

    def heard(result: SendResult) -> None:
        results.append(result)
        if len(results) == count:
            node.kill()

    return heard


@pytest.mark.process
@with_reactor
async def test_the_command_runs_masters_without_slaves_until_it_is_interrupted(tmp_path: Path) -> None:
    arguments = ["2m-noslave", f"--work={tmp_path}", "--base-port=0"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, start_new_session=True) as command:
        try:
            told = output_until("Ctrl-C", command)
            assert re.findall(r"(broker-\S+) +\S (\w+)", told) == [(A, "ASYNC_MASTER"), (B, "ASYNC_MASTER")]
            address = told.rpartition("--namesrv=")[2].partition(";")[0]
            async with stopping(MQClient.of_name_servers(REACTOR, address)) as client:
                sender = Sender(client)
                assert_alternated(await sender.send(100))
                await wait_for_messages(client, stored_by(A, sender.results) | stored_by(B, sender.results))
        finally:
            os.killpg(command.pid, signal.SIGINT)  # as a terminal does
        assert command.wait(WAIT_SECONDS) == 0
    for name in (A, B):
        log = tmp_path / "store" / "2m-noslave" / f"{name}.log"
        assert "stopped at" in log.read_text()


@pytest.mark.process
@with_reactor
async def test_a_failover_pair_takes_messages(tmp_path: Path) -> None:
    with cluster.running("failover", tmp_path, base_port=0, options=PATIENT) as running:
        async with stopping(MQClient.of_name_servers(REACTOR, running.name_server.address)) as client:
            sender = Sender(client)
            await sender.send(20)
            assert statuses_of(sender.results) == {SendStatus.SEND_OK}
        statuses = running.stop()
    assert statuses == {"a": 0, "b": 0, "namesrv": 0}


def output_until(text: str, process: "subprocess.Popen[bytes]") -> str:
    """What a process prints up to the line with this text."""
    assert process.stdout is not None
    told = ""
    while text not in told:
        line = process.stdout.readline()
        assert line, f"it ended: {told}"
        told += line.decode()
    return told
