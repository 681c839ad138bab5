"""Orders to a running node over its Unix socket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as any_reactor

from rmqha.kit.exitcodes import ExitCode
from rmqha.ops import control
from rmqha.ops.control import ControlService, NoNodeListens, OrderRefused, give_order
from tests.inreactor import with_reactor

pytestmark = pytest.mark.process
reactor: Any = any_reactor


async def greet(order: Mapping[str, Any]) -> Any:
    if order.get("name") is None:
        raise OrderRefused(ExitCode.DIVERGED, "who are you?")
    if order["name"] == "broken":
        raise ZeroDivisionError("broken")
    return {"hello": order["name"]}


@pytest.mark.parametrize("depth", [1, 30])
@with_reactor
async def test_an_order_is_carried_out_refused_or_fails_and_the_socket_goes(tmp_path: Path, depth: int) -> None:
    store = tmp_path.joinpath(*["a long name of a folder"] * depth)
    store.mkdir(parents=True)
    (store / "lock").touch()
    service = ControlService(store, {"greet": greet}, reactor)
    service.startService()
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
    assert sorted(path.name for path in store.iterdir()) == ["lock"]
    with pytest.raises(NoNodeListens):
        await give_order(store, {"order": "greet"}, reactor)


@with_reactor
async def test_another_users_process_gives_no_orders_and_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    service = ControlService(tmp_path, {"greet": greet}, reactor)
    service.startService()
    try:
        monkeypatch.setattr(control, "_peer_of", lambda transport: 12345)
        with pytest.raises(NoNodeListens, match="another user's process"):
            await give_order(tmp_path, {"order": "greet", "name": "Eve"}, reactor)
        monkeypatch.setattr(control._Asking, "connectionMade", lambda asking: asking.sendLine(b"{}"))
        with pytest.raises(OrderRefused, match="only the node's user"):
            await give_order(tmp_path, {"order": "greet", "name": "Eve"}, reactor)
    finally:
        await service.stopService()
