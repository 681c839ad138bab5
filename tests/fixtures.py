"""Stores and HA conversations of a real Java 4.9.3 broker pair, from ``tests/data``.

What is unpacked is unpacked once a process and is read-only for all tests; ``copy_of`` gives one of their own.
"""

import atexit
import gzip
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.mappedfile import list_segments
from rmqha.testing.archive import unpack

DATA = Path(__file__).parent / "data"
STORES = ("master-crash", "slave", "master-clean")
MASTER_TO_SLAVE, SLAVE_TO_MASTER = "master-to-slave", "slave-to-master"


@cache
def facts() -> dict[str, Any]:
    """The facts of the fixtures, as their README tells them."""
    content: dict[str, Any] = json.loads((DATA / "facts.json").read_text())
    return content


def segment_size() -> int:
    """Bytes of every segment of the fixtures."""
    return int(facts()["mappedFileSizeCommitLog"])


def max_offset(name: str) -> int:
    """Where the log of this store ends."""
    return int(facts()["variants"][name]["maxOffset"])


@cache
def expected() -> list[dict[str, Any]]:
    """Every record and blank of master-crash, as Java's decoder reads it."""
    with gzip.open(DATA / "expected.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@cache
def expected_clean_extra() -> list[dict[str, Any]]:
    """What master-clean has after that."""
    return [json.loads(line) for line in (DATA / "expected-clean-extra.jsonl").read_text("utf-8").splitlines()]


@cache
def unpacked(name: str) -> Path:
    """The unpacked store of this name: not to be changed."""
    folder = Path(tempfile.mkdtemp(prefix="rmqha-fixture-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpack(DATA / f"{name}.tar.xz", folder)
    return folder


def copy_of(name: str, folder: Path) -> Path:
    """A copy of the store, as ``folder``, to be changed at will. A master of it has no delayed messages to deliver."""
    store = Path(shutil.copytree(unpacked(name), folder))
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{1:1000,3:1000}}')
    return store


@cache
def segments(name: str) -> dict[int, bytes]:
    """The store's segments by base offset, as far as the log reaches into them."""
    folder = unpacked(name) / "commitlog"
    bases = [base for base, _ in list_segments(folder) if base < max_offset(name)]
    return {base: (folder / f"{base:020d}").read_bytes() for base in bases}


@cache
def log_bytes(name: str) -> bytes:
    """The store's log from 0 to its max offset."""
    return b"".join(segments(name).values())[: max_offset(name)]


@cache
def ha_bytes(direction: str) -> bytes:
    """All bytes of the recorded HA connection in this direction."""
    with gzip.open(DATA / f"ha-{direction}.bin.gz") as file:
        return file.read()


@cache
def ha_chunks(direction: str) -> list[bytes]:
    """The same, cut as the network cut them."""
    chunks, at = [], 0
    with gzip.open(DATA / "ha.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            chunk = json.loads(line)
            if chunk["dir"] == direction and chunk["nbytes"]:
                chunks.append(ha_bytes(direction)[at : at + chunk["nbytes"]])
                at += chunk["nbytes"]
    return chunks


def new_folder(test: SynchronousTestCase) -> Path:
    """An empty folder of the test's own, by its absolute path."""
    folder = Path(test.mktemp()).absolute()
    folder.mkdir(parents=True)
    return folder


def open_files(folder: Path) -> int:
    """How many descriptors of this process are files below ``folder``, deleted ones too."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
        count += target.startswith(f"{folder.resolve()}/")
    return count
