"""``<store>/rmqha/control``: a Unix socket on which a running node takes orders from commands on its machine.

Only the node's user and root can connect: the socket's mode is 0600, and no port is open. An order is one line of JSON,
an object with ``order``; the answer is one line, ``{"done": …}`` or ``{"refused": …, "code": …}`` with an exit code.
"""

import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
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

from rmqha.exitcodes import ExitCode
from rmqha.store.nodestate import NODE_FOLDER

CONTROL_SOCKET = "control"
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


class NoNode(Exception):
    """No node of ours takes orders for the store."""


class ControlProtocol(LineOnlyReceiver):
    """One command that gives an order and waits for the answer."""

    delimiter = b"\n"
    MAX_LENGTH = MAX_ORDER_BYTES
    _log = Logger()

    def __init__(self, orders: Mapping[str, Order]) -> None:
        self._orders = orders
        self._running: Deferred[None] | None = None

    def lineReceived(self, line: bytes) -> None:
        if self._running is None:
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
        self._log.failure("an order on the control socket failed", failure)
        self._answer({"refused": failure.getErrorMessage(), "code": ExitCode.IO_ERROR})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        if self.transport is not None:
            self.sendLine(orjson.dumps(answer))
            self.transport.loseConnection()


class ControlService(Service):
    """Listens while a node's store is open."""

    _log = Logger()

    def __init__(self, store: Path, orders: Mapping[str, Order], reactor: IReactorUNIX) -> None:
        self._folder = store / NODE_FOLDER
        self._orders = orders
        self._reactor = reactor
        self._port: IListeningPort | None = None
        self._folder_fd: int | None = None

    def startService(self) -> None:
        Service.startService(self)
        limited: Any = LimitTotalConnectionsFactory()
        limited.connectionLimit, limited.noisy = MAX_CONNECTIONS, False
        limited.protocol = partial(ControlProtocol, self._orders)
        path = self._folder / CONTROL_SOCKET
        try:
            self._folder.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()  # of a node that was killed: this one holds the store's lock
            self._folder_fd = _open_folder(self._folder)
            name = _short_name(self._folder_fd)
            self._port = self._reactor.listenUNIX(name, limited, backlog=MAX_CONNECTIONS, mode=0o600)
        except Exception as error:  # a file system without sockets, say: everything else works without it
            self._log.warn("no orders are taken on {path}: {error}", path=str(path), error=str(error))

    def stopService(self) -> Deferred[None]:
        """Fires when no socket is left: Twisted removes it."""
        Service.stopService(self)
        port, self._port = self._port, None
        stopping = port.stopListening() if port is not None else None
        stopped: Deferred[None] = succeed(None) if stopping is None else stopping
        return stopped.addBoth(self._close_folder)

    def _close_folder(self, result: Failure | None) -> Failure | None:
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None
        return result


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def _short_name(folder_fd: int) -> str:
    """A name of the socket that fits a socket's address, however long the folder's is."""
    return f"/proc/self/fd/{folder_fd}/{CONTROL_SOCKET}"


class _Asking(LineOnlyReceiver):
    delimiter = b"\n"
    MAX_LENGTH = MAX_ANSWER_BYTES

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self.answer: Deferred[dict[str, Any]] = Deferred()
        self._answered = False

    def connectionMade(self) -> None:
        self.sendLine(orjson.dumps(self._order))

    def lineReceived(self, line: bytes) -> None:
        if not self._answered:
            self._answered = True
            self.answer.callback(orjson.loads(line))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._answered:
            self._answered = True
            self.answer.errback(NoNode("the node hung up before it had answered: its log tells why"))


async def give_order(store: Path, order: Mapping[str, Any], reactor: Any) -> dict[str, Any]:
    """Let the node that runs on ``store`` carry out an order; gives what it did.

    Raises OrderRefused, and NoNode if none listens.
    """
    folder = store / NODE_FOLDER
    asking = _Asking(order)
    answer = asking.answer
    folder_fd = None
    try:
        folder_fd = _open_folder(folder)
        endpoint = UNIXClientEndpoint(reactor, _short_name(folder_fd), CONNECT_SECONDS)
        await connectProtocol(endpoint, asking)
    except CancelledError:
        raise
    except Exception as error:  # of any kind: no node listens
        raise NoNode(f"the process that has {store} open takes no orders ({error or type(error).__name__})") from error
    finally:
        if folder_fd is not None:
            os.close(folder_fd)
    found = await answer
    if "refused" in found:
        raise OrderRefused(ExitCode(found["code"]), str(found["refused"]))
    done: dict[str, Any] = found["done"]
    return done
