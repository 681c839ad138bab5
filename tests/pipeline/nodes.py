"""Nodes of ours with logs, for tests that read them over the network."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rmqha.pipeline.address import RemoteLog, ServingNode
from rmqha.pipeline.plan import LogPlan
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.records import write_log
from rmqha.wire.record import Record
from tests.pipeline.stores import make_store

SEGMENT_SIZE = 1 << 18
TOTAL_BYTES = 5 * SEGMENT_SIZE // 2


class Cluster:
    """Nodes of one test. All end with the test."""

    def __init__(self, work: Path, stack: ExitStack) -> None:
        self.work = work
        self.stack = stack

    def master(
        self,
        name: str = "broker-a",
        *options: str,
        seed: int = 1,
        total_bytes: int = TOTAL_BYTES,
        records: Sequence[Record] = (),
    ) -> TwistdNode:
        """A master with a log: of these ``records``, if there are any."""
        store = self.work / f"{name}-store"
        if records:
            make_store(store, records, SEGMENT_SIZE)
        else:
            write_log(store / "commitlog", total_bytes, 700, SEGMENT_SIZE, seed)
        node = self._start(name, store, "--role=async-master", f"--name={name}", *options)
        end_of(node)  # before that its state says that nothing may be read
        return node

    def slave(self, master: TwistdNode, name: str = "broker-a", *options: str) -> TwistdNode:
        """A slave that has its master's log."""
        addresses = f"--master=127.0.0.1:{master.port()}", f"--master-remoting=127.0.0.1:{master.port('remoting')}"
        slave = self._start(
            f"{name}-slave", None, "--role=slave", f"--name={name}", "--broker-id=1", *addresses, *options
        )
        end = end_of(master)
        slave.wait_for_state(lambda state: state.offsets.confirmed >= end, f"a copy of {end} bytes")
        return slave

    def _start(self, name: str, store: Path | None, *options: str) -> TwistdNode:
        node = TwistdNode(self.work, [f"--port={free_port()}", *options], store, name)
        self.stack.enter_context(node)
        node.port("remoting")
        return node


def end_of(node: TwistdNode) -> int:
    """Where a node's log ends."""
    state = node.wait_for_state(lambda state: state.offsets.confirmed > 0, "an end of its log")
    return state.offsets.confirmed


def address(*nodes: TwistdNode) -> str:
    return f"rmqha://{','.join(f'127.0.0.1:{node.port()}' for node in nodes)}"


def nodes_of(plan: LogPlan) -> tuple[ServingNode, ...]:
    """The nodes that have the first segment of a remote log, in the order in which they are asked."""
    return RemoteLog.parse(plan.files[0].path).nodes
