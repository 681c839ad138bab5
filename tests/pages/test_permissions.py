"""The table of docs/permissions.md is whole, and each row is shown by a test that exists."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import execute
from twisted.internet.task import Clock

from rmqha.acl.admin import AclAdminProcessor
from rmqha.acl.needs import SUB, WHOLE_BROKER, Need, needs_of
from rmqha.broker.brokerservice import BrokerService
from rmqha.broker.hastatus import ha_status_processors
from rmqha.broker.runtimeinfo import runtime_processors
from rmqha.coordination.witness import http
from rmqha.coordination.witness.calls import Logins, WitnessCalls
from rmqha.namesrv.nameserver import NameServerService
from rmqha.node.promising import PromiseProcessor
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import RemotingCommand, RequestCode
from tests.permissions import ADMINISTRATOR, ANSWERED_BY_NOBODY, OF_THE_WHOLE_BROKER, ROWS, Row, Surface

ROOT = Path(__file__).parents[2]
PUSHED = re.compile(
    r"\.(?:push|call)\(\s*RequestCode\.(\w+)|code = RequestCode\.(\w+)\n\s+try:\n\s+answer = await client\."
)
"""A push to a client: its code is in the call, or in the line before."""
PASSED_ON = {RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY}
"""A consumer gets these with the code of the tool's request."""
ORDERS = re.compile(r"ControlService\([^{]*\{([^}]*)\}")


def rows(surface: Surface) -> list[Row]:
    """Those of one surface."""
    return [row for row in ROWS if row.surface is surface]


def names(surface: Surface) -> set[RequestCode | str]:
    """What has a row."""
    return {row.what for row in rows(surface)}


def check_rows(surface: Surface, answered: Iterable[Any]) -> None:
    """All that is answered there has a row, and nothing else has one."""
    missing, idle = set(answered) - names(surface), names(surface) - set(answered)
    assert not missing, f"tests/permissions.py has no row for {missing}: who may ask, and which test shows it?"
    assert not idle, f"tests/permissions.py has rows for {idle}, which nobody answers"


def test_each_request_of_a_broker_has_a_row(tmp_path: Path) -> None:
    unused = cast(Any, None)
    store = MessageStore(make_settings({"storePathRootDir": str(tmp_path)}))
    try:
        broker = BrokerService(store.settings, store, Clock(), execute)
        answered = {
            *broker.processors(),
            *AclAdminProcessor(unused, unused, unused).processors(),
            *ha_status_processors(unused),
            *runtime_processors(unused, unused),
            *PromiseProcessor(unused).processors(),
        }
    finally:
        store.close()
    check_rows(Surface.BROKER, answered)


def test_each_push_to_a_client_has_a_row() -> None:
    sources = [
        path.read_text() for folder in ("requests", "tables") for path in (ROOT / "rmqha/broker" / folder).glob("*.py")
    ]
    pushed = {RequestCode[one or other] for source in sources for one, other in PUSHED.findall(source)}
    check_rows(Surface.PUSH, pushed | PASSED_ON)


def test_each_request_of_a_name_server_has_a_row(tmp_path: Path) -> None:
    check_rows(Surface.NAME_SERVER, NameServerService(Clock(), tmp_path, execute).processors())


def test_each_named_code_has_a_row_or_nobody_answers_it() -> None:
    """A code of RocketMQ that tools send is answered, if only with a reason."""
    rowless = set(RequestCode) - {row.what for row in ROWS}
    assert rowless == ANSWERED_BY_NOBODY, "ROWS and ANSWERED_BY_NOBODY of tests/permissions.py: each code is in one"


def test_each_call_of_the_witness_has_a_row() -> None:
    calls = WitnessCalls(cast(Any, None), Logins(cast(Any, None)))
    check_rows(Surface.WITNESS, {http.LOGIN, http.WATCH, *calls.by_path})


def test_each_order_of_the_control_socket_has_a_row() -> None:
    sources = [path.read_text() for path in (ROOT / "rmqha").rglob("*.py")]
    orders = {
        order for source in sources for found in ORDERS.findall(source) for order in re.findall(r'"(\w+)":', found)
    }
    check_rows(Surface.CONTROL, orders)


@pytest.mark.parametrize("row", rows(Surface.BROKER), ids=lambda row: RequestCode(row.what).name)
def test_a_row_says_what_the_gate_asks_for(row: Row) -> None:
    """Whether it is for administrators, or for those who may read what is of the whole broker."""
    try:
        needs = needs_of(RemotingCommand(cast(int, row.what)), strict=True)
    except ValueError:  # it needs what its body names
        return
    asked = f"rmqha/acl/needs.py asks for {needs}, and the row in tests/permissions.py says: {row.decides}"
    assert needs.admin == row.decides.startswith(ADMINISTRATOR), asked
    assert (Need(WHOLE_BROKER, SUB) in needs.resources) == (row.decides == OF_THE_WHOLE_BROKER), asked


@pytest.mark.parametrize("surface", Surface)
def test_nothing_has_two_rows(surface: Surface) -> None:
    assert len(rows(surface)) == len(names(surface))


@cache
def statements_of(path: str) -> list[ast.stmt]:
    """Those of a module: many rows name a test of the same one."""
    return ast.parse((ROOT / path).read_text()).body


@pytest.mark.parametrize("test", sorted({row.test for row in ROWS}))
def test_the_test_of_a_row_exists(test: str) -> None:
    path, *words = test.split("::")
    found = statements_of(path)
    for word in words:
        (node,) = [each for each in found if isinstance(each, Node) and each.name == word]
        found = node.body


Node = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
