"""A node while its store is open: the services of its role. ``Node`` makes and starts it, ``RoleChanger`` closes it."""

import gc
import resource
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.threads import deferToThreadPool
from zope.interface import implementer

from rmqha import __version__
from rmqha.acl.yamlfile import AclFileError
from rmqha.broker.addresses import MasterAddresses
from rmqha.broker.background.confirmedsync import ConfirmedFollower
from rmqha.broker.brokerservice import BrokerService, NameServers, Surroundings, broker_limits
from rmqha.broker.hastatus import ha_runtime_info, ha_status_processors
from rmqha.broker.interfaces import IBrokersNode
from rmqha.broker.runtimeinfo import runtime_processors
from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.contact import iso_of
from rmqha.ha.slave.questions import MasterAccess
from rmqha.ha.slave.slaveservice import HASlaveService
from rmqha.ha.slave.states import COPYING, VERDICTS, ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.services import OrderedServices, PeriodicService
from rmqha.net.endpoints import LoopbackEndpoint, look_up
from rmqha.node.interfaces import IOpenNode, IProcess
from rmqha.node.masterendpoints import MasterEndpoints
from rmqha.node.plan import IClusterMember, NodePlan
from rmqha.node.replicating import Replicating, state_of_log
from rmqha.ops.cleaning import CleaningService
from rmqha.ops.listening import ListeningService, tcp_endpoint
from rmqha.ops.places import Place
from rmqha.ops.process import MAX_FILES
from rmqha.ops.snapshots import SNAPSHOT_SECONDS, TableSnapshots
from rmqha.ops.tlsoptions import secured
from rmqha.remoting.asking import view_of_master
from rmqha.remoting.budgets import PortBudget
from rmqha.remoting.protocol import Processors, RemotingFactory
from rmqha.remoting.turns import SELDOM
from rmqha.settings.settings import BrokerRole, Settings, TlsMode
from rmqha.store.errors import StoreError
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodefacts import OpeningPhase, facts_of
from rmqha.store.nodestate import STOPPED, NodeState
from rmqha.web.interfaces import ILiveNode
from rmqha.wire.brokerinfo import NODE_STATE_KEY, READERS_KEY, VERSION_KEY

if TYPE_CHECKING:
    from rmqha.acl.gate import AclGate

SHOWN_CHANGES = 5
"""The last changes of a failover cluster's leader in state.json."""
FOUND_BY_NOBODY = (
    "no name server knows this promoted master, so producers and consumers do not find it: start its node with "
    "--namesrv, or give rmqha promote --namesrv"
)


@implementer(IBrokersNode, ILiveNode, IOpenNode)
class OpenNode:
    """The services of a node's role over its open store.

    A slave has ``slave``. All but a ``--once`` slave have ``serving``, which serves the log on the HA port, and
    ``broker``, which answers clients.
    """

    def __init__(self, plan: NodePlan, store: MessageStore, master: MasterEndpoints, process: IProcess) -> None:
        """Nothing listens or connects before ``services`` are started. The store is flushed and dispatched at once."""
        self._plan = plan
        self._clock = process.clock
        self._master = master
        self._process = process
        self._started_at = time.time()
        self._verdict = store.node_state.verdict
        self._slave_check = SlaveCheck(self._clock, plan.allow_list)
        self._replicating = Replicating(store, plan.settings, process, self)
        self.store = store
        self.factories: dict[str, Any] = {}
        """What builds the connections of each port, by the port's name."""
        self.services = OrderedServices()
        self.slave: HASlaveService | None = None
        self.serving: LogServing | None = None
        self.broker: BrokerService | None = None
        self.promotion_warning: str | None = None
        """What the promotion to a master has left behind, for operators."""
        self._confirmed_follower: ConfirmedFollower | None = None
        self._gate: AclGate | None = None
        self._acl_admin: Processors = {}
        if plan.settings.broker_role is BrokerRole.SLAVE:
            self.slave = self._follow()
        if not plan.slave.once:
            self.serving = self._serve_slaves()
            self.broker = self._listen_for_remoting()
        self._keep_house()

    @property
    def has_no_room(self) -> bool:
        return self.store.has_no_room

    @property
    def master_address(self) -> str | None:
        """The address of the master's HA port, None while it is not known."""
        return self._master.ha_address

    @property
    def verdict(self) -> str | None:
        """GAP, AHEAD or DIVERGED since the slave was in that state, until its log fits its master's again."""
        return self._verdict

    def _follow(self) -> HASlaveService:
        """Copy the master's log."""
        plan = self._plan
        endpoint, remoting = self._master.both()
        ask = None if remoting is None else partial(view_of_master, remoting, self._clock)
        access = MasterAccess(endpoint, ask, lambda: self._master.ha_address)
        slave = self._replicating.follow(plan.slave, access)
        slave.verdicts.describe_fork = self._process.describe_fork
        self.services.add("slave", slave)
        if self.store.read_limit is not None:
            self._confirmed_follower = ConfirmedFollower(
                self.store.read_limit,
                self.store.commit_log,
                lambda: slave.replica.reportable_offset,
                remoting,
                self._clock,
            )
            self.services.add("confirmed offset", self._confirmed_follower)
        return slave

    def in_state(self, state: ReplicaState) -> None:
        """Unregister a slave while its log does not fit its master's, so that it serves no consumers."""
        if state in VERDICTS:
            self._verdict = state.name
        elif state in COPYING:
            self._verdict = None
        if self._confirmed_follower is not None:
            self._confirmed_follower.follow(state in COPYING)
        if self.broker is not None and self._plan.settings.unregister_unfit_slave:
            self.broker.set_fit(state not in VERDICTS, f"it is {state.name}: {state.value}")

    def _serve_slaves(self) -> LogServing:
        """Serve the log on the HA port: a master's, or a slave's to slaves of its own."""
        half_of_files = max(1, _open_files() // 2)  # the rest is for the store and the other ports
        member = self._plan.member
        leadership = None if member is None else member.leadership
        serving = self._replicating.serve_slaves(self._slave_check, half_of_files, leadership)
        port = self._plan.settings.ha_port
        self._listen("ha", port, serving.factory, ": everyone who reaches it can read the log")
        return serving

    def _listens(self, name: str, port: int) -> None:
        """Name servers learn of a port once it listens."""
        if self.broker is not None and name == "ha":
            self.broker.addresses.ha_listening(port)
        elif self.broker is not None and name == "remoting":
            self.broker.addresses.listening(port)

    def _cannot_listen(self, error: str) -> None:
        self._process.stop_with(ExitCode.IO_ERROR, error)

    def _listen_for_remoting(self) -> BrokerService:
        """Answer clients. A master takes their messages, a slave does not."""
        plan, settings = self._plan, self._plan.settings
        broker = BrokerService(
            settings,
            self.store,
            self._clock,
            self._process.run_in_table_thread,
            Surroundings(
                plan.bind_address,
                [*plan.name_servers, *self._embed_name_server()],
                plan.connect,
                plan.master_address,
                None if plan.member is None else plan.member.epoch,
                plan.member is not None and not plan.member.has_id,
                self,
                addresses=plan.addresses,
                find_machines=plan.find_machines,
            ),
        )
        about_node = {
            **runtime_processors(self, broker),
            **ha_status_processors(self),
            **({} if plan.member is None else _processors_of_member(plan.member.member)),
        }
        limits = broker_limits(settings, _connections_of(settings))
        self._control_access(broker)
        ordinary_sends = broker.ordinary_sends(self._gate)
        main, fast = [
            RemotingFactory(
                self._guarded({**broker.processors(fast_port), **about_node}),
                self._clock,
                limits,
                PortBudget(self._clock, settings.server_max_request_bytes, settings.server_max_answer_bytes),
                broker.turns,
                ordinary_sends,
            )
            for fast_port in (False, True)
        ]
        mode = settings.tls_server_mode
        self._listen(
            "remoting",
            settings.listen_port,
            main,
            mode=mode,
            services=broker.ports,
        )
        self._listen("fast remoting", settings.fast_port, fast, mode=mode, services=broker.ports)
        self.services.add("broker", broker)
        return broker

    def keep_settings(self, changes: Mapping[str, str], by: str) -> Awaitable[None]:
        return self._process.keep_settings(changes, by)

    def master_found(self, addresses: MasterAddresses) -> None:
        self._master.found(addresses)

    def clean_now(self) -> Awaitable[None]:
        return self._cleaning.clean_now()

    def tables_in_sync_changed(self) -> None:
        self._state_file.write_soon()

    def find_address(self, name: str) -> Deferred[str]:
        reactor = self._process.reactor
        found: Deferred[str] = deferToThreadPool(reactor, reactor.getThreadPool(), partial(look_up, name))
        return found

    def _control_access(self, broker: BrokerService) -> None:
        """Make the gate of aclEnable, if the plan has its files. Raises StoreError if they cannot be used."""
        files, settings, reactor = self._plan.acl, self._plan.settings, self._process.reactor
        if files is None:
            return
        from rmqha.acl.admin import AclAdminProcessor, BrokerNames  # a node without access control starts quicker
        from rmqha.acl.gate import AclGate

        run_in_thread = partial(deferToThreadPool, reactor, reactor.getThreadPool())
        try:
            self._gate = AclGate(files, self._clock, run_in_thread)
        except AclFileError as error:
            raise StoreError(str(error)) from error
        self.services.add("access control", self._gate)
        self._acl_admin = AclAdminProcessor(
            self._gate,
            run_in_thread,
            lambda: BrokerNames(broker.addresses.broker_addr, settings.broker_name, settings.broker_cluster_name),
        ).processors()

    def _guarded(self, processors: Processors) -> Processors:
        """The same behind the gate of aclEnable, if there is one."""
        return processors if self._gate is None else self._gate.guard({**processors, **self._acl_admin})

    def _embed_name_server(self) -> NameServers:
        """Run a name server if the plan has one. Returns its name and an endpoint, which needs no port."""
        if self._plan.embedded_port is None:
            return ()
        from rmqha.namesrv.nameserver import NameServerService, name_server_limits  # most nodes run none

        settings = self._plan.settings
        name_server = NameServerService(self._clock, self.store.root / CONFIG_FOLDER, self._process.run_in_table_thread)
        self.services.add("name server", name_server)
        factory = RemotingFactory(
            name_server.processors(),
            self._clock,
            name_server_limits(_connections_of(settings), settings.server_max_requests_in_progress),
            PortBudget(self._clock, settings.server_max_request_bytes, settings.server_max_answer_bytes),
        )
        self._listen("name server", self._plan.embedded_port, factory, mode=settings.tls_server_mode)
        return [("of this node", LoopbackEndpoint(factory, self._clock))]

    def _listen(
        self,
        name: str,
        port: int,
        factory: Any,
        if_plain: str = "",
        mode: TlsMode | None = None,
        services: OrderedServices | None = None,
    ) -> None:
        """Add a port to ``services``, or to the node's own."""
        process = self._process
        self.factories[name] = factory
        bind_address = self._plan.bind_address
        endpoint = tcp_endpoint(process.reactor, port, self._plan.addresses.get(bind_address, bind_address))
        endpoint, security = secured(endpoint, self._plan.tls, mode, self._clock, self._slave_check)
        if self._plan.tls is None:
            security += if_plain
        service = ListeningService(endpoint, factory, name, security, self._cannot_listen, partial(self._listens, name))
        (self.services if services is None else services).add(f"{name} port", service)

    def _keep_house(self) -> None:
        """Retention, state.json, snapshots of the tables."""
        process, clock = self._process, self._clock
        acknowledged = dict if self.serving is None else self.serving.factory.acknowledged
        cleaning = CleaningService(self.store, self._plan.hold, acknowledged, clock, process.disk_failed)
        self.services.add("retention", cleaning)
        state_file = self._replicating.keep_state()
        self.services.add("state file", state_file)
        self._cleaning, self._state_file = cleaning, state_file
        written = [] if self.broker is None else [self.broker.topics.written]
        snapshots = TableSnapshots(self.store, process.run_in_table_thread, process.now_ms, *written)
        self.services.add(
            "table snapshots",
            PeriodicService("a snapshot of the tables", SNAPSHOT_SECONDS, snapshots.write_if_changed, clock),
        )
        gc.set_threshold(*SELDOM)
        gc.freeze()  # the tables stay in memory: a collection over 100,000 rows takes longer than a turn

    def fence(self, broker_id: int) -> None:
        if self.serving is not None:
            self.serving.factory.close_connections()
        self.store.end_puts()
        self.register_as_slave(broker_id)

    def register_as_slave(self, broker_id: int) -> None:
        if self.broker is not None:
            self.broker.register_as_slave(broker_id)

    def stop_following(self) -> Deferred[None]:
        return succeed(None) if self.slave is None else maybeDeferred(self.slave.stopService)

    def stop(self) -> Deferred[None]:
        return maybeDeferred(self.services.disownServiceParent)

    def closed(self) -> None:
        for factory in self.factories.values():
            if isinstance(factory, RemotingFactory):
                factory.close_connections()

    def close_store(self) -> Deferred[None]:
        return self.store.close(self._replicating.flusher, self._final_state)

    def runtime_info(self) -> dict[str, str]:
        assert self.broker is not None, "the broker answers this request"
        state = orjson.dumps(self.state().as_json()).decode()
        own = {NODE_STATE_KEY: state, VERSION_KEY: __version__, READERS_KEY: "true"}
        return {**self.broker.runtime_info.table(), **own}

    def ha_status(self) -> dict[str, Any]:
        near_bytes = self._plan.settings.ha_slave_fallbehind_max_bytes
        return ha_runtime_info(self.state(), self.store.is_slave, near_bytes)

    def summary(self) -> str:
        """What the node does, in a few words."""
        slaves = 0 if self.serving is None else len(self.serving.factory.connections)
        served = f"{slaves} slave{'' if slaves == 1 else 's'} connected"
        if self.slave is None:
            return f"SERVING, {served}"
        lag, also = self.slave.lag_bytes, f", {served}" if slaves else ""
        return f"{self.slave.replica.state.name}{'' if lag is None else f', {lag} bytes behind'}{also}"

    def state(self) -> NodeState:
        return replace(
            state_of_log(self.store, self._plan.settings, self.serving),
            peers=() if self.serving is None else tuple(each.facts() for each in self.serving.factory.connections),
            **(_facts_of_master(self._started_at) if self.slave is None else self._facts_of_slave(self.slave)),
            warnings=tuple(self._warnings()),
            reads=self._reads(),
            failover=None if self._plan.member is None else self._plan.member.member.cluster_facts(SHOWN_CHANGES),
        )

    def _reads(self) -> dict[str, Any] | None:
        """What consumers cannot read yet; None if reads end at the log's end."""
        waiting, limit = None if self.broker is None else self.broker.waiting_reads, self.store.read_limit
        return None if waiting is None or limit is None or limit.is_lifted else waiting.facts()

    def _facts_of_slave(self, slave: HASlaveService) -> dict[str, Any]:
        return {
            "state": slave.replica.state.name,
            "lag_bytes": slave.lag_bytes,
            "lag_seconds": slave.lag_seconds,
            "master": self._master.ha_address,
            "last_contact": slave.last_contact,
            "contact_limit": slave.contact_limit,
            "since": slave.since,
            "reason": slave.reason,
            "tables": None if self.broker is None else self.broker.slave_synchronize.facts(),
            "verdict": self._verdict,
        }

    @property
    def place(self) -> Place | None:
        """How far a slave's copy is, and the queues of a ``--once`` run; None while nothing is missing."""
        slave, log = self.slave, self.store.commit_log
        if slave is None:
            return None
        if slave.replica.state is ReplicaState.CATCHING_UP and slave.lag_bytes:
            return Place("copying from the master", log.verified_offset, log.verified_offset + slave.lag_bytes)
        behind = self.store.derived.dispatcher.behind_bytes
        if self._plan.slave.once and behind > 0:
            return Place(OpeningPhase.DISPATCHING.value, log.verified_offset - behind, log.verified_offset)
        return None

    def _final_state(self) -> NodeState:
        """The state after a clean stop."""
        state = self.state()
        return state if self.slave is not None else replace(state, state=STOPPED, since=iso_of(time.time()))

    def _warnings(self) -> list[str]:
        """What an operator should know in any state."""
        found = [] if self.slave is None else self.slave.warnings
        if self._plan.is_found_by_nobody:
            found = [*found, FOUND_BY_NOBODY]
        if self.promotion_warning is not None:
            found = [*found, self.promotion_warning]
        progress = self.store.derived.dispatcher.progress
        if progress is not None:
            found = [*found, progress]
        if self.broker is not None:
            found = [*found, *self.broker.warnings()]
        if self._gate is not None:
            found = [*found, *self._gate.warnings]
        return [*found, *self.stop_problems()]

    def stop_problems(self) -> list[str]:
        return [*self.services.problems, *(() if self.broker is None else self.broker.stop_problems)]


def _processors_of_member(member: IClusterMember) -> Processors:
    from rmqha.node.promising import PromiseProcessor  # a node without failover starts quicker

    return PromiseProcessor(member).processors()


def _facts_of_master(started_at: float) -> dict[str, Any]:
    """The facts of a node that has no master."""
    unknown = {each.name: each.default for each in facts_of(NodeState) if each.of_slaves}
    return {"state": "SERVING", "since": iso_of(started_at), **unknown}


def _open_files() -> int:
    """How many files the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if files == resource.RLIM_INFINITY else files


def _connections_of(settings: Settings) -> int:
    """The limit of connections of each remoting port: at most an eighth of the files that the process may open."""
    return min(settings.server_max_connections, max(1, _open_files() // 8))
