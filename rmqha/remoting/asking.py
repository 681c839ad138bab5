"""Asks a broker, ours or Java's, about itself (spec/remoting.md 2.14, 2.15)."""

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from rmqha.ha.slave.replica import MasterView, UnsupportedMaster
from rmqha.kit.events import Event
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.protocol import call_once
from rmqha.settings.settings import MAX_SEGMENT, MIN_SEGMENT
from rmqha.wire.brokerinfo import (
    NODE_STATE_KEY,
    MasterRange,
    config_table,
    other_replication,
    range_of_log,
    runtime_table,
    settling_seconds,
)
from rmqha.wire.command import RemotingCommand, RequestCode

_log = Logger()
MAX_SHOWN = 40
DERIVED_FILE_SETTINGS = (
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)


async def ask_runtime_info(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> dict[str, str]:
    """The broker's runtime info. Raises RemotingError, TimeoutError, or what connecting raises."""
    return read_runtime_info(await call_once(endpoint, RequestCode.GET_BROKER_RUNTIME_INFO, clock))


def read_runtime_info(answer: RemotingCommand) -> dict[str, str]:
    """The runtime info in an answer to GET_BROKER_RUNTIME_INFO. Raises RemotingError."""
    try:
        return runtime_table(answer.body)
    except ValueError as error:
        raise RemotingError(str(error)) from error


async def ask_config(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> dict[str, str]:
    """The broker's settings. Raises RemotingError, TimeoutError or what connecting raises."""
    return read_config(await call_once(endpoint, RequestCode.GET_BROKER_CONFIG, clock))


def read_config(answer: RemotingCommand) -> dict[str, str]:
    """The settings in an answer to GET_BROKER_CONFIG. Raises RemotingError."""
    try:
        return config_table(answer.body)
    except ValueError as error:
        raise RemotingError(str(error)) from error


def log_range(table: Mapping[str, str]) -> tuple[int, int]:
    """Min and max offset of the commit log, from the runtime info. Raises RemotingError.

    They are equal for an empty log, whose min is given as -1.
    """
    try:
        return range_of_log(table)
    except ValueError as error:
        raise RemotingError(str(error)) from error


async def ask_master_range(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> MasterRange:
    """The range of a master's log. Raises RemotingError, TimeoutError or what connecting raises."""
    table = await ask_runtime_info(endpoint, clock)
    is_ours = NODE_STATE_KEY in table
    return MasterRange(
        *log_range(table), is_ours, 0.0 if is_ours else settling_seconds(await ask_config(endpoint, clock))
    )


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


async def view_of_master(endpoint: IStreamClientEndpoint, clock: IReactorTime, with_segment_size: bool) -> MasterView:
    """The master's log range and, if ``with_segment_size``, also its segment size and the sizes of derived files.

    Raises RemotingError, TimeoutError, or what connecting raises; with ``with_segment_size`` also UnsupportedMaster.
    """
    config = await ask_config(endpoint, clock) if with_segment_size else {}
    mode = other_replication(config)
    if mode is not None:
        raise UnsupportedMaster(
            f"the master is in {mode}, which has its own replication: rmqha does not support it and cannot copy this "
            "broker"
        )
    min_offset, max_offset = log_range(await ask_runtime_info(endpoint, clock))
    return MasterView(
        min_offset,
        max_offset,
        segment_size=segment_size_of(config),
        derived_file_settings={key: config[key] for key in DERIVED_FILE_SETTINGS if key in config},
        warning=_waits_for_nobody(config),
        settling_seconds=settling_seconds(config) if with_segment_size else None,
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
