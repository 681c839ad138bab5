"""Fuzzes a whole broker: many connections, plain and with TLS. Their streams are cut anywhere, and some break off.

``python -m tests.fuzz.broker --seeds 0..9`` ends with status 1 at the first seed with a problem, and prints what it is.
Each body names its connection, so bytes of one connection in a message or an answer of another are found. The node has
the compiled kernel if it is built.
"""

import argparse
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rmqha.kit.events import Event
from rmqha.store.errors import StoreError
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.nodes import PATIENCE_SECONDS, TwistdNode, free_port
from rmqha.testing.sim.runner import Seeds
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import (
    JSON_SERIALIZE_TYPE,
    ONEWAY_FLAG,
    ROCKETMQ_SERIALIZE_TYPE,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_command,
    encode_head,
)
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.layout import UNIT
from rmqha.wire.record import Record, parse_msg_id
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS
from tests.commands import rmqha
from tests.net.tls.authority import Authority

CONNECTIONS = 200
REQUESTS = 40
TOPICS = ("Orders", "Events", "Logs")
QUEUES = 4
UNKNOWN_CODE = 9999
LAST_WORDS = (
    b'\0\0\0\x14\0\0\0\x10{"code":310,"fl}}',
    struct.pack(">iI", 0x7FFFFFFF, 20),
    struct.pack(">iI", -1, 20),
    b"\0\0\0\x08\0\0\0\xffabcd",
)
"""Frames after which a broker hangs up, or waits for the rest."""


class Sent(NamedTuple):
    """A request with messages: their bodies by their names, and the unique key that its answer has, if it has one."""

    topic: str
    bodies: dict[bytes, bytes]
    unique_key: str


class Told(NamedTuple):
    """What an answer says of a message: the offsets of the log and of the queue."""

    offset: int
    queue_id: int
    queue_offset: int


class Connection:
    """A client: its stream, what it sent, and what it was answered."""

    def __init__(self, number: int, rng: Random, requests: int) -> None:
        self.number = number
        self.rng = rng
        self.sent: dict[int, Sent] = {}
        self.asked: set[int] = set()
        """The opaque numbers of requests that get an answer."""
        self.told: dict[int, Told] = {}
        self.problems: list[str] = []
        self._at = 0
        self._received = bytearray()
        frames = [self._request(opaque) for opaque in range(1, requests + 1)]
        self.fate = rng.choice(("stays", "stays", "stays", "breaks off", "ends oddly"))
        if self.fate == "ends oddly":
            frames.append(rng.choice(LAST_WORDS))
        self._stream = b"".join(frames)
        self._end = rng.randrange(len(self._stream)) if self.fate == "breaks off" else len(self._stream)

    def connect(self, port: int, tls: ssl.SSLContext | None) -> None:
        """Open the connection."""
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket)

    def _body(self, opaque: int, part: int = 0) -> tuple[bytes, bytes]:
        name = b"%d-%d-%d" % (self.number, opaque, part)
        return name, name + b"|" + self.rng.randbytes(self.rng.choice((0, 10, 100, 100, 1000, 5000)))

    def _unique_key(self, opaque: int) -> str:
        return f"{self.number:08X}{opaque:08X}"

    def _fields(self, opaque: int, delay: str = "") -> dict[str, str]:
        rng = self.rng
        properties = [f"UNIQ_KEY\1{self._unique_key(opaque)}", "WAIT\1true"]
        properties += [f"TAGS\1{rng.choice(('a', 'b', 'ü'))}"] if rng.random() < 0.6 else []
        properties += [f"KEYS\1k{self.number} k{opaque}"] if rng.random() < 0.4 else []
        properties += [f"DELAY\1{delay}"] if delay else []
        topic, queue_id, stored = rng.choice(TOPICS), str(rng.randrange(QUEUES)), "\2".join(properties)
        values = ["group", topic, "TBW102", str(QUEUES), queue_id, "0", "1700000000000", "0", stored]
        values += ["0", "false", "16", "false"]
        return dict(zip(V2_FIELDS.names, values, strict=True))

    def _request(self, opaque: int) -> bytes:
        """The frame of a request of some kind."""
        kind = self.rng.choices(
            ("send", "v1", "binary", "delayed", "batch", "oneway", "other"), (60, 8, 8, 4, 4, 4, 12)
        )[0]
        if kind == "other":
            return self._other(opaque)
        code, flag, encoding = RequestCode.SEND_MESSAGE_V2, 0, JSON_SERIALIZE_TYPE
        fields = self._fields(opaque, "18" if kind == "delayed" else "")
        sent = Sent(fields["b"], dict([self._body(opaque)]), self._unique_key(opaque))
        body = next(iter(sent.bodies.values()))
        if kind == "v1":
            code, fields = RequestCode.SEND_MESSAGE, dict(zip(V1_FIELDS.names, fields.values(), strict=True))
        elif kind == "binary":
            encoding = ROCKETMQ_SERIALIZE_TYPE
        elif kind == "batch":
            code, fields["m"] = RequestCode.SEND_BATCH_MESSAGE, "true"
            bodies = dict(self._body(opaque, part) for part in range(self.rng.randrange(1, 5)))
            sent, body = Sent(sent.topic, bodies, ""), encode_batch(BatchEntry(each) for each in bodies.values())
        elif kind == "oneway":
            flag = ONEWAY_FLAG
        if kind != "oneway":
            self.asked.add(opaque)
        self.sent[opaque] = sent
        command = RemotingCommand(code, opaque, flag, None, fields, body, serialize_type=encoding)
        return encode_head(command) + body

    def _other(self, opaque: int) -> bytes:
        """A request without messages."""
        queue = {"topic": self.rng.choice(TOPICS), "queueId": "0"}
        pull = {"consumerGroup": "readers", "queueOffset": "0", "maxMsgNums": "4", "sysFlag": "0", "commitOffset": "0"}
        pull |= {"suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*", **queue}
        choices: tuple[tuple[int, dict[str, str], bytes], ...] = (
            (RequestCode.GET_MAX_OFFSET, queue, b""),
            (RequestCode.PULL_MESSAGE, pull, b""),
            (RequestCode.HEART_BEAT, {}, b'{"clientID":"c%d","producerDataSet":[{"groupName":"group"}]}' % self.number),
            (UNKNOWN_CODE, {"x": "y"}, self.rng.randbytes(50)),
        )
        code, fields, body = self.rng.choice(choices)
        self.asked.add(opaque)
        return encode_head(RemotingCommand(code, opaque, 0, None, fields, body)) + body

    @property
    def is_done(self) -> bool:
        """Whether everything is sent."""
        return self._at >= self._end

    def go_on(self) -> None:
        """Send a piece of the stream of any length. At its end the connection may break off."""
        size = self.rng.choice((1, 3, 50, 500, 2000, 20_000))
        piece = self._stream[self._at : min(self._end, self._at + size)]
        self._at += len(piece)
        try:
            self._socket.sendall(piece)
        except OSError:
            if self.fate != "ends oddly":
                raise
            self._at = self._end
        if self.is_done and self.fate == "breaks off":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.close()

    def finish(self) -> None:
        """Take the answers, all of them if the connection stays, and close it."""
        if self.fate == "stays":
            while self.asked and not self.problems:
                data = self._socket.recv(1 << 16)
                if not data:
                    self.problems.append(f"connection {self.number} was closed, with {len(self.asked)} answers missing")
                    break
                self._take(data)
        if self.fate != "breaks off":
            self._socket.close()

    def _take(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (length,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + length:
                break
            self._answered(decode_command(bytes(self._received[4 : 4 + length])))
            del self._received[: 4 + length]

    def _answered(self, answer: RemotingCommand) -> None:
        if answer.opaque not in self.asked:
            self.problems.append(f"connection {self.number} has an answer that it did not ask for: {answer}")
            return
        self.asked.discard(answer.opaque)
        sent = self.sent.get(answer.opaque)
        if sent is None:
            return
        if answer.code != ResponseCode.SUCCESS:
            self.problems.append(f"a send of connection {self.number} failed: {answer}")
            return
        fields = answer.ext_fields
        if sent.unique_key:
            offset = parse_msg_id(fields["msgId"])[1]
            self.told[answer.opaque] = Told(offset, int(fields["queueId"]), int(fields["queueOffset"]))
            if fields.get("transactionId") != sent.unique_key:
                self.problems.append(f"{sent.unique_key} has the answer of another: {fields}")


def log_records(store: Path) -> list[Record]:
    """All messages of a store that is closed. Raises StoreError."""
    reader = StoreReader(store)
    try:
        return [record for _, record in reader.records(0, None) if isinstance(record, Record)]
    finally:
        reader.close()


def log_problems(connections: Sequence[Connection], records: Sequence[Record]) -> Iterator[str]:
    """What is wrong with the messages of a log."""
    sent = {name: body for each in connections for one in each.sent.values() for name, body in one.bodies.items()}
    names = set[bytes]()
    ends = Counter[tuple[str, int]]()
    for record in records:
        name = record.body.partition(b"|")[0]
        if sent.get(name) != record.body:
            yield f"the message at {record.physical_offset} is not what {name!r} sent"
        if name in names:
            yield f"{name!r} is stored twice"
        names.add(name)
        queue = record.topic, record.queue_id
        if record.queue_offset != ends[queue]:
            yield f"{name!r} has queue offset {record.queue_offset} of {queue}, not {ends[queue]}"
        ends[queue] = record.queue_offset + 1


def answer_problems(connections: Sequence[Connection], records: Sequence[Record]) -> Iterator[str]:
    """Answers that say what is not so."""
    by_name = {record.body.partition(b"|")[0]: record for record in records}
    for each in connections:
        for opaque, told in each.told.items():
            one = each.sent[opaque]
            name = next(iter(one.bodies))
            stored = by_name.get(name)
            if stored is None:
                yield f"{name!r} was answered, and is not stored"
                continue
            is_delayed = stored.topic == SCHEDULE_TOPIC  # its answer has the queue id that it asked for
            place = stored.physical_offset, told.queue_id if is_delayed else stored.queue_id, stored.queue_offset
            if told != place:
                yield f"{name!r} was answered with {told}, and is at {place}"
            elif stored.topic != one.topic and not is_delayed:
                yield f"{name!r} is in topic {stored.topic}"
        if each.fate == "stays":
            missing = [name for one in each.sent.values() for name in one.bodies if name not in by_name]
            if missing:
                yield f"connection {each.number} was answered all, and {missing} are not stored"


def queue_problems(store: Path, records: Sequence[Record]) -> Iterator[str]:
    """Messages that are not where their queue has them."""
    units: dict[tuple[str, int], bytes] = {}
    for record in records:
        queue = record.topic, record.queue_id
        if queue not in units:
            folder = store / "consumequeue" / record.topic / str(record.queue_id)
            units[queue] = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        if UNIT.unpack_from(units[queue], record.queue_offset * UNIT.size)[0] != record.physical_offset:
            yield f"unit {record.queue_offset} of {queue} does not lead to {record.physical_offset}"


def fuzz(
    seed: int,
    work: Path,
    connection_count: int = CONNECTIONS,
    requests: int = REQUESTS,
    prefix: Sequence[str] = (),
) -> tuple[list[str], int]:
    """One broker with one load: what is wrong, and how many messages its log has. ``prefix`` is that of the node."""
    rng = Random(seed)
    authority = Authority(work / "ca")
    tls = ssl.create_default_context(cafile=str(authority.path))
    tls.check_hostname = False
    options = [f"--port={free_port()}", f"--tls-cert={authority.issue('127.0.0.1')}"]
    options += ["--role=async-master", "--set=tls.server.mode=permissive"]
    with TwistdNode(work, options, prefix=prefix) as node:
        port = node.port("remoting")
        connections = [Connection(number, Random(rng.random()), requests) for number in range(connection_count)]
        for each in connections:
            each.connect(port, tls if rng.random() < 0.5 else None)
        busy = list(connections)
        while busy:
            at = rng.randrange(len(busy))
            busy[at].go_on()
            if busy[at].is_done:
                busy[at] = busy[-1]
                del busy[-1]
        for each in connections:
            each.finish()
        status = node.stop()
        problems = [problem for each in connections for problem in each.problems]
        problems += [f"the node ended with status {status}"] if status else []
        problems += [f"the node says: {line}" for line in node.errors()]
        problems += [f"the node failed: {line}" for line in node.events(Event.REQUEST_FAILED)]
        try:
            records = log_records(node.store)
        except StoreError as error:
            return [*problems, str(error)], 0
        problems += log_problems(connections, records)
        problems += answer_problems(connections, records)
        problems += queue_problems(node.store, records)
        verified = rmqha("verify", node.store)
        problems += [verified.stdout + verified.stderr] if verified.returncode else []
    return problems, len(records)


def main() -> int:
    """0 if no seed has a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.broker", description=__doc__)
    parser.add_argument("--seeds", type=Seeds.parse, default="0..9", help="A, A..B, or A.. for no end")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each connection")
    arguments: Any = parser.parse_args()
    for seed in arguments.seeds.after(None):
        with TemporaryDirectory() as folder:
            problems, messages = fuzz(seed, Path(folder), arguments.connections, arguments.requests)
        print(f"seed {seed}: {messages} messages, {len(problems)} problems", flush=True)
        if problems:
            print("\n".join(problems[:20]))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
