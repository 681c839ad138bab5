"""Orders to a running node over its Unix socket."""

import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as any_reactor

from rmqha.exitcodes import ExitCode
from rmqha.ops.control import CONTROL_SOCKET, ControlService, NoNode, OrderRefused, give_order

pytestmark = pytest.mark.process
reactor: Any = any_reactor


async def greet(order: Mapping[str, Any]) -> Any:
    if order.get("name") is None:
        raise OrderRefused(ExitCode.DIVERGED, "who are you?")
    if order["name"] == "broken":
        raise ZeroDivisionError("broken")
    return {"hello": order["name"]}


@pytest.mark.parametrize("depth", [1, 30])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]  # it has no types
async def test_an_order_is_carried_out_refused_or_fails_and_the_socket_goes(tmp_path: Path, depth: int) -> None:
    store = tmp_path.joinpath(*["a long name of a folder"] * depth)
    store.mkdir(parents=True)
    service = ControlService(store, {"greet": greet}, reactor)
    service.startService()
    path = store / "rmqha" / CONTROL_SOCKET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    try:
        assert await give_order(store, {"order": "greet", "name": "Ada"}, reactor) == {"hello": "Ada"}
        with pytest.raises(OrderRefused, match="who are you") as refused:
            await give_order(store, {"order": "greet"}, reactor)
        assert refused.value.code is ExitCode.DIVERGED
        with pytest.raises(OrderRefused, match="broken"):
            await give_order(store, {"order": "greet", "name": "broken"}, reactor)
        with pytest.raises(OrderRefused, match="does not know the order"):
            await give_order(store, {"order": "fly"}, reactor)
    finally:
        await service.stopService()
    assert not path.exists()
    with pytest.raises(NoNode):
        await give_order(store, {"order": "greet"}, reactor)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]  # it has no types
async def test_the_socket_of_a_node_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "rmqha").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "rmqha" / CONTROL_SOCKET))
    second = ControlService(tmp_path, {"greet": greet}, reactor)
    second.startService()
    try:
        assert await give_order(tmp_path, {"order": "greet", "name": "Bob"}, reactor) == {"hello": "Bob"}
    finally:
        await second.stopService()
