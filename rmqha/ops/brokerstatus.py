"""The state of a broker, ours or Java's, as ``rmqha status``, ``top`` and ``doctor`` ask for it."""

import math
from collections.abc import Mapping
from dataclasses import replace

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint

from rmqha.ops.status import UNKNOWN, NodeStatus
from rmqha.remoting.asking import ask_config, ask_runtime_info, log_range
from rmqha.remoting.calls import RemotingError
from rmqha.store.nodestate import NodeState
from rmqha.wire.brokerinfo import NODE_STATE_KEY


async def status_of_broker(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> NodeStatus:
    """The status of the broker at a remoting port. Raises RemotingError, TimeoutError, or what connecting raises."""
    table = await ask_runtime_info(endpoint, clock)
    return status_in(table, {} if NODE_STATE_KEY in table else await ask_config(endpoint, clock))


def status_in(table: Mapping[str, str], config: Mapping[str, str]) -> NodeStatus:
    """The status in a broker's runtime info. A Java broker's ``config`` says its role. Raises RemotingError."""
    if NODE_STATE_KEY in table:
        try:
            state = NodeState.from_json(table[NODE_STATE_KEY])
            # it answers, so it does not hang; its clock is not ours
            return NodeStatus.of_node(replace(state, contact_limit=math.inf), running=True)
        except ValueError as error:
            raise RemotingError(f"the node's state is not readable: {error}") from error
    min_offset, max_offset = log_range(table)
    role = config.get("brokerRole", UNKNOWN)
    return NodeStatus.of_other(role, True, min_offset, max_offset)
