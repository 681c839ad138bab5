"""Asks a broker, ours or Java's, about itself (spec/remoting.md 2.14, 2.15)."""

from collections.abc import Mapping
from typing import Any

import javaproperties
import orjson
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from rmqha.events import Event
from rmqha.ha.slave.forkprobe import MasterRange
from rmqha.ha.slave.replica import MasterView, UnsupportedMaster
from rmqha.remoting.protocol import RemotingError, call_once
from rmqha.settings import MAX_SEGMENT, MIN_SEGMENT
from rmqha.wire.beans import LONG_BITS, read_integer, read_mapping, read_text
from rmqha.wire.command import RemotingCommand, RequestCode

_log = Logger()
MAX_SHOWN = 40
DERIVED_FILE_SETTINGS = (
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
NODE_STATE_KEY = "rmqha"
"""The entry of a node's runtime info that holds its state.json. Java brokers do not have it."""
VERSION_KEY = "rmqhaVersion"
"""The entry of a node's runtime info that holds the version of rmqha."""


async def ask_runtime_info(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> dict[str, str]:
    """The broker's runtime info. Raises RemotingError, TimeoutError, or what connecting raises."""
    return read_runtime_info(await call_once(endpoint, RequestCode.GET_BROKER_RUNTIME_INFO, clock))


def read_runtime_info(answer: RemotingCommand) -> dict[str, str]:
    """The runtime info in an answer to GET_BROKER_RUNTIME_INFO. Raises RemotingError."""
    try:
        table: dict[str, Any] = orjson.loads(answer.body)["table"]
        return {str(name): str(value) for name, value in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemotingError(f"the runtime info is not a table: {error!r}") from error


async def ask_config(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> dict[str, str]:
    """The broker's settings. Raises RemotingError, TimeoutError or what connecting raises."""
    return read_config(await call_once(endpoint, RequestCode.GET_BROKER_CONFIG, clock))


def read_config(answer: RemotingCommand) -> dict[str, str]:
    """The settings in an answer to GET_BROKER_CONFIG. Raises RemotingError."""
    try:
        return javaproperties.loads(answer.body.decode("utf-8"))
    except ValueError as error:
        raise RemotingError(f"the broker's config is not in properties format: {error}") from error


def read_brokers(content: Any) -> dict[str, dict[int, str]]:
    """The addresses in a ClusterInfo by brokerName and brokerId. Raises ValueError."""
    return {
        str(name): {
            read_integer(number, LONG_BITS): read_text(address)
            for number, address in read_mapping(broker, "brokerAddrs").items()
        }
        for name, broker in read_mapping(content, "brokerAddrTable").items()
    }


def log_range(table: Mapping[str, str]) -> tuple[int, int]:
    """Min and max offset of the commit log, from the runtime info. Raises RemotingError.

    They are equal for an empty log, whose min is given as -1.
    """
    try:
        smallest, largest = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError) as error:
        raise RemotingError(f"the runtime info does not contain the commit log's range: {error!r}") from error
    smallest = largest if smallest < 0 else smallest
    if not 0 <= smallest <= largest:
        raise RemotingError(f"the runtime info says the commit log is {smallest} to {largest}")
    return smallest, largest


async def ask_master_range(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> MasterRange:
    """The range of a master's log. Raises RemotingError, TimeoutError or what connecting raises."""
    table = await ask_runtime_info(endpoint, clock)
    return MasterRange(*log_range(table), is_ours=NODE_STATE_KEY in table)


def segment_size_of(config: Mapping[str, str]) -> int | None:
    """mappedFileSizeCommitLog from the master's settings; None if it is missing, or with a warning if it is invalid."""
    text = config.get("mappedFileSizeCommitLog", "").strip()
    if not text:
        return None
    try:
        size = int(text)
    except ValueError:
        size = 0
    if MIN_SEGMENT <= size <= MAX_SEGMENT:
        return size
    _log.warn(
        "the master has mappedFileSizeCommitLog={size}, which is not between {least} and {most}: it is not used",
        event=Event.SEGMENT_SIZE_INVALID,
        size=text[:MAX_SHOWN],
        least=MIN_SEGMENT,
        most=MAX_SEGMENT,
    )
    return None


OTHER_REPLICATION = {"enableDLegerCommitLog": "DLedger mode", "enableControllerMode": "controller mode"}
"""Settings of a master that does not speak the HA protocol of a classic master, and what they switch on."""


async def view_of_master(endpoint: IStreamClientEndpoint, clock: IReactorTime, with_segment_size: bool) -> MasterView:
    """The master's log range and, if ``with_segment_size``, also its segment size and the sizes of derived files.

    Raises RemotingError, TimeoutError, or what connecting raises; with ``with_segment_size`` also UnsupportedMaster.
    """
    config = await ask_config(endpoint, clock) if with_segment_size else {}
    for key, mode in OTHER_REPLICATION.items():
        if config.get(key, "").strip().lower() == "true":
            raise UnsupportedMaster(
                f"the master is in {mode} ({key}=true), which has its own replication: rmqha does not support it and "
                "cannot copy this broker"
            )
    min_offset, max_offset = log_range(await ask_runtime_info(endpoint, clock))
    return MasterView(
        min_offset,
        max_offset,
        segment_size=segment_size_of(config),
        derived_file_settings={key: config[key] for key in DERIVED_FILE_SETTINGS if key in config},
        warning=_waits_for_nobody(config),
    )


def _waits_for_nobody(config: Mapping[str, str]) -> str | None:
    """A warning if this is a sync master of 5.x that does not wait for its slaves. 4.x has no inSyncReplicas."""
    replicas = config.get("inSyncReplicas", "").strip()
    if config.get("brokerRole", "").strip() != "SYNC_MASTER" or not replicas.isdecimal() or int(replicas) >= 2:
        return None
    return (
        f"the master is a SYNC_MASTER with inSyncReplicas={replicas[:MAX_SHOWN]}: it answers SEND_OK before this slave "
        "has the message. Set inSyncReplicas=2 there; the default of RocketMQ 5 is 1"
    )
