"""A node that puts messages on command: ``python -m rmqha.testing.putnode OPTIONS``, with the options of ``twistd
rmqha``.

A command is a line of JSON on standard input: ``{"count": …, "body_bytes": …, "in_flight": …, "rate": …, "wait": …,
"each": …}``. The node puts ``count`` messages, with up to ``in_flight`` unanswered (default 1), at most ``rate`` a
second (default: as fast as answers arrive). With ``wait`` false the puts wait for neither disk nor slaves. The answer
is a line of JSON: ``statuses`` (counts by name), ``end`` (the log's end) and ``latencies`` (seconds: p50, p99, max)
over ``seconds``. With ``each`` true a line for each put comes before it: ``number``, ``offset``, ``size``, ``status``
and ``seconds``. The end of standard input, like SIGTERM, stops the node.
"""

import json
import os
import sys
from collections import Counter
from contextlib import suppress
from time import perf_counter
from typing import Any

from twisted.application.service import IService
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ReactorNotRunning
from twisted.internet.protocol import connectionDone
from twisted.internet.stdio import StandardIO
from twisted.internet.task import deferLater
from twisted.logger import globalLogBeginner
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from rmqha.node.node import Node
from rmqha.ops.logs import LogFormat, NodeLogObserver
from rmqha.store.message import Message, PutMessageResult
from rmqha.store.messagestore import MessageStore
from rmqha.tap import Options, makeService

TOPIC = "PutNode"
QUEUES = 4
LAST_ANSWERS_SECONDS = 2.0
reactor: Any = installed_reactor


class Load:
    """The puts of one command. ``done`` fires with the summary when all are answered."""

    def __init__(self, store: MessageStore, first: int, command: dict[str, Any], tell: Any) -> None:
        self._store = store
        self._next = first
        self._end = first + int(command["count"])
        self._body = bytes(int(command.get("body_bytes", 1024)))
        self._in_flight = int(command.get("in_flight", 1))
        self._interval = 1 / command["rate"] if command.get("rate") else 0.0
        self._properties = {} if command.get("wait", True) else {"WAIT": "false"}
        self._tell = tell if command.get("each") else None
        self._unanswered = 0
        self._pumping = False
        self._statuses: Counter[str] = Counter()
        self._latencies: list[float] = []
        self._start = perf_counter()
        self.done: Deferred[dict[str, Any]] = Deferred()

    def pump(self) -> None:
        """Put as many messages as may be unanswered."""
        if self._pumping:
            return
        self._pumping = True
        while self._next < self._end and self._unanswered < self._in_flight:
            self._put_next()
            if self._interval:
                deferLater(reactor, self._interval).addCallback(lambda _: self._go_on())
                return
        self._pumping = False
        if self._next == self._end and not self._unanswered:
            self.done.callback(self._summary())

    def _go_on(self) -> None:
        self._pumping = False
        self.pump()

    def _put_next(self) -> None:
        number = self._next
        self._next += 1
        self._unanswered += 1
        properties = {"KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}", **self._properties}
        message = Message(TOPIC, b"%020d" % number + self._body[20:], properties, queue_id=number % QUEUES)
        start = perf_counter()
        self._store.put_message(message).addCallback(self._answered, number, start)

    def _answered(self, result: PutMessageResult, number: int, start: float) -> None:
        seconds = perf_counter() - start
        self._unanswered -= 1
        self._statuses[result.status.name] += 1
        self._latencies.append(seconds)
        if self._tell is not None:
            appended = result.append
            offset, size = (appended.wrote_offset, appended.wrote_bytes) if appended is not None else (None, None)
            status = result.status.name
            self._tell({"number": number, "offset": offset, "size": size, "status": status, "seconds": seconds})
        self.pump()

    def _summary(self) -> dict[str, Any]:
        ordered = sorted(self._latencies) or [0.0]
        return {
            "statuses": dict(self._statuses),
            "end": self._store.commit_log.max_offset,
            "seconds": perf_counter() - self._start,
            "latencies": {
                "p50": ordered[len(ordered) // 2],
                "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
                "max": ordered[-1],
            },
        }


class Commands(LineOnlyReceiver):
    """Standard input and output."""

    delimiter = b"\n"

    def __init__(self, node: Node) -> None:
        self._node = node
        self._first = 0
        self._gone: Deferred[None] = Deferred()

    def lineReceived(self, line: bytes) -> None:
        command = json.loads(line)
        load = Load(self._node.open_node.store, self._first, command, self._tell)
        self._first += int(command["count"])
        load.done.addCallback(self._tell)
        load.pump()

    def _tell(self, facts: dict[str, Any]) -> None:
        self.sendLine(json.dumps(facts).encode())

    def hang_up(self) -> Deferred[None]:
        """Close standard output after the last answers. Fires when they are read, or when nobody reads them."""
        if self.transport is None:  # the store was never opened
            return succeed(None)
        self.transport.loseConnection()
        return self._gone.addTimeout(LAST_ANSWERS_SECONDS, reactor).addErrback(lambda _: None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._gone.callback(None)
        with suppress(ReactorNotRunning):
            reactor.stop()


def _read_commands(commands: Commands, answers: int) -> None:
    StandardIO(commands, stdout=answers)  # type: ignore[call-arg]  # mypy looks at the Windows one


def main(arguments: list[str]) -> None:
    """Run the node until its standard input ends. Its events go to standard error."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    options = Options()
    options.parseOptions(arguments)
    globalLogBeginner.beginLoggingTo([NodeLogObserver(LogFormat.JSON, None)], redirectStandardIO=False)
    node = makeService(options)
    assert isinstance(node, Node), "the plugin makes nodes"
    IService(node).startService()
    commands = Commands(node)
    node.core.when_open().addCallback(lambda _: _read_commands(commands, answers))
    reactor.addSystemEventTrigger(
        "before", "shutdown", lambda: node.stopService().addBoth(lambda _: commands.hang_up())
    )
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1:])
