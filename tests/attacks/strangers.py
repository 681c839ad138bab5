"""The attacks: each a cheap thing that a stranger may send, over plain sockets and with no client of ours.

Each gives what came of it in a few words, and never trusts the node to answer: sockets have a time limit.
"""

import json
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count

from rmqha.acl.signing import Credentials, Signer
from rmqha.wire.command import FRAME_MAX_LENGTH, OUR_VERSION, RequestCode
from tests.waiting import WAIT_SECONDS

MIB = 1024 * 1024
PULL = {
    "consumerGroup": "G",
    "topic": "BenchmarkTest",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}
SEND = {"a": "PG", "b": "BenchmarkTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
_opaque = count(1)


def frame(code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """A request."""
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "language": "JAVA",
            "opaque": next(_opaque),
            "version": 399,
            "extFields": fields or {},
        }
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class Stranger:
    """A connection to a port of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)

    def ask(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> tuple[int, str, bytes]:
        """Code, remark and body of the answer; code -1 where the node hung up."""
        try:
            self.socket.sendall(frame(code, fields, body))
            return self.answer()
        except OSError:
            return -1, "hung up", b""

    def answer(self) -> tuple[int, str, bytes]:
        """The next answer; what the node tells without being asked is passed over."""
        while True:
            (size,) = struct.unpack(">I", self._receive(4))
            data = self._receive(size)
            (word,) = struct.unpack_from(">I", data)
            end = 4 + (word & 0xFFFFFF)
            head = json.loads(data[4:end])
            if head["flag"] & 1:
                return head["code"], head.get("remark") or "", data[end:]

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(min(MIB, size - len(data)))
            if not more:
                raise ConnectionResetError("the node hung up")
            data += more
        return bytes(data)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def told(answer: tuple[int, str, bytes]) -> str:
    """An answer in a few words."""
    return f"code {answer[0]}{': ' if answer[1] else ''}{answer[1][:70]}"


def asked_once(port: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> str:
    """One request on a connection of its own."""
    with closing(Stranger(port)) as stranger:
        return told(stranger.ask(code, fields, body))


def heartbeat(groups: Iterable[str], subscriptions: int = 1) -> bytes:
    """The body of one that is a consumer in these groups."""
    wanted = [{"topic": f"T{number}", "subString": "*", "subVersion": 1} for number in range(subscriptions)]
    consumers = [{"groupName": group, "subscriptionDataSet": wanted} for group in groups]
    return json.dumps({"clientID": "stranger", "consumerDataSet": consumers, "producerDataSet": []}).encode()


def new_groups(port: int, names: str, number: int) -> str:
    """One heartbeat with so many new groups."""
    return asked_once(port, RequestCode.HEART_BEAT, body=heartbeat(f"{names}-{at}" for at in range(number)))


def pulls_of_new_groups(port: int, names: str, number: int) -> str:
    """So many pulls, each of a new group."""
    codes: dict[int, int] = {}
    with closing(Stranger(port)) as stranger:
        for at in range(number):
            stranger.socket.sendall(frame(RequestCode.PULL_MESSAGE, {**PULL, "consumerGroup": f"{names}-{at}"}))
        for _ in range(number):
            code, _, _ = stranger.answer()
            codes[code] = codes.get(code, 0) + 1
    return f"codes {codes}"


def wrong_names(port: int) -> str:
    """Groups that no group may be."""
    with closing(Stranger(port)) as stranger:
        answers = [
            stranger.ask(RequestCode.PULL_MESSAGE, {**PULL, "consumerGroup": name})
            for name in ("../../g", "x" * 100_000)
        ] + [stranger.ask(RequestCode.HEART_BEAT, body=heartbeat([name])) for name in ("../../g", "x" * 100_000)]
    return f"codes {[answer[0] for answer in answers]}"


def slow_json(port: int) -> str:
    """A heartbeat of 14 MiB with a comma too many."""
    item = b'{"groupName":"g","subscriptionDataSet":[]},'
    body = b'{"clientID":"c","consumerDataSet":[' + item * (14 * MIB // len(item)) + b"]}"
    return asked_once(port, RequestCode.HEART_BEAT, body=body)


def slow_json_within_limits(port: int) -> str:
    """The same, just not too long for a heartbeat."""
    item = b'{"groupName":"g","subscriptionDataSet":[]},'
    body = b'{"clientID":"c","consumerDataSet":[' + item * (1000 * 1024 // len(item)) + b"]}"
    return asked_once(port, RequestCode.HEART_BEAT, body=body)


def many_subscriptions(port: int, number: int) -> str:
    """A heartbeat with so many subscriptions, as small as they can be."""
    item = b'{"topic":"t"},'
    subscriptions = (item * number)[:-1]
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[' + subscriptions + b"]}]}"
    return asked_once(port, RequestCode.HEART_BEAT, body=body)


def long_subscription(port: int, size: int) -> str:
    """A pull with an expression of so many bytes."""
    return asked_once(port, RequestCode.PULL_MESSAGE, {**PULL, "subscription": "a||" * (size // 3)})


def long_subscriptions(port: int, number: int) -> str:
    """So many pulls, each with an expression as long as may be, all different."""
    with closing(Stranger(port)) as stranger:
        for at in range(number):
            expression = "||".join(f"{at}x{tag}" for tag in range(1500))[:16_000]
            stranger.socket.sendall(frame(RequestCode.PULL_MESSAGE, {**PULL, "subscription": expression}))
        answers = [stranger.answer() for _ in range(number)]
    return f"{len(answers)} answers, the last {told(answers[-1])[:30]}"


def batch(port: int, number: int, body: bytes = b"") -> str:
    """A batch of so many messages with this body."""
    entry = struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0"
    return asked_once(port, RequestCode.SEND_BATCH_MESSAGE, {**SEND, "m": "true"}, entry * number)


def unfinished_frames(port: int, connections: int, size: int = FRAME_MAX_LENGTH) -> str:
    """So many connections, each of which sends a frame of ``size`` bytes but for its end, and waits."""
    with frames_held(port, connections, size) as closed:
        return f"{connections} connections, {closed} closed meanwhile"


@contextmanager
def frames_held(port: int, connections: int, size: int, code: int = 310) -> Iterator[int]:
    """The same, inside; gives how many were closed until then."""
    closed = 0
    header = json.dumps({"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 399, "extFields": SEND})
    head = struct.pack(">II", size, len(header)) + header.encode()
    rest = memoryview(bytes(size - len(head) + 3))
    with ExitStack() as stack:
        strangers = [stack.enter_context(closing(Stranger(port))) for _ in range(connections)]
        at = dict.fromkeys(strangers, 0)
        for stranger in strangers:
            stranger.socket.sendall(head)
            stranger.socket.setblocking(False)
        idle = 0
        while idle < 100 and at:
            moved = 0
            for stranger in list(at):
                try:
                    sent = stranger.socket.send(rest[at[stranger] : at[stranger] + 4 * MIB])
                except BlockingIOError:
                    continue
                except OSError:
                    closed += 1
                    del at[stranger]
                    continue
                at[stranger] += sent
                moved += sent
                if at[stranger] == len(rest):
                    del at[stranger]
            idle = 0 if moved else idle + 1
            if not moved:
                _pause()
        yield closed


def _pause() -> None:
    time.sleep(0.01)


def deaf_readers(port: int, connections: int, code: int = RequestCode.GET_ALL_TOPIC_CONFIG) -> str:
    """So many connections that ask for a whole table and read nothing of it."""
    with ExitStack() as stack:
        strangers = [stack.enter_context(closing(Stranger(port))) for _ in range(connections)]
        for stranger in strangers:
            stranger.socket.sendall(frame(code) * 20)
        asked_once(port, RequestCode.GET_MAX_OFFSET, {"topic": "BenchmarkTest", "queueId": "0"})
        for _ in range(100):
            _pause()
    return f"{connections} connections"


def registration(port: int, topics: int, name: str = "stranger") -> str:
    """A broker registers with so many topics, compressed."""
    version = b'{"counter":1,"timestamp":1}'
    prefix = struct.pack(">i", len("t0000000 1 1 6 SINGLE_TAG")).decode()
    data = "".join(f"{prefix}t{at:07} 1 1 6 SINGLE_TAG" for at in range(topics)).encode()
    plain = struct.pack(">i", len(version)) + version + struct.pack(">i", topics) + data + struct.pack(">i", 2) + b"[]"
    return _register(port, zlib.compress(plain), "true", name)


def plain_registration(port: int, topics: int, name: str = "stranger") -> str:
    """As Java does it, not compressed."""
    row = {
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    rows = {f"topic-{at}": {**row, "topicName": f"topic-{at}"} for at in range(topics)}
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": rows}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": table}, separators=(",", ":")).encode()
    return _register(port, body, "false", name)


def _register(port: int, body: bytes, compressed: str, name: str) -> str:
    fields = {
        "brokerName": name,
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "strange",
        "haServerAddr": "127.0.0.1:2",
        "brokerId": "0",
        "compressed": compressed,
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return f"{len(body) / MIB:.1f} MiB, {asked_once(port, RequestCode.REGISTER_BROKER, fields, body)}"


def kv_puts(port: int, number: int, value: str = "v") -> str:
    """So many texts, all at once."""
    codes: dict[int, int] = {}
    with closing(Stranger(port)) as stranger:
        stranger.socket.sendall(
            b"".join(
                frame(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": f"k{at}", "value": value})
                for at in range(number)
            )
        )
        for _ in range(number):
            code, _, _ = stranger.answer()
            codes[code] = codes.get(code, 0) + 1
    return f"codes {codes}"


def asked_often(port: int, code: int, fields: Mapping[str, str] | None = None, number: int = 200) -> str:
    """The same request so many times in one packet."""
    codes: dict[int, int] = {}
    size = 0
    with closing(Stranger(port)) as stranger:
        sender: Callable[[bytes], object] = stranger.socket.sendall
        sender(frame(code, fields) * number)
        for _ in range(number):
            answer = stranger.answer()
            codes[answer[0]] = codes.get(answer[0], 0) + 1
            size += len(answer[2])
    return f"codes {codes}, {size / MIB:.1f} MiB"


def signatures(port: int, keys: Credentials, connections: int, seconds: float, reconnects: bool = False) -> str:
    """Puts with these keys, as many as the node takes, on so many connections, or with a new one for each."""
    body = b"x" * 1024
    put = frame(RequestCode.SEND_MESSAGE_V2, Signer(keys)(SEND, body, OUR_VERSION), body)
    sent = refused = cut = 0
    end = time.monotonic() + seconds
    with ExitStack() as stack:
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]

        def close_all() -> None:
            for each in sockets:
                each.close()

        stack.callback(close_all)
        for each in sockets:
            each.setblocking(False)
        while time.monotonic() < end:
            for at, each in enumerate(sockets):
                is_cut = False
                try:
                    with suppress(BlockingIOError):
                        sent += each.send(put * (1 if reconnects else 10)) // len(put)
                    with suppress(BlockingIOError):
                        answer = each.recv(65_536)
                        refused += answer.count(b"Check signature failed")
                        is_cut = not answer
                except OSError:
                    is_cut = True
                cut += is_cut
                if reconnects or is_cut:
                    each.close()
                    sockets[at] = socket.create_connection(("127.0.0.1", port))
                    sockets[at].setblocking(False)
            if not reconnects:
                time.sleep(0.001)  # the broker needs the processor too: more would measure only the stranger
    return f"{sent / seconds:.0f}/s sent, {refused / seconds:.0f}/s refused, {cut / seconds:.0f}/s cut off"
