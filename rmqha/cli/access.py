"""Options that say whom a command asks, and how it shows who it is: certificates and keys of accounts."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rmqha.acl.credentials import make_signer
from rmqha.acl.signing import Signer
from rmqha.acl.yamlfile import AclFileError
from rmqha.cli.shared import with_options
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.offline.commands import Trouble
from rmqha.wire.subscription import SUB_ALL, SqlExpression

if TYPE_CHECKING:  # a command that asks nobody starts quicker
    from rmqha.net.tls.endpoints import ClientTLS, TLSFiles

TLS = (
    click.option(
        "--tls-ca", default=None, help="For tls:HOST:PORT: PEM file of trusted authorities; default: the platform's."
    ),
    click.option("--tls-cert", default=None, help="For tls:HOST:PORT: PEM file of the certificate to show."),
    click.option("--tls-key", default=None, help="PEM file of its key; default: the file of --tls-cert."),
)
ACL = click.option(
    "--acl-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Sign requests with the accessKey and secretKey of this tools.yml. Default: $RMQHA_ACCESS_KEY and "
    "$RMQHA_SECRET_KEY, if they are set.",
)
BROKERS_TLS = click.option(
    "--tls", "over_tls", is_flag=True, help="Use TLS for the brokers that the name servers return."
)
NAMESRV_VARIABLE = "RMQHA_NAMESRV"
OTHER_WAYS = ("broker", "store", "hosts", "targets")
"""Parameters that say whom to ask, in place of name servers."""


class NameServersOption(click.Option):
    """``--namesrv``. If the command line says of nobody whom to ask, the environment does."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """As click calls it: the value, and where it is from."""
        value, source = super().consume_value(ctx, opts)
        others = (opts.get(name) for name in OTHER_WAYS)  # what was not given is None, or a mark of click's
        is_said = any(each and isinstance(each, str | list | tuple) for each in others)
        if source is ParameterSource.COMMANDLINE or is_said:
            return value, source
        found = os.environ.get(NAMESRV_VARIABLE)
        return (found, ParameterSource.ENVIRONMENT) if found else (value, source)


def namesrv_option(words: str, default: str | None = None) -> Callable[[Any], Any]:
    """The option ``--namesrv``, with this help."""
    return click.option(
        "--namesrv",
        cls=NameServersOption,
        default=default,
        metavar="HOST:PORT;…",
        help=f"{words} Default: ${NAMESRV_VARIABLE}, if nothing else says whom to ask.",
    )


WAY = (
    namesrv_option("Name servers, which know the topic's brokers."),
    click.option("--broker", default=None, metavar="HOST:PORT", help="One broker instead: its listenPort."),
    BROKERS_TLS,
    *TLS,
    ACL,
)
EXPRESSION = (
    click.option("--tags", default=None, metavar="TAGS", help="Only these: TagA || TagB."),
    click.option(
        "--sql",
        default=None,
        metavar="SQL",
        help="Only those whose properties match: \"a > 5 AND b = 'x'\". The broker needs enablePropertyFilter=true.",
    ),
)
"""Which messages of a topic to read: see ``expression_of``."""


def expression_of(tags: str | None, sql: str | None) -> str:
    """What the options of ``EXPRESSION`` select. Raises Trouble if both are given."""
    if sql is None:
        return SUB_ALL if tags is None else tags
    if tags is not None:
        raise Trouble(ExitCode.USAGE, "--tags and --sql exclude each other")
    return SqlExpression(sql)


def with_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options ``TLS`` and ``ACL`` to a command. It gets what they say as ``tls``, a ClientTLS."""

    @wraps(command)
    def run(
        tls_ca: str | None, tls_cert: str | None, tls_key: str | None, acl_file: Path | None, **others: Any
    ) -> None:
        command(tls=client_tls(tls_cert, tls_key, tls_ca, acl_file), **others)

    return with_options((*TLS, ACL))(run)


def tls_files(certificate: str | None, key: str | None, authorities: str | None) -> "TLSFiles":
    from rmqha.net.tls.certificates import TLSError
    from rmqha.net.tls.endpoints import TLSFiles

    try:
        return TLSFiles.load(certificate, key, authorities)
    except TLSError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error


def client_tls(certificate: str | None, key: str | None, authorities: str | None, acl_file: Path | None) -> "ClientTLS":
    """How a command shows who it is: its certificate, and what signs its requests. Raises Trouble with exit code 2."""
    tls = tls_files(certificate, key, authorities).client()
    tls.sign = signer_of(acl_file)
    return tls


def signer_of(acl_file: Path | None) -> Signer | None:
    """What signs requests, by the file or by the environment. Raises Trouble with exit code 2."""
    try:
        return make_signer(acl_file)
    except AclFileError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
