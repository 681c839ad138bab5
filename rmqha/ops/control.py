"""A Unix socket on which a running node takes orders from commands on its machine.

The socket is in Linux's abstract namespace, so that no file of it lies in the store, and none is left by a node that
was killed. Its name follows from the store's lock file. Both sides check who the other one is: a node obeys its own
user and root, and a command believes the owner of the store and root. An order is one line of JSON, an object with
``order``. The answer is one line, ``{"done": …}`` or ``{"refused": …, "code": …}`` with an exit code.
"""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

import orjson
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.endpoints import UNIXClientEndpoint, connectProtocol
from twisted.internet.interfaces import IListeningPort, IReactorUNIX
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.protocols.policies import LimitTotalConnectionsFactory
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.examining import LOCK_FILE

PEER_CREDENTIALS = Struct("iII")
"""SO_PEERCRED: pid, uid and gid of the process at the other end."""
ROOT = 0
MAX_CONNECTIONS = 8
MAX_ORDER_BYTES = 4096
MAX_ANSWER_BYTES = 256 << 20
CONNECT_SECONDS = 10

Order = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Carries out an order, with what the line says, and gives what ``done`` holds."""


class OrderRefused(Exception):
    """The node does not do it. Nothing was changed."""

    def __init__(self, code: ExitCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NoNodeListens(Exception):
    """No node of ours takes orders for the store."""


class ControlProtocol(LineOnlyReceiver):
    """One command that gives an order and waits for the answer."""

    delimiter = b"\n"
    MAX_LENGTH = MAX_ORDER_BYTES
    _log = Logger()

    def __init__(self, orders: Mapping[str, Order]) -> None:
        self._orders = orders
        self._running: Deferred[None] | None = None
        self._is_trusted = False

    def connectionMade(self) -> None:
        user = _peer_of(self.transport)
        self._is_trusted = user in (ROOT, os.geteuid())
        if not self._is_trusted:
            self._log.warn("user {user} may not give this node orders", event=Event.ORDER_REFUSED, user=user)
            self._answer({"refused": "only the node's user and root may give it orders", "code": ExitCode.USAGE})

    def lineReceived(self, line: bytes) -> None:
        if self._running is None and self._is_trusted:
            self._running = Deferred.fromCoroutine(self._obey(line))
            self._running.addErrback(self._failed)

    async def _obey(self, line: bytes) -> None:
        try:
            order = orjson.loads(line)
            carry_out = self._orders[order["order"]]
        except (ValueError, KeyError, TypeError):
            self._answer({"refused": "this node does not know the order", "code": ExitCode.USAGE})
            return
        try:
            done = await carry_out(order)
        except OrderRefused as refused:
            self._answer({"refused": str(refused), "code": refused.code})
        else:
            self._answer({"done": done})

    def _failed(self, failure: Failure) -> None:
        self._log.failure("an order on the control socket failed", failure, event=Event.ORDER_FAILED)
        self._answer({"refused": failure.getErrorMessage(), "code": ExitCode.IO_ERROR})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        if self.transport is not None:
            self.sendLine(orjson.dumps(answer))
            self.transport.loseConnection()


class ControlService(Service):
    """Listens from when a node has first opened its store until it stops."""

    _log = Logger()

    def __init__(self, store: Path, orders: Mapping[str, Order], reactor: IReactorUNIX) -> None:
        self._store = store
        self._orders = orders
        self._reactor = reactor
        self._port: IListeningPort | None = None

    def startService(self) -> None:
        Service.startService(self)
        limited: Any = LimitTotalConnectionsFactory()
        limited.connectionLimit, limited.noisy = MAX_CONNECTIONS, False
        limited.protocol = partial(ControlProtocol, self._orders)
        try:
            self._port = self._reactor.listenUNIX(_name_of(self._store), limited, backlog=MAX_CONNECTIONS)
        except Exception as error:  # of any kind: all else works without orders
            self._log.warn(
                "commands cannot give this node orders: {error}", event=Event.NO_CONTROL_SOCKET, error=str(error)
            )

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        port, self._port = self._port, None
        stopping = port.stopListening() if port is not None else None
        return succeed(None) if stopping is None else stopping


def _name_of(store: Path) -> str:
    """The name of the socket: it follows from the lock file, on any path to the store. Raises OSError."""
    found = os.stat(store / LOCK_FILE)
    return f"\0rmqha-control-{found.st_dev}-{found.st_ino}"


def _peer_of(transport: Any) -> int:
    """The user id of the process at the other end of a Unix socket. Raises OSError."""
    raw = transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    uid: int = PEER_CREDENTIALS.unpack(raw)[1]
    return uid


class _Asking(LineOnlyReceiver):
    delimiter = b"\n"
    MAX_LENGTH = MAX_ANSWER_BYTES

    def __init__(self, order: Mapping[str, Any], owner: int) -> None:
        self._order = order
        self._owner = owner
        self.answer: Deferred[dict[str, Any]] = Deferred()
        self._answered = False

    def connectionMade(self) -> None:
        if _peer_of(self.transport) not in (ROOT, self._owner):
            self._fail("another user's process listens in the node's place")
            transport: Any = self.transport
            transport.abortConnection()
            return
        self.sendLine(orjson.dumps(self._order))

    def lineReceived(self, line: bytes) -> None:
        if not self._answered:
            self._answered = True
            self.answer.callback(orjson.loads(line))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._fail("the node closed the connection before it answered: its log says why")

    def _fail(self, reason: str) -> None:
        if not self._answered:
            self._answered = True
            self.answer.errback(NoNodeListens(reason))


async def give_order(store: Path, order: Mapping[str, Any], reactor: Any) -> dict[str, Any]:
    """Let the node that runs on ``store`` carry out an order; gives what it did.

    Raises OrderRefused, and NoNodeListens if none listens.
    """
    try:
        asking = _Asking(order, os.stat(store / LOCK_FILE).st_uid)
        answer = asking.answer
        await connectProtocol(UNIXClientEndpoint(reactor, _name_of(store), CONNECT_SECONDS), asking)
    except CancelledError:
        raise
    except Exception as error:  # of any kind: no node listens
        raise NoNodeListens(
            f"the process that has {store} open takes no orders ({error or type(error).__name__}): a node in a "
            "container takes them there"
        ) from error
    found = await answer
    if "refused" in found:
        raise OrderRefused(ExitCode(found["code"]), str(found["refused"]))
    done: dict[str, Any] = found["done"]
    return done
