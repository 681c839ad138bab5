"""Java brokers and clients, and our nodes, as fixtures; what a test starts through them ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from rmqha.testing.nodes import NameServerNode
from rmqha.testing.proxy import FaultProxy
from tests.interop.nodes import OurBroker, RmqhaNode
from tests.interop.rocketmq import HA_PORT_STEP, SMALL_FILES, Broker, Driver, NameServer, class_path, java_home_problem
from tests.needs import need

SEGMENT_SIZE: Final = 256 << 10

_serial = count(1)


class MasterFactory(Protocol):
    """Starts a master in a cluster of its own; options as `Broker` has them, `role` among them."""

    def __call__(self, **options: Any) -> Broker: ...


class SlaveFactory(Protocol):
    """Starts a slave of a Java master; of any other by `ha_master`, `name` and `cluster`.

    haSendHeartbeatInterval=1000 makes a Java slave report within 2 s of connecting instead of 6.
    """

    def __call__(self, master: Broker | None = None, **options: Any) -> Broker: ...


class SlaveNodeFactory(Protocol):
    """Starts a slave of ours for a Java master, on a store of its own unless given one, perhaps behind a relay."""

    def __call__(
        self, master: Broker, *options: str, store: Path | None = None, relay: FaultProxy | None = None
    ) -> RmqhaNode: ...


class MasterNodeFactory(Protocol):
    """Starts an async master of ours on a store; its HA port is `listen_port` + 1."""

    def __call__(self, store: Path, listen_port: int) -> RmqhaNode: ...


class OurBrokerFactory(Protocol):
    """Starts a broker of ours that the name server knows; options as `OurBroker` has them."""

    def __call__(self, role: str, **options: Any) -> OurBroker: ...


class RelayFactory(Protocol):
    """Starts a relay in front of a Java master's HA port: a proxy that lets nothing through to slaves until told to."""

    def __call__(self, master: Broker) -> FaultProxy: ...


@pytest.fixture(scope="session")
def java_class_path() -> str:
    """The release on this machine: without a JDK or Maven tests are skipped, but on CI they fail."""
    need(java_home_problem())
    return class_path()


@pytest.fixture(scope="session")
def namesrv(java_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    """One Java name server for all tests."""
    server = NameServer(tmp_path_factory.mktemp("namesrv"))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def our_namesrv(java_class_path: str, tmp_path: Path) -> Iterator[NameServerNode]:
    """A name server of ours."""
    with NameServerNode(tmp_path, name="our-namesrv") as node:
        node.port("name server")
        yield node


@pytest.fixture
def our_driver(our_namesrv: NameServerNode, tmp_path: Path) -> Driver:
    """The official client, with our name server."""
    return Driver(our_namesrv.address, tmp_path / "our-driver")


@pytest.fixture
def java_brokers(java_class_path: str) -> Iterator[ExitStack]:
    """Where the factories leave what must be killed at the end, the latest first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def java_master(namesrv: NameServer, java_brokers: ExitStack, tmp_path: Path) -> MasterFactory:
    """Starts Java masters with small files."""

    def start(**options: Any) -> Broker:
        serial = next(_serial)
        own: dict[str, Any] = {
            "namesrv": namesrv.address,
            "name": f"broker-{serial}",
            "cluster": f"cluster-{serial}",
            "segment_size": SEGMENT_SIZE,
        }
        return _start(tmp_path / f"master-{serial}", java_brokers, {**SMALL_FILES, **own, **options})

    return start


@pytest.fixture
def java_slave(namesrv: NameServer, java_brokers: ExitStack, tmp_path: Path) -> SlaveFactory:
    """Starts Java slaves with small files."""

    def start(master: Broker | None = None, **options: Any) -> Broker:
        serial = next(_serial)
        own: dict[str, Any] = {"role": "SLAVE", "namesrv": namesrv.address, "segment_size": SEGMENT_SIZE}
        if master is not None:
            own |= {
                "ha_master": master.ha_address,
                "name": master.name,
                "cluster": master.cluster,
                "segment_size": master.segment_size,
            }
        return _start(tmp_path / f"slave-{serial}", java_brokers, {**SMALL_FILES, **own, **options})

    return start


@pytest.fixture
def driver(namesrv: NameServer, tmp_path: Path) -> Driver:
    """The official client."""
    return Driver(namesrv.address, tmp_path / "driver")


@pytest.fixture
def our_slave(java_brokers: ExitStack, tmp_path: Path) -> SlaveNodeFactory:
    """Starts slaves of ours."""

    def start(master: Broker, *options: str, store: Path | None = None, relay: FaultProxy | None = None) -> RmqhaNode:
        ha_address = master.ha_address if relay is None else relay.address
        own = ("--role=slave", "--port=0", f"--master={ha_address}", f"--master-remoting={master.address}")
        return _start_node(RmqhaNode(tmp_path, [*own, *options], store, f"our-slave-{next(_serial)}"), java_brokers)

    return start


@pytest.fixture
def our_master(java_brokers: ExitStack, tmp_path: Path) -> MasterNodeFactory:
    """Starts async masters of ours, and waits until they serve slaves."""

    def start(store: Path, listen_port: int) -> RmqhaNode:
        options = ("--role=async-master", f"--port={listen_port}")
        node = _start_node(RmqhaNode(tmp_path, options, store, f"our-master-{next(_serial)}"), java_brokers)
        assert node.port("ha") == listen_port + HA_PORT_STEP
        return node

    return start


@pytest.fixture
def our_broker(namesrv: NameServer, java_brokers: ExitStack, tmp_path: Path) -> OurBrokerFactory:
    """Starts brokers of ours with small files; a master is in a cluster of its own."""
    return partial(start_our_broker, namesrv, java_brokers, tmp_path)


def start_our_broker(
    java_namesrv: NameServer | NameServerNode, stack: ExitStack, work: Path, role: str, **options: Any
) -> OurBroker:
    """A broker of ours; `stack` will kill it."""
    serial = next(_serial)
    own: dict[str, Any] = {"name": f"broker-{serial}", "cluster": f"cluster-{serial}", "namesrv": java_namesrv.address}
    own |= {"node_name": f"our-broker-{serial}", "mappedFileSizeCommitLog": SEGMENT_SIZE}
    if role == "sync-master":
        own["slaveTimeout"] = 60_000  # a busy machine must not look like a slave that has gone
    broker = OurBroker(work, role, **{**own, **options})
    _start_node(broker, stack)
    return broker


@pytest.fixture
def relay(java_brokers: ExitStack) -> RelayFactory:
    """Starts relays."""

    def start(master: Broker) -> FaultProxy:
        started = java_brokers.enter_context(FaultProxy(master.ha_address))
        started.command("down hold")
        return started

    return start


def _start_node(node: RmqhaNode, stack: ExitStack) -> RmqhaNode:
    stack.callback(node.kill)
    node.start()
    return node


def _start(work: Path, brokers: ExitStack, options: dict[str, Any]) -> Broker:
    broker = Broker(work, **options)
    brokers.callback(broker.kill)
    return broker.start()
