"""``rmqha status``: of a store here or of a broker."""

from pathlib import Path

import click

from rmqha.cli.shared import (
    JSON,
    TLS,
    Trouble,
    open_store,
    print_json,
    run_reactor,
    the_reactor,
    tls_files,
    with_options,
)
from rmqha.endpoints import make_endpoint
from rmqha.exitcodes import ExitCode
from rmqha.ops.status import Status, status_of_broker, status_of_store


@click.command()
@click.argument("target", metavar="STORE|HOST:PORT")
@with_options(TLS)
@JSON
def status(target: str, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, as_json: bool) -> None:
    """Show role, state, offsets and lag: of a store here, or of a broker, ours or Java's, by its remoting port.

    tls:HOST:PORT asks over TLS.
    """
    if Path(target).is_dir():
        with open_store(Path(target)) as store:
            found = status_of_store(store)
    else:
        found = _ask(target, tls_cert, tls_key, tls_ca)
    if as_json:
        print_json(found.as_json())
        return
    for name, value in found.as_json().items():
        if name != "peers" and value is not None:
            click.echo(f"{name:<10}  {value}")
    for peer in found.peers:
        facts = "  ".join(f"{name} {value}" for name, value in peer.items() if value is not None)
        click.echo(f"{'peer':<10}  {facts}")


def _ask(address: str, certificate: str | None, key: str | None, authorities: str | None) -> Status:
    reactor = the_reactor()
    tls = tls_files(certificate, key, authorities).client()
    try:
        endpoint = make_endpoint(reactor, address, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{address}: there is no such store, and {error}") from error
    try:
        return run_reactor(reactor, lambda: status_of_broker(endpoint, reactor))
    except Exception as error:  # whatever kept it from an answer, to the user it is one line
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not answer: {error or type(error).__name__}") from error
