"""Asks one broker for its status, for ``rmqha status``."""

from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint

from rmqha.cli.running import Interrupted, run_reactor, the_reactor
from rmqha.kit.connecting import reason_of
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.ops.brokerstatus import status_of_broker
from rmqha.ops.status import NodeStatus
from rmqha.store.offline.commands import Trouble


def endpoint_of(reactor: Any, address: str, tls: ClientTLS) -> IStreamClientEndpoint:
    """The way to the broker. Raises Trouble if the text is not an address."""
    try:
        return make_endpoint(reactor, address, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{address}: there is no such store, and {error}") from error


def ask_status(address: str, tls: ClientTLS) -> NodeStatus:
    """What the broker says now. Raises Trouble, and Interrupted."""
    reactor = the_reactor()
    endpoint = endpoint_of(reactor, address, tls)
    try:
        return run_reactor(reactor, lambda: status_of_broker(endpoint, reactor))
    except Interrupted:
        raise
    except Exception as error:  # the user gets one line for any error
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not answer: {reason_of(error)}") from error
