"""How commands reach a coordinator: their options, and one run of the reactor with a client."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from twisted.internet.interfaces import IReactorTime

from rmqha.cli.running import run_reactor, the_reactor
from rmqha.cli.shared import with_options
from rmqha.coordination.address import EXAMPLE, CoordinatorAccess, CoordinatorAddress
from rmqha.coordination.etcd import make_coordinator
from rmqha.coordination.interface import (
    CoordinatorError,
    CoordinatorRefused,
    ICoordinator,
    LeaseGone,
    NoCoordinator,
    Snapshot,
)
from rmqha.failover.keys import CONFIG, ROOT, InvalidKey
from rmqha.failover.overview import ClusterName, Overview, Unreadable, clusters_in, lease_of_leader, overview_of
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.tls.certificates import TLSError
from rmqha.settings.settings import SettingsError
from rmqha.store.offline.commands import Trouble

ADDRESS_VARIABLE = "RMQHA_FAILOVER"
_FILE = click.Path(path_type=Path, dir_okay=False)
COORDINATOR = (
    click.option(
        "--failover",
        "address",
        envvar=ADDRESS_VARIABLE,
        default=None,
        metavar="ADDRESS",
        help=f"The coordinator, as the nodes have it: {EXAMPLE}. Default: ${ADDRESS_VARIABLE}.",
    ),
    click.option(
        "--coordinator-login",
        "login_file",
        type=_FILE,
        default=None,
        metavar="FILE",
        help="A file with the lines user=… and password=…. Default: $RMQHA_COORDINATOR_USER and "
        "$RMQHA_COORDINATOR_PASSWORD, if they are set.",
    ),
    click.option(
        "--coordinator-ca",
        "authorities",
        type=_FILE,
        default=None,
        metavar="FILE",
        help="For https: PEM file of trusted authorities; default: the platform's.",
    ),
    click.option(
        "--coordinator-cert",
        "certificate",
        type=_FILE,
        default=None,
        metavar="FILE",
        help="For https: PEM file of the certificate to show.",
    ),
    click.option(
        "--coordinator-key",
        "key",
        type=_FILE,
        default=None,
        metavar="FILE",
        help="PEM file of its key; default: the file of --coordinator-cert.",
    ),
)
CHOICE = (
    click.option("--cluster", "cluster_name", default=None, help="The cluster. Default: the only one."),
    click.option("--broker", "broker_name", default=None, help="The broker's name. Default: the only one."),
)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Way:
    """The coordinator, and the cluster there, that the options name."""

    address: CoordinatorAddress
    access: CoordinatorAccess
    cluster: str | None = None
    broker: str | None = None

    def run(self, ask: Callable[["Session"], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run the reactor until ``ask`` has an answer. Raises Trouble for all that the coordinator does wrong."""
        reactor = the_reactor()

        async def work() -> Answer:
            session = Session(self, reactor)
            try:
                return await ask(session)
            finally:
                await session.coordinator.close()

        try:
            return run_reactor(reactor, work)
        except (SettingsError, TLSError) as error:
            raise Trouble(ExitCode.USAGE, str(error)) from error
        except NoCoordinator as error:
            raise Trouble(
                ExitCode.CANNOT_CONNECT, f"{self.address}: {error} Is it the address that the nodes have?"
            ) from error
        except CoordinatorRefused as error:
            raise Trouble(
                ExitCode.IO_ERROR,
                f"{self.address} refuses: {error} For a login, give --coordinator-login or --coordinator-cert",
            ) from error
        except CoordinatorError as error:
            raise Trouble(
                ExitCode.CANNOT_CONNECT,
                f"{self.address}: {error} Is it the address that the nodes have? Is the coordinator running?",
            ) from error
        except InvalidKey as error:
            raise Trouble(ExitCode.CORRUPT, unreadable(str(error))) from error


class Session:
    """A client of the coordinator, while the reactor runs."""

    def __init__(self, way: Way, reactor: Any) -> None:
        self.way = way
        self.clock = IReactorTime(reactor)
        self._reactor = reactor
        self.coordinator: ICoordinator = make_coordinator(reactor, way.address, way.access)

    async def reconnect(self) -> None:
        """A client without old connections: after a question to the user they may have ended."""
        await self.coordinator.close()
        self.coordinator = make_coordinator(self._reactor, self.way.address, self.way.access)

    async def clusters(self) -> list[tuple[ClusterName, Snapshot]]:
        """All clusters. Raises CoordinatorError."""
        return list(clusters_in(await self.coordinator.range(f"{ROOT}/")))

    async def overview(self, name: ClusterName, keys: Snapshot) -> Overview | Unreadable:
        """A cluster with what is known of its leader's lease. Raises CoordinatorError."""
        lease = lease_of_leader(name, keys)
        seconds: int | None = None
        if lease is not None:
            try:
                seconds = await self.coordinator.time_to_live(lease)
            except LeaseGone:  # since the keys were read
                seconds = 0
            except CoordinatorRefused:  # a witness of an older release does not know the call
                seconds = None
        return overview_of(name, keys, datetime.now(UTC), seconds)

    async def chosen(self) -> tuple[ClusterName, Snapshot]:
        """The cluster that the options choose, and its keys. Raises Trouble with exit code 2, CoordinatorError."""
        found = await self.clusters()
        way = self.way
        matching = [
            each for each in found if way.cluster in (None, each[0].cluster) and way.broker in (None, each[0].broker)
        ]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(str(name) for name, _ in matching or found)
        if not found:
            raise Trouble(ExitCode.USAGE, f"{way.address} has no cluster: start a node with --failover={way.address}")
        if not matching:
            raise Trouble(ExitCode.USAGE, f"there is no such cluster. There are, as CLUSTER/BROKER: {names}")
        raise Trouble(ExitCode.USAGE, f"choose one with --cluster and --broker. There are, as CLUSTER/BROKER: {names}")


def unreadable(problem: str) -> str:
    """What is wrong with a key, and what to type."""
    if f"/{CONFIG} " in problem or "settings" in problem:
        return f"{problem}. To write the default settings: rmqha cluster config --reset"
    return f"{problem}. The nodes cannot read it either. To delete it from etcd: etcdctl del KEY"


def with_coordinator(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ``COORDINATOR`` to a command. It gets what they say as ``way``."""

    @wraps(command)
    def run(
        address: str | None, cluster_name: str | None = None, broker_name: str | None = None, **others: Any
    ) -> None:
        if address is None:
            raise Trouble(
                ExitCode.USAGE,
                f"where is the coordinator? Give --failover={EXAMPLE.split()[0]}, as the nodes have it, or set "
                f"{ADDRESS_VARIABLE}",
            )
        try:
            parsed = CoordinatorAddress.parse(address)
        except SettingsError as error:
            raise Trouble(ExitCode.USAGE, f"--failover: {error}") from error
        files = (others.pop(name) for name in ("login_file", "authorities", "certificate", "key"))
        access = CoordinatorAccess(*files)
        command(way=Way(parsed, access, cluster_name, broker_name), **others)

    return with_options(COORDINATOR)(run)


def with_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """As ``with_coordinator``, with the options that choose a cluster."""
    return with_coordinator(with_options(CHOICE)(command))
