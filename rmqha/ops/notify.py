"""Tells systemd what the process does: sd_notify(3), for units with Type=notify.

Without NOTIFY_SOCKET in the environment nothing is sent. A message is one datagram. Nothing waits for systemd: what
its socket does not take now is sent again a second later.
"""

import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import Interface

from rmqha.kit.events import Event
from rmqha.kit.printing import printable
from rmqha.kit.services import PeriodicService

STATUS_SECONDS = 1.0
"""How often the status is compared with the one that was sent."""
EXTEND_EVERY_SECONDS = 10.0
EXTENSION_SECONDS = 60.0
"""While the process starts or stops, systemd waits for this long after each EXTEND_TIMEOUT_USEC."""
MAX_STATUS = 300
MAX_UNSENT = 64
MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """What systemd says in the environment. ``watchdog_seconds`` is None without a watchdog."""

    address: str
    watchdog_seconds: float | None = None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """None if systemd does not ask this process for messages. Raises ValueError for an unknown kind of address."""
        name = environment.get("NOTIFY_SOCKET", "")
        if not name:
            return None
        if name[0] not in "/@" or len(name) == 1:
            raise ValueError(f"NOTIFY_SOCKET={name} is neither a path nor an abstract socket")
        address = "\0" + name[1:] if name[0] == "@" else name
        return cls(address, _watchdog_seconds(environment, pid))


def _watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """The time after which systemd misses a sign of life; None if it expects none of this process."""
    text = environment.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        return None
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(text) / MICROSECONDS


class IStatusTeller(Interface):
    """The process."""

    def status_line() -> str:
        """What it does, in a few words."""


class Notifier:
    """Sends messages to systemd's socket while a process runs. ``teller`` is asked for a short line about it."""

    _log = Logger()

    def __init__(self, settings: NotifySettings, clock: IReactorTime, teller: IStatusTeller) -> None:
        self._address = settings.address
        self._teller = teller
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._unsent: deque[bytes] = deque(maxlen=MAX_UNSENT)
        self._sent_status: str | None = None
        self._final_status: str | None = None
        self._is_logged = False
        self._extending = PeriodicService("asking systemd for more time", EXTEND_EVERY_SECONDS, self._extend, clock)
        self._watching = PeriodicService("telling systemd the status", STATUS_SECONDS, self._look, clock)
        self._services = [self._extending, self._watching]
        if settings.watchdog_seconds is not None:
            self._services.append(
                PeriodicService("the watchdog of systemd", settings.watchdog_seconds / 2, self._stay_alive, clock)
            )

    def start(self) -> None:
        """The process starts: systemd is to wait until it is ready."""
        for service in self._services:
            service.startService()

    def ready(self) -> None:
        """The process works: it has opened its store, and listens."""
        self._end_extension()
        self._send(f"READY=1\n{self._status_line()}")

    def reloading(self) -> None:
        """The process reads its configuration again. Call ``ready`` afterwards."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def failing(self, reason: str) -> None:
        """The process ends because of an error. ``systemctl status`` shows the reason from now on."""
        if self._final_status is None:
            self._final_status = reason
            self._look()

    def stopping(self) -> None:
        """The process stops, and systemd is to wait until it has stopped."""
        self._send(f"STOPPING=1\n{self._status_line()}")
        if not self._extending.running:
            self._extending.startService()

    def stopped(self) -> None:
        """The process has stopped: nothing more is sent."""
        for service in self._services:
            if service.running:
                service.stopService()
        self._socket.close()

    def _end_extension(self) -> None:
        if self._extending.running:
            self._extending.stopService()

    def _extend(self) -> None:
        self._send_now(f"EXTEND_TIMEOUT_USEC={int(EXTENSION_SECONDS * MICROSECONDS)}")

    def _stay_alive(self) -> None:
        self._send_now("WATCHDOG=1")

    def _look(self) -> None:
        """Send what could not be sent, and then the status if it has changed."""
        while self._unsent and self._try(self._unsent[0]):
            self._unsent.popleft()
        if self._current() != self._sent_status:
            self._send_now(self._status_line())

    def _current(self) -> str:
        return " ".join(printable(self._final_status or self._teller.status_line()).split())[:MAX_STATUS]

    def _status_line(self) -> str:
        self._sent_status = self._current()
        return f"STATUS={self._sent_status}"

    def _send(self, message: str) -> None:
        """Send a message, later if it cannot be sent now."""
        data = message.encode("utf-8", "replace")
        if self._unsent or not self._try(data):
            self._unsent.append(data)

    def _send_now(self, message: str) -> None:
        """Send a message that is worth nothing later: it is dropped if it cannot be sent now."""
        if self._unsent or not self._try(message.encode("utf-8", "replace")):
            self._sent_status = None

    def _try(self, data: bytes) -> bool:
        try:
            self._socket.sendto(data, self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._is_logged:
                self._is_logged = True
                self._log.warn(
                    "systemd's socket takes no messages: {reason}", event=Event.SYSTEMD_UNREACHABLE, reason=str(error)
                )
            return False
        return True


def notifier_of_process(clock: IReactorTime, teller: IStatusTeller) -> Notifier | None:
    """What tells systemd about this process; None if systemd does not ask for it."""
    try:
        settings = NotifySettings.of_environment(os.environ, os.getpid())
    except ValueError as error:
        Notifier._log.warn("systemd gets no messages: {reason}", event=Event.SYSTEMD_UNREACHABLE, reason=str(error))
        return None
    return None if settings is None else Notifier(settings, clock, teller)
