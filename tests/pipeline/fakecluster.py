"""Brokers of a cluster as their nodes and a name server show them, without any of them: for streams of their logs."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from rmqha.pipeline import brokers
from rmqha.pipeline.address import Place, ServingNode
from rmqha.pipeline.network.asking import ServedLog
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.pipeline.plan import open_log
from rmqha.store.log.mappedfile import file_name, list_segments
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.wire.record import Record
from tests.pipeline.fakenode import FakeNode
from tests.pipeline.lake import SEGMENT_SIZE, make_store, options_of
from tests.pipeline.stores import make_store as make_store_of

ADDRESS = "namesrv://ns-a:9876?cluster=DefaultCluster"


class FakeCluster:
    """Brokers by name: each has one node and a store of its own in ``work``. A context manager.

    Streams and jobs ask it instead of name servers and remoting ports. HA ports are real.
    """

    def __init__(self, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stores: dict[str, Path] = {}
        self.known: set[str] = set()
        """The brokers that the name server knows."""
        self.answering: set[str] = set()
        """The brokers whose nodes answer."""
        self.states: dict[str, str] = {}
        """Store ids of nodes of ours; a broker without one is Java's."""
        self.confirmed: dict[str, int] = {}
        """What nodes of ours have confirmed, if not all."""
        self._work = work
        self._nodes: dict[str, FakeNode] = {}
        self._stack = ExitStack()
        monkeypatch.setattr(brokers, "ask_brokers", self._ask_brokers)
        monkeypatch.setattr(brokers, "ask_node", self._ask_node)
        monkeypatch.setattr(brokers, "ask_unknown_topics", lambda *_: frozenset())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, log_bytes: int = 40_000, seed: int = 1) -> Path:
        """A broker with a log; its store."""
        return self._add(name, make_store(self._work / f"store-{len(self.stores)}", log_bytes, seed))

    def add_records(self, name: str, records: Sequence[Record]) -> Path:
        """A broker with these messages; its store."""
        return self._add(name, self.store_of(self._work / f"store-{len(self.stores)}", records))

    @staticmethod
    def store_of(store: Path, records: Sequence[Record]) -> Path:
        """A store with these messages; ``store`` itself."""
        make_store_of(store, records, SEGMENT_SIZE)
        return store

    def name_of(self, remoting: Place) -> str:
        """The broker of a remoting port. The HA port of ``rmqha://broker:1`` is that of the first one."""
        return list(self.stores)[remoting.port]

    def _add(self, name: str, store: Path) -> Path:
        self.stores[name] = store
        self._nodes[name] = self._stack.enter_context(FakeNode(self._log(name)))
        self.known.add(name)
        self.answering.add(name)
        return self.stores[name]

    def grow(self, name: str, log_bytes: int, seed: int = 1) -> None:
        """More messages come to a broker."""
        make_store(self.stores[name], log_bytes, seed)
        self._nodes[name].log = self._log(name)

    def remove(self, name: str) -> None:
        """The broker goes: no node answers, and the name server does not know it any more."""
        self.known.remove(name)
        self.answering.remove(name)

    def add_again(self, name: str) -> None:
        """The broker comes back."""
        self.known.add(name)
        self.answering.add(name)

    def _log(self, name: str) -> bytes:
        end = open_log(options_of(self.stores[name])).end
        folder = self.stores[name] / "commitlog"
        return b"".join((folder / file_name(base)).read_bytes() for base, _ in list_segments(folder))[:end]

    def _ask_brokers(self, *_: object) -> dict[str, dict[int, Place]]:
        ports = {name: port for port, name in enumerate(self.stores)}
        return {name: {0: Place("broker", ports[name])} for name in sorted(self.known)}

    def _ask_node(self, remoting: Place, *_: object) -> ServedLog:
        name = self.name_of(remoting)
        if name not in self.answering:
            raise NodeFailed(f"cannot connect to {name}")
        end = len(self._nodes[name].log)
        offsets = Offsets(0, end, end, end, self.confirmed.get(name, end))
        state = NodeState(self.states[name], offsets=offsets) if name in self.states else None
        return ServedLog(ServingNode(self._nodes[name].place, 0), name, 0, end, SEGMENT_SIZE, state)
