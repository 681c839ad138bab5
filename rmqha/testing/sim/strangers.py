"""Strangers join a simulation: they connect to its nodes, or answer for them."""

from functools import partial
from random import Random

from twisted.internet.interfaces import IProtocolFactory
from zope.interface import Attribute, Interface

from rmqha.testing.sim.network import Attempt, Connecting, End, Network
from rmqha.testing.sim.nodes import SimNode
from rmqha.testing.sim.oracle import Oracle
from rmqha.testing.sim.peers import Bogus, OtherMaster, SlowSlave
from rmqha.testing.sim.process import Process, SortedClock, no_machine


class IStage(Interface):
    """What strangers need of a simulation."""

    network: Network = Attribute("The lines.")
    clock: SortedClock = Attribute("The time.")
    random: Random = Attribute("All random numbers.")
    nodes: dict[str, SimNode] = Attribute("The nodes by their names.")
    oracle: Oracle = Attribute("What it has seen: a stranger can know the newest log.")

    def say(name: str, text: str) -> None:
        """A line of the trace."""

    def note(problem: str) -> None:
        """Something is wrong: the next check raises it."""

    def check() -> None:
        """Whether all holds that must. Raises Violation."""


class Strangers:
    """All strangers of a simulation. If ``are_refused``, no node may send them a byte."""

    def __init__(self, stage: IStage, are_refused: bool) -> None:
        self._stage = stage
        self._are_refused = are_refused
        self.slow: list[SlowSlave] = []
        self._slow_ever: list[SlowSlave] = []
        """Those too that are gone: what they acknowledged counts."""
        self._processes: list[Process] = []

    def acknowledged(self) -> list[int]:
        """What slow slaves have acknowledged, as far as that counts: those that are refused count for nothing."""
        return [] if self._are_refused else [slave.acknowledged for slave in self._slow_ever]

    def intrude(self, name: str, *writes: bytes, peer: Bogus | None = None) -> End:
        """A bogus peer connects to a node and sends these bytes."""
        node = self._stage.nodes[name]
        assert node.process is not None
        near, far = self._stage.network.make_line(self._process("bogus"), node.process)
        near.attach(peer or Bogus())
        far.watch = self._sent_to_stranger if self._are_refused else None
        node.process.call(node.accept, far)
        self._stage.say("bogus", f"connects to {name}")
        for data in writes:
            self._stage.say("bogus", f"sends {data[:24].hex()}" + (" …" if len(data) > 24 else ""))
            near.write(data)
        return near

    def join_slowly(self, name: str, start: int) -> None:
        """A bogus slave asks a node for its log from ``start`` on. What it acknowledges it does have."""
        slave = SlowSlave(start)
        self.slow.append(slave)
        self._slow_ever.append(slave)
        self.intrude(name, peer=slave)

    def pretend_to_be(self, attempt: Attempt) -> None:
        """Another master answers a slave that connects: its log is the slave's, or the master's, but for one byte."""
        node = self._stage.nodes[attempt.process.name]
        say = partial(self._stage.say, "bogus")
        self.impersonate(attempt, peer=OtherMaster(node, self._stage.random, say, self._stage.oracle.histories[-1]))

    def impersonate(self, attempt: Attempt, *writes: bytes, peer: Bogus | None = None) -> None:
        """A bogus peer answers a node that connects, and sends these bytes."""
        assert isinstance(attempt, Connecting)
        factory: IProtocolFactory = attempt.factory
        near, far = self._stage.network.make_line(attempt.process, self._process(attempt.target))
        self._stage.say(attempt.process.name, f"is connected to somebody who is not {attempt.target}")
        far.attach(peer or Bogus())

        def connected() -> None:
            protocol = factory.buildProtocol(near.getPeer())
            assert protocol is not None
            near.attach(protocol)
            attempt.succeed(protocol)

        attempt.process.call(connected)
        for data in writes:
            self._stage.say("bogus", f"sends {data[:24].hex()}" + (" …" if len(data) > 24 else ""))
            far.write(data)
        self._stage.check()

    def _process(self, name: str) -> Process:
        process = Process(name, self._stage.clock, lambda *_: None, no_machine)
        self._processes.append(process)
        return process

    def end(self) -> None:
        """All bogus peers hang up."""
        for process in self._processes:
            for end in self._stage.network.ends:
                if end.process is process and not end.closed:
                    end.abortConnection()
            process.die("")
        if self._processes:
            self._stage.say("bogus", "peers are gone")
        self._processes.clear()
        self.slow.clear()

    def _sent_to_stranger(self, data: bytes) -> None:
        self._stage.note(f"{len(data)} bytes are sent to one who is not in the allow list")
