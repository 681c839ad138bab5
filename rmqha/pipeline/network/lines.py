"""Blocking connections to nodes, with TLS or without it. Each wait has an end."""

import socket
import ssl

from rmqha.pipeline.address import Place, TLSPaths
from rmqha.pipeline.errors import OptionError
from rmqha.store.errors import StoreError

CONNECT_SECONDS = 10.0


class NodeFailed(StoreError):
    """A node cannot be reached, or does not answer as it should. Another one, or a later attempt, may do."""


def connect(place: Place, tls: TLSPaths | None) -> socket.socket:
    """A connection; the certificate of the other side must be for ``place.host``. Raises NodeFailed, OptionError."""
    context = None if tls is None else _context(tls)
    try:
        line = socket.create_connection((place.host, place.port), CONNECT_SECONDS)
    except OSError as error:
        raise NodeFailed(f"cannot connect to {place}: {error}") from error
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line if context is None else context.wrap_socket(line, server_hostname=place.host)
    except (OSError, ValueError) as error:
        line.close()
        raise NodeFailed(f"no TLS connection to {place}: {error}") from error


def _context(tls: TLSPaths) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.authorities)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ValueError) as error:  # an executor may have no such file
        given = ", ".join(path for path in (tls.authorities, tls.certificate, tls.key) if path is not None)
        raise OptionError(
            f"tlsCa, tlsCert and tlsKey must name PEM files on each executor ({given}): {error}"
        ) from error
    return context
