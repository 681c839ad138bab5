"""A Twisted reactor for the asyncio loop that is running: the program's own, or one for the time of its clients."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import twisted.internet
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.error import ConnectionDone
from twisted.internet.main import installReactor
from twisted.python.failure import Failure

INSTALLED = "twisted.internet.reactor"


class LoopReactor(AsyncioSelectorReactor):
    """A reactor that uses a running loop as a guest: it neither starts nor stops the loop, nor catches signals."""

    users = 0
    """How many clients use it."""

    def crash(self) -> None:
        """Twisted calls this when the reactor has shut down. The loop goes on."""
        self._started = self.running = False

    def begin(self) -> None:
        """Start without running the loop, which runs already.

        If no reactor is installed yet, it is this one for the time: Twisted's TLS asks for it.
        """
        if INSTALLED not in sys.modules:
            installReactor(self)
        self.startRunning(installSignalHandlers=False)

    def end(self) -> None:
        """Close all connections and threads."""
        self.fireSystemEvent("shutdown")
        for waker in list(self._internalReaders):
            self.removeReader(waker)
            waker.connectionLost(Failure(ConnectionDone()))
        self._internalReaders.clear()
        if self._timerHandle is not None:
            self._timerHandle.cancel()
        installed: Any = sys.modules.get(INSTALLED)
        if installed is self:
            del sys.modules[INSTALLED]
            del twisted.internet.reactor


_guests: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopReactor] = WeakKeyDictionary()


@asynccontextmanager
async def reactor_of_loop() -> AsyncIterator[Any]:
    """The reactor of the running loop. If Twisted's own reactor runs this loop, it is that one. Else one is made, which
    ends with the last of its users.
    """
    loop = asyncio.get_running_loop()
    installed: Any = sys.modules.get(INSTALLED)
    if (
        isinstance(installed, AsyncioSelectorReactor)
        and not isinstance(installed, LoopReactor)
        and installed._asyncioEventloop is loop
    ):
        yield installed
        return
    reactor = _guests.get(loop)
    if reactor is None:
        reactor = _guests[loop] = LoopReactor(loop)
        reactor.begin()
    reactor.users += 1
    try:
        yield reactor
    finally:
        reactor.users -= 1
        if not reactor.users:
            del _guests[loop]
            reactor.end()
