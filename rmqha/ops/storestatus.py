"""The state of a store on this machine, as ``rmqha status`` and ``rmqha doctor`` show it."""

from dataclasses import replace
from pathlib import Path

from rmqha.kit.times import iso_time
from rmqha.ops.status import UNKNOWN, NodeStatus
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.mappedfile import DISK
from rmqha.store.nodestate import state_path
from rmqha.store.offline.storereader import StoreReader

ROOM_FOR_STATE_BYTES = 64 << 10
"""With less room on its disk a node may not be able to write state.json."""


def status_of_store(store: StoreReader) -> NodeStatus:
    """The status of a store on this machine. If our own node never ran on it, its log is read to find its end."""
    if store.state is not None:
        killed = not store.live and (store.root / ABORT_FILE).exists()
        found = NodeStatus.of_node(store.state, store.live, killed)
        out_of_date = _out_of_date(store.root) if store.live else None
        if out_of_date is None:
            return found
        node = replace(found.node, warnings=(*found.node.warnings, out_of_date))
        return replace(found, node=node, out_of_date=out_of_date)
    bases = store.log.segment_bases
    end = store.scan(bases[max(0, len(bases) - 2)], lambda _: None).end if bases else 0
    return NodeStatus.of_other(UNKNOWN, store.live, store.log.min_offset, end)


def _out_of_date(store: Path) -> str | None:
    """Why a running node may not be able to write its state. Raises OSError."""
    free = DISK.free_bytes(store)
    if free >= ROOM_FOR_STATE_BYTES:
        return None
    written = iso_time(int(state_path(store).stat().st_mtime * 1000))
    return (
        f"the disk is full, with {free} bytes free: the node refuses messages, and cannot tell its state. What is "
        f"shown was written at {written}"
    )
