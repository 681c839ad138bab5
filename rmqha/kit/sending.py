"""Writing to a socket now, because somebody waits for the bytes."""

from typing import Any

from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import IWriteDescriptor


def send_at_once(transport: Any, data: bytes) -> None:
    """Write ``data``, and pass it to a plain socket now, not in the reactor's next round: a put waits for it.

    We leave a closing transport to the reactor: it closes its connection when the reactor makes it write the rest.
    """
    if is_idle(transport):
        taken = transport.writeSomeData(data)  # the reactor need not begin to watch the socket, and end it again
        if taken == len(data):
            return
        data = data[taken:] if isinstance(taken, int) else data  # the reactor meets an error again
    transport.write(data)
    if IWriteDescriptor.providedBy(transport) and not getattr(transport, "disconnecting", False):
        transport.doWrite()  # the reactor sees any error again in its next round, because it watches the socket


def is_idle(transport: Any) -> bool:
    """Whether it is an open plain socket in which nothing waits, so that ``send_at_once`` need not ask the reactor."""
    return bool(
        isinstance(transport, FileDescriptor)
        and transport.connected
        and not transport.disconnecting
        and not transport.dataBuffer
        and not transport._tempDataBuffer  # bytes of this round: Twisted has no public name for them
    )
