"""``<store>/rmqha/cluster.json``: what a node knows of its failover cluster, kept over restarts."""

from dataclasses import asdict, replace
from pathlib import Path

import orjson

from rmqha.failover.keys import EPOCH, History, NewestChange, decode
from rmqha.failover.member import Known
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.smallfiles import read_small, write_small


def known_path(store: Path) -> Path:
    """Where a store keeps it."""
    return store / NODE_FOLDER / "cluster.json"


def read_known(store: Path, disk: Disk = DISK) -> Known:
    """What an earlier process of this store has noted. Raises StoreError, OSError."""
    return read_small(
        known_path(store),
        _parsed,
        Known(),
        "does not say what this node knows of its failover cluster",
        ". The log is not affected. Move the file away while another node leads, and start the node: it then follows "
        "that leader",
        disk,
    )


def _parsed(raw: bytes) -> Known:
    content = orjson.loads(raw)
    cluster_id = content["cluster_id"]
    return Known(
        int(content["epoch"]),
        str(content["leader"]),
        None if cluster_id is None else int(cluster_id),
        str(content.get("whole_since", "")),
        str(content.get("boot", "")),
        content.get("is_flushed") is True,
        decode(History, EPOCH, orjson.dumps(content.get("history", {}))),
        int(content.get("number", 0)),
        tuple(map(str, content.get("members", ()))),
        str(content.get("config", "")),
        str(content.get("log_of", "")),
        {
            str(name): NewestChange(int(each["epoch"]), str(each["stamp"]), int(each["number"]))
            for name, each in content.get("doubters", {}).items()
        },
    )


def write_known(store: Path, known: Known, disk: Disk = DISK) -> None:
    """Note it durably. Raises OSError."""
    write_small(known_path(store), asdict(known), disk)


def note_flushed(store: Path, boot: str, disk: Disk = DISK) -> None:
    """Note that the process of this boot, which has noted its start, has flushed all of the log, and ends.

    Raises StoreError, OSError.
    """
    known = read_known(store, disk)
    if known.boot == boot:
        write_known(store, replace(known, is_flushed=True), disk)
