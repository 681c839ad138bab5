"""What brokers, ours and Java's, and name servers answer about themselves (spec/remoting.md 2.14, 2.15, 3)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import javaproperties
import orjson

from rmqha.wire.beans import LONG_BITS, read_integer, read_mapping, read_text

NODE_STATE_KEY = "rmqha"
"""The entry of a node's runtime info that holds its state.json. Java brokers do not have it."""
VERSION_KEY = "rmqhaVersion"
"""The entry of a node's runtime info that holds the version of rmqha."""
READERS_KEY = "rmqhaReaders"
"""The entry of a node's runtime info that is ``true`` if its HA port knows readers (``wire.transfer.READER``)."""
PUT_WAITS_MS = {"slaveTimeout": 3000, "syncFlushTimeout": 5000}
"""How long a put of a Java SYNC_MASTER waits for slaves, with upstream's defaults. Before 4.9.3 it is the second."""
MARGIN_SECONDS = 1.0
OTHER_REPLICATION = {"enableDLegerCommitLog": "DLedger mode", "enableControllerMode": "controller mode"}
"""Settings of a master that does not speak the HA protocol of a classic master, and what they switch on."""


class MasterRange(NamedTuple):
    """The range of a master's log, and whether the master is a node of ours: such a one takes no question for an
    acknowledgement. Another one does, and its puts may wait for ``settling_seconds``.
    """

    min: int
    end: int
    is_ours: bool
    settling_seconds: float


def runtime_table(body: bytes) -> dict[str, str]:
    """The table in the body of an answer to GET_BROKER_RUNTIME_INFO. Raises ValueError."""
    try:
        table: dict[str, Any] = orjson.loads(body)["table"]
        return {str(name): str(value) for name, value in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the runtime info is not a table: {error!r}") from error


def config_table(body: bytes) -> dict[str, str]:
    """The settings in the body of an answer to GET_BROKER_CONFIG. Raises ValueError."""
    try:
        return javaproperties.loads(body.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"the broker's config is not in properties format: {error}") from error


def range_of_log(table: Mapping[str, str]) -> tuple[int, int]:
    """Min and max offset of the commit log, from the runtime info. Raises ValueError.

    They are equal for an empty log, whose min is given as -1.
    """
    try:
        smallest, largest = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"the runtime info does not contain the commit log's range: {error!r}") from error
    smallest = largest if smallest < 0 else smallest
    if not 0 <= smallest <= largest:
        raise ValueError(f"the runtime info says the commit log is {smallest} to {largest}")
    return smallest, largest


def other_replication(config: Mapping[str, str]) -> str | None:
    """The mode in which a broker does not speak the HA protocol of a classic master; None if it does."""
    for key, mode in OTHER_REPLICATION.items():
        if config.get(key, "").strip().lower() == "true":
            return f"{mode} ({key}=true)"
    return None


def settling_seconds(config: Mapping[str, str]) -> float:
    """How long after its append no put of a Java SYNC_MASTER with these settings waits for slaves any more."""

    def milliseconds(key: str, default: int) -> int:
        text = config.get(key, "").strip()
        return int(text) if text.isascii() and text.isdecimal() else default

    return max(milliseconds(key, default) for key, default in PUT_WAITS_MS.items()) / 1000 + MARGIN_SECONDS


def read_brokers(content: Any) -> dict[str, dict[int, str]]:
    """The addresses in a ClusterInfo by brokerName and brokerId. Raises ValueError."""
    return {
        str(name): {
            read_integer(number, LONG_BITS): read_text(address)
            for number, address in read_mapping(broker, "brokerAddrs").items()
        }
        for name, broker in read_mapping(content, "brokerAddrTable").items()
    }
