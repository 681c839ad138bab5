"""What a broker tells mqadmin 5.x of replication: GET_BROKER_HA_STATUS (spec/ha.md 11)."""

from collections.abc import Mapping
from typing import Any

import orjson

from rmqha.broker.interfaces import IBrokersNode
from rmqha.kit.times import parse_time
from rmqha.remoting.protocol import Processors
from rmqha.store.nodestate import NodeState
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

UNKNOWN_OFFSET = -1


def ha_status_processors(node: IBrokersNode) -> Processors:
    """Answers the request with what the node tells now."""
    return {
        RequestCode.GET_BROKER_HA_STATUS: lambda _, __: RemotingCommand(
            ResponseCode.SUCCESS, body=orjson.dumps(node.ha_status())
        )
    }


def ha_runtime_info(state: NodeState, is_slave: bool, near_bytes: int) -> dict[str, Any]:
    """Java's HARuntimeInfo. A slave counts as in sync if it is less than ``near_bytes`` behind.

    We do not measure transfers, so each rate is 0. Of a slave the last contact stands for the last read and write.
    """
    end = state.offsets.verified
    if is_slave:
        heard_at = 0 if state.last_contact is None else parse_time(state.last_contact)
        client = {
            "masterAddr": state.master,
            "transferredByteInSecond": 0,
            "maxOffset": end,
            "lastReadTimestamp": heard_at,
            "lastWriteTimestamp": heard_at,
            "masterFlushOffset": 0,
            "activated": False,
        }
        return {"master": False, "haClientRuntimeInfo": client, "haConnectionInfo": []}
    slaves = [_slave_info(peer, end, near_bytes) for peer in state.peers]
    return {
        "master": True,
        "masterCommitLogMaxOffset": end,
        "inSyncSlaveNums": sum(slave["inSync"] for slave in slaves),
        "haConnectionInfo": slaves,
    }


def _slave_info(peer: Mapping[str, Any], end: int, near_bytes: int) -> dict[str, Any]:
    """Java's HAConnectionRuntimeInfo. The offsets of a connection are -1 before its first report."""
    reported = peer["ackOffset"]
    acknowledged = UNKNOWN_OFFSET if reported is None else reported
    return {
        "addr": peer["peer"],
        "slaveAckOffset": acknowledged,
        "diff": end - acknowledged,
        "inSync": reported is not None and end - reported < near_bytes,
        "transferredByteInSecond": 0,
        "transferFromWhere": UNKNOWN_OFFSET if peer["sentOffset"] is None else peer["sentOffset"],
    }
