"""Records what Java clients and a Java broker say to each other: ``python -m tests.interop.record_conversation``.

Writes tests/data/java-conversation.jsonl.gz: a line with the broker's settings, then one for each frame that passed
between them, in that order. ``at`` is in seconds from the first; a frame is without its length.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final

from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode, decode_command, encode_command
from rmqha.wire.fastjson import dumps_compact
from tests.interop.nodes import ask
from tests.interop.rocketmq import LOCALHOST, PROJECT_ROOT, SMALL_FILES, Broker, Driver

TARGET: Final = PROJECT_ROOT / "tests" / "data" / "java-conversation.jsonl.gz"
NAME, CLUSTER = "broker-recorded", "recorded"
GROUP: Final = "GRecorded"
TOPICS: Final = {"TRecorded": 2, f"%RETRY%{GROUP}": 1}
DELAYS: Final = "1s 2s 3s"
"""The third is that of a first retry."""

SENT_BEFORE: Final = (
    {"name": "sync", "topic": "TRecorded", "kind": "sync", "count": 6, "body_bytes": 6_000},
    {"name": "batch", "topic": "TRecorded", "kind": "batch", "count": 8},
    {"name": "one-way", "topic": "TRecorded", "kind": "one-way", "count": 2},
)
"""One after another: the order in the log must be that of the frames."""
CONSUMED: Final = {
    "topics": {"TRecorded": 2},
    "consumers": [{"name": "push", "group": GROUP, "topic": "TRecorded", "kind": "concurrent"}],
    "producers": [
        {"name": "failing", "topic": "TRecorded", "kind": "sync", "count": 2, "pause_ms": 500}
        | {"properties": {"fail": "once"}},
        {"name": "delayed", "topic": "TRecorded", "kind": "delay", "count": 1, "pause_ms": 1700, "delays": [2]},
    ],
    "until": [[["push"], 6 + 8 + 2 + 2 * 2 + 1]],
    "seconds": 40,
}


class Recorder:
    """Stands between clients and a broker; whoever asks it for a route is led to itself."""

    def __init__(self, broker: str) -> None:
        self.frames: list[dict[str, Any]] = []
        self._broker = broker
        self._lock = Lock()
        self._began = time.monotonic()
        self._numbers = count()
        self.broker_address = _listen(self._relay)
        self.name_server_address = _listen(self._tell_routes)

    def _relay(self, client: socket.socket) -> None:
        number = next(self._numbers)
        broker = _connect(self._broker)
        Thread(target=self._pass_on, args=(broker, client, number, "client"), daemon=True).start()
        self._pass_on(client, broker, number, "broker")

    def _pass_on(self, source: socket.socket, target: socket.socket, number: int, to: str) -> None:
        with suppress(OSError):
            while (frame := _read_frame(source)) is not None:
                with self._lock:  # in the record a frame stands before what it causes
                    at = round(time.monotonic() - self._began, 3)
                    text = base64.b85encode(frame).decode()
                    self.frames.append({"at": at, "connection": number, "to": to, "frame": text})
                    target.sendall(struct.pack(">i", len(frame)) + frame)
            target.shutdown(socket.SHUT_WR)

    def _tell_routes(self, client: socket.socket) -> None:
        while (frame := _read_frame(client)) is not None:
            request = decode_command(frame)
            queues = TOPICS.get(request.ext_fields.get("topic", ""))
            code = ResponseCode.TOPIC_NOT_EXIST if queues is None else ResponseCode.SUCCESS
            body = b"" if queues is None else dumps_compact(self._route(queues))
            answer = encode_command(RemotingCommand(code, request.opaque, flag=1, body=body))
            client.sendall(struct.pack(">i", len(answer)) + answer)

    def _route(self, queues: int) -> dict[str, Any]:
        place = {"brokerAddrs": {"0": self.broker_address}, "brokerName": NAME, "cluster": CLUSTER}
        numbers = {"perm": 6, "readQueueNums": queues, "topicSysFlag": 0, "writeQueueNums": queues}
        return {"brokerDatas": [place], "filterServerTable": {}, "queueDatas": [{"brokerName": NAME, **numbers}]}


def _listen(serve: Callable[[socket.socket], None]) -> str:
    listener = socket.create_server((LOCALHOST, 0))

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            Thread(target=serve, args=(client,), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    return f"{LOCALHOST}:{listener.getsockname()[1]}"


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _read_frame(source: socket.socket) -> bytes | None:
    length = _read(source, 4)
    return _read(source, struct.unpack(">i", length)[0]) if length else None


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


def create_topic(broker: Broker) -> None:
    """Clients that know no topic would have the broker make one with other numbers of queues."""
    fields = {"topic": "TRecorded", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        options: dict[str, Any] = {**SMALL_FILES, "messageDelayLevel": DELAYS, "name": NAME, "cluster": CLUSTER}
        with Broker(work / "broker", **options) as broker:
            create_topic(broker)
            recorder = Recorder(broker.address)
            driver = Driver(recorder.name_server_address, work / "driver")
            before = ({"topics": {}, "producers": [sender], "until": [], "seconds": 10} for sender in SENT_BEFORE)
            for plan in (*before, CONSUMED):
                troubles = driver.clients(plan).troubles
                assert not troubles, troubles
            settings = {"brokerName": NAME, "brokerClusterName": CLUSTER, "messageDelayLevel": DELAYS}
            facts = {"settings": settings, "port": broker.listen_port}
    with gzip.GzipFile(TARGET, "wb", mtime=0) as file:
        for line in (facts, *recorder.frames):
            file.write(json.dumps(line).encode() + b"\n")
    print(f"{TARGET}: {len(recorder.frames)} frames, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
