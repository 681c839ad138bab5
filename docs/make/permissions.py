"""Lists who may do what in docs/permissions.md: ``make pages``."""

from pathlib import Path

from rmqha.wire.command import RequestCode
from tests.permissions import ROWS, Row, Surface

PAGE = Path(__file__).parents[1] / "permissions.md"
HEAD = """\
# Who may do what

`docs/make/permissions.py` makes this page from `tests/permissions.py`. A test keeps both equal. It fails if
something that is answered has no row, or if a test that is named here does not exist.

The rows of brokers are for `aclEnable=true` with `aclStrict=true` ([accounts](acl.md)). An administrator's account that
lists no permissions, and a peer at a white address, may do everything. Without `aclEnable` everybody who reaches a port
may do everything. But what a row says of a record, a handle, addresses and sessions holds then too. Restrict who
reaches the ports, or use [TLS](tls.md).
"""
NAMES = {Surface.BROKER: "request", Surface.PUSH: "push", Surface.NAME_SERVER: "request", Surface.CONTROL: "order"}


def _order(row: Row) -> tuple[int, str]:
    return (row.what, "") if isinstance(row.what, RequestCode) else (0, row.what)


def _name(row: Row) -> str:
    return f"{int(row.what)} {row.what.name}" if isinstance(row.what, RequestCode) else f"`{row.what}`"


def _test(row: Row) -> str:
    path, *words = row.test.split("::")
    return f"[{words[-1]}](../{path})"


def table(surface: Surface) -> str:
    """The rows of one surface, in Markdown."""
    rows = "".join(
        f"| {_name(row)} | {row.decides} | {_test(row)} |\n"
        for row in sorted((row for row in ROWS if row.surface is surface), key=_order)
    )
    return f"\n## {surface.value}\n\n| {NAMES.get(surface, 'call')} | what decides | shown by |\n|---|---|---|\n{rows}"


def page() -> str:
    """The whole page, in Markdown."""
    return HEAD + "".join(map(table, Surface))
