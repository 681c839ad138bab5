"""``examples/cluster.py NAME``: all nodes of a configuration on this machine, and a name server, until Ctrl-C.

Each node is a twistd process that reads its file in ``examples/NAME``; their logs lie beside their stores.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Column, Table

from rmqha.kit.events import Event
from rmqha.settings.settings import BrokerRole, Settings, make_settings, read_properties
from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import NameServerNode, NodeError, TwistdNode

EXAMPLES = Path(__file__).resolve().parent
FAILOVER = "failover"
CONFIGURATIONS = ("2m-2s-async", "2m-2s-sync", "2m-noslave", FAILOVER)
WITNESS_AFTER = 1
"""The port of the witness is so many above that of the name server."""
PORTS_APART = 10
"""Each node has three ports: listenPort, the fast port two below, and the HA port one above."""
POLL_SECONDS = 0.2


def read_configuration(name: str) -> dict[str, Settings]:
    """The settings of all nodes by the names of their files. Raises SettingsError."""
    files = sorted((EXAMPLES / name).glob("*.properties"), key=lambda file: file.stem)
    return {file.stem: make_settings(read_properties(file)) for file in files}


class Cluster(NamedTuple):
    """A configuration that runs: its name server, and its nodes with their settings by the names of their files."""

    name_server: NameServerNode
    nodes: dict[str, TwistdNode]
    settings: dict[str, Settings]
    witness: str | None = None
    """Of ``failover``: the address of its coordinator, as ``--failover`` takes it."""

    def table(self) -> Table:
        """Who is there."""
        table = Table("who", "role", "pid", "port", "fast", "HA", Column("store", overflow="fold"))
        _, port = self.name_server.address.split(":")
        table.add_row("namesrv", "name server", str(self.name_server.pid), port)
        for name, node in self.nodes.items():
            ports = [str(node.port(purpose)) for purpose in ("remoting", "fast remoting", "ha")]
            role = self.settings[name].broker_role.value if self.witness is None else "member"
            table.add_row(name, role, str(node.pid), *ports, str(node.store))
        return table

    def processes(self) -> list[TwistdNode]:
        """All of them, the name server last."""
        return [*self.nodes.values(), self.name_server]

    def stop(self) -> dict[str, int]:
        """End what still runs, the name server last; the exit status of each. Raises NodeError."""
        return {node.name: node.stop() if node.is_running else node.wait() for node in self.processes()}


@contextmanager
def running(name: str, work: Path, base_port: int | None = None, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """A configuration, from when all are registered and all slaves in sync; kills at the end what still runs.

    Stores and logs are below ``work``. Without ``base_port`` all ports are those of the files; else it is the name
    server's, and the nodes' follow ten apart; 0 takes any free ones. ``options`` are further ones of each node. Raises
    NodeError.
    """
    settings = read_configuration(name)
    folder = work / "store" / name
    with ExitStack() as started:
        port = _file_port(settings) if base_port is None else base_port
        witness = [f"--witness={port and port + WITNESS_AFTER}"] if name == FAILOVER else []
        name_server = NameServerNode(folder, [f"--port={port}", *witness])
        _start_node(name_server, started)
        coordinator = f"witness:127.0.0.1:{name_server.port('witness')}" if witness else None
        nodes = {}
        for number, (who, own) in enumerate(settings.items(), 1):
            words = [f"--conf={EXAMPLES / name / who}.properties", f"--namesrv={name_server.address}", *options]
            if base_port is not None:
                words.append(f"--port={base_port + number * PORTS_APART if base_port else 0}")
            if coordinator is not None:
                words += [f"--failover={coordinator}", f"--member={who}"]
            nodes[who] = TwistdNode(folder, words, store=work / own.store_path_root_dir, name=who)
        cluster = Cluster(name_server, nodes, settings, coordinator)
        if coordinator is not None:
            _start_members(cluster, started)
            yield cluster
            return
        masters = [who for who, own in settings.items() if own.broker_role is not BrokerRole.SLAVE]
        _start(cluster, masters, started)  # before their slaves, which then need not ask twice where they are
        _start(cluster, [who for who in settings if who not in masters], started)
        yield cluster


def _file_port(settings: dict[str, Settings]) -> int:
    """The port of the name server that the files tell."""
    (address,) = {own.namesrv_addr for own in settings.values()}
    return int(address.rpartition(":")[2])


def _start_node(node: TwistdNode, started: ExitStack) -> None:
    node.process_group = 0  # Ctrl-C is ours to pass on: who is told twice to end may hear it when Python has ended half
    started.enter_context(node)


def _start(cluster: Cluster, names: Sequence[str], started: ExitStack) -> None:
    """Start these nodes, and wait until each is registered and, if it is a slave, in sync."""
    for name in names:
        _start_node(cluster.nodes[name], started)
    for name in names:
        own, node = cluster.settings[name], cluster.nodes[name]
        node.wait_for_event(Event.REGISTERED)
        if own.broker_role is BrokerRole.SLAVE:
            node.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")


def _start_members(cluster: Cluster, started: ExitStack) -> None:
    """Start the members of a failover cluster, and wait until one leads and all others have all messages."""
    for node in cluster.nodes.values():
        _start_node(node, started)
    names = sorted(cluster.nodes)

    def knows(state: NodeState) -> bool:
        found = state.failover or {}
        return bool(found.get("leader")) and found.get("sync") == names

    for node in cluster.nodes.values():
        node.wait_for_state(knows, "a leader, and all members in sync")


def _wait_for_ctrl_c(cluster: Cluster) -> None:
    """Wait, and no longer than anything runs."""
    with suppress(KeyboardInterrupt):
        while any(node.is_running for node in cluster.processes()):
            time.sleep(POLL_SECONDS)  # no one call waits for the end of several processes


@click.command()
@click.argument("name", type=click.Choice(CONFIGURATIONS))
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Folder where the stores are made, below store/NAME. Default: the current one.",
)
@click.option(
    "--base-port",
    type=click.IntRange(0, 65000),
    help="The name server's port; the nodes' follow, ten apart. 0: any free ones. Default: those of the files.",
)
def main(name: str, work: Path, base_port: int | None) -> None:
    """Run all nodes of a configuration, and a name server, until Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    console = Console()
    try:
        with running(name, work, base_port) as cluster:
            console.print(cluster.table())
            way = f"--namesrv={cluster.name_server.address}"
            if cluster.witness is not None:
                console.print(f"rmqha cluster show --failover={cluster.witness}", soft_wrap=True, highlight=False)
            console.print(f"rmqha put TopicTest hello {way}; Ctrl-C ends all", soft_wrap=True, highlight=False)
            _wait_for_ctrl_c(cluster)
            statuses = cluster.stop()
    except NodeError as error:
        raise click.ClickException(str(error)) from error
    broken = {who: status for who, status in statuses.items() if status}
    if broken:
        raise click.ClickException("; ".join(f"{who} ended with status {status}" for who, status in broken.items()))


if __name__ == "__main__":
    main()
