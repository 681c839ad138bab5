"""What a broker says of itself: GET_BROKER_RUNTIME_INFO and GET_BROKER_CONFIG (spec/remoting.md 2.14, 2.15)."""

from collections.abc import Callable, Mapping
from typing import Any

import javaproperties
import orjson
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint

from rmqha.broker.remoting import Processors, RemotingError, call_once
from rmqha.ha.replica import MasterView
from rmqha.settings import LARGEST_SEGMENT
from rmqha.wire.command import OUR_VERSION, RemotingCommand, RequestCode, ResponseCode

DERIVED_FILE_SETTINGS = ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
NODE_STATE_KEY = "rmqha"
"""In a node's runtime info: its state as state.json has it. A Java broker has no such entry."""


def runtime_processors(table: Callable[[], Mapping[str, str]], config: Callable[[], Mapping[str, str]]) -> Processors:
    """Answers both requests with what ``table`` and ``config`` say at the time."""
    return {
        RequestCode.GET_BROKER_RUNTIME_INFO: lambda _, __: RemotingCommand(
            ResponseCode.SUCCESS,
            body=orjson.dumps({"table": {"brokerVersion": str(OUR_VERSION), **table()}}),
        ),
        RequestCode.GET_BROKER_CONFIG: lambda _, __: RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={"version": '{"counter":0,"timestamp":0}'},
            body=javaproperties.dumps(config(), timestamp=False, separator="=").encode("utf-8"),
        ),
    }


async def ask_runtime_info(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> dict[str, str]:
    """The broker's table of facts. Raises RemotingError, TimeoutError or what connecting raises."""
    answer = await call_once(endpoint, RequestCode.GET_BROKER_RUNTIME_INFO, clock)
    try:
        table: dict[str, Any] = orjson.loads(answer.body)["table"]
        return {str(name): str(value) for name, value in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemotingError(f"the runtime info is no table: {error!r}") from error


async def ask_config(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> dict[str, str]:
    """The broker's settings. Raises RemotingError, TimeoutError or what connecting raises."""
    answer = await call_once(endpoint, RequestCode.GET_BROKER_CONFIG, clock)
    try:
        return javaproperties.loads(answer.body.decode("utf-8"))
    except ValueError as error:
        raise RemotingError(f"the broker's config is no properties: {error}") from error


def log_range(table: Mapping[str, str]) -> tuple[int, int]:
    """Min and max offset of the commit log; equal for an empty one, which says its min is -1. Raises RemotingError."""
    try:
        smallest, largest = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError) as error:
        raise RemotingError(f"the runtime info does not tell the commit log's range: {error!r}") from error
    smallest = largest if smallest < 0 else smallest
    if not 0 <= smallest <= largest:
        raise RemotingError(f"the runtime info says the commit log is {smallest} to {largest}")
    return smallest, largest


async def view_of_master(endpoint: IStreamClientEndpoint, clock: IReactorTime, with_segment_size: bool) -> MasterView:
    """The master's range, and segment size if wanted. Raises RemotingError, TimeoutError or what connecting raises."""
    min_offset, max_offset = log_range(await ask_runtime_info(endpoint, clock))
    config = await ask_config(endpoint, clock) if with_segment_size else {}
    text = config.get("mappedFileSizeCommitLog", "")
    size = int(text) if text.isdecimal() else 0
    return MasterView(
        min_offset,
        max_offset,
        segment_size=size if 0 < size <= LARGEST_SEGMENT else None,
        derived_file_settings={key: config[key] for key in DERIVED_FILE_SETTINGS if key in config},
    )
