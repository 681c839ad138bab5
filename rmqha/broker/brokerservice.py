"""The broker as one service: its tables, its background services, its ports and its registration.

Each table, service and family of processors gets only what it needs. This module connects them, and says in which order
they start and stop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from zope.interface import implementer

from rmqha.broker.addresses import MasterAddresses, OwnAddresses
from rmqha.broker.background.batchtopics import BatchTopics
from rmqha.broker.background.outerapi import BrokerOuterAPI, IMasterObserver, Registrant
from rmqha.broker.background.ownaddress import OwnAddressLookup
from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.background.slavesync import MasterLookup, SlaveSynchronize
from rmqha.broker.background.timercheck import TimerCheckPoints
from rmqha.broker.background.timermessages import TimerMessageService
from rmqha.broker.background.waitingreads import WaitingReads
from rmqha.broker.interfaces import (
    NO_NODE,
    Connect,
    FindMachines,
    IBrokersNode,
    IConfigured,
    connect_nowhere,
    find_no_machines,
)
from rmqha.broker.requests.config import ISettingsObserver, LiveSettings
from rmqha.broker.requests.pull import PullRequestHoldService
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.requests.transaction import TransactionalMessageService
from rmqha.broker.runtimeinfo import RuntimeInfo, config_of
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.clients import (
    ClientHousekeepingService,
    ConsumerManager,
    ProducerManager,
)
from rmqha.broker.tables.configmanager import TableStorage
from rmqha.broker.tables.deletedtopics import DeletedTopics, Deleting
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.locks import RebalanceLockManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.broker.wiring import BrokerParts, BrokerProcessors
from rmqha.kit.services import OrderedServices
from rmqha.kit.threads import RunInThread
from rmqha.kit.wallclock import WALL_CLOCK, IWallClock
from rmqha.net.tls.addresses import uses_tls
from rmqha.remoting.protocol import MAX_HEADER_BYTES, BodyLimit, IRequestPass, Processors, RemotingLimits
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import Settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.offline.promote import new_topics
from rmqha.store.tablesnapshots import snapshot_offsets
from rmqha.wire.command import RequestCode, ResponseCode
from rmqha.wire.sends.run import ISendAccess
from rmqha.wire.topics import TRACE_TOPIC

MASTER_ID = 0
FIRST_SLAVE_ID = 1
FIXED_FOR_TOOLS = {"filterServerNums": "0", "msgTraceTopicName": TRACE_TOPIC}
"""mqadmin exportConfigs needs these. rmqha has no such settings, and behaves as Java's broker with these values."""

NameServers = Sequence[tuple[str, IStreamClientEndpoint]]
"""Addresses from the settings, with their endpoints."""

LARGE_BODY = BodyLimit(1024 * 1024)
SMALL_BODY = BodyLimit(64 * 1024)
PROPERTIES_BODY = BodyLimit(2 * 1024)
"""Tools send a few settings. Parsing properties takes many calls for each byte."""


def broker_limits(settings: Settings, connections: int) -> RemotingLimits:
    """The limits of a broker's ports for each request: far more than clients send, and not too much for one turn."""
    message = BodyLimit(settings.max_message_size_bytes, ResponseCode.MESSAGE_ILLEGAL)
    sends = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    replies = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    batches = (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
    lists = (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    return RemotingLimits(
        connections,
        settings.server_max_requests_in_progress,
        header=MAX_HEADER_BYTES,
        bodies={
            **dict.fromkeys((*sends, *replies), message),
            **dict.fromkeys((*batches, *lists), LARGE_BODY),
            RequestCode.UPDATE_BROKER_CONFIG: PROPERTIES_BODY,
        },
        body=SMALL_BODY,
        connects_at_once=settings.server_connects_at_once_per_address,
        connects_per_second=settings.server_connects_per_second_per_address,
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a broker listens, how it finds others, and the node that it belongs to.

    ``master_address`` is the main port of a slave's master, if it is configured. ``addresses`` are those of our own
    names that were looked up. ``find_machines`` looks up a name server's name. ``epoch`` is that of a failover cluster.
    With ``is_held_back`` the broker registers after ``register_as_slave``.
    """

    bind_address: str = ""
    name_servers: NameServers = ()
    connect: Connect = connect_nowhere
    master_address: str | None = None
    epoch: int | None = None
    is_held_back: bool = False
    node: IBrokersNode = NO_NODE
    addresses: Mapping[str, str] = field(default_factory=dict)
    find_machines: FindMachines = find_no_machines


@implementer(IConfigured, IMasterObserver, ISettingsObserver)
class BrokerService(OrderedServices):
    """A broker on an open store, with the services of its role. ``ports`` is for the ports at which clients reach it.

    The services start in this order, and stop one by one in the reverse order, although some may fail to stop:

    1. The address of brokerIP1, if it is a name. Then the tables: topics, groups, consumer offsets, deleted topics,
       delayed messages, timer messages. They are written last, when nothing changes them.
    2. Statistics, batch topics, client housekeeping, messages that wait for a slave.
    3. The transaction check of a master, or the copying of tables of a slave.
    4. Held pulls. They end after the ports have closed, and before consumer offsets are written for the last time.
    5. The ports. They listen before the broker registers, and close after it has unregistered.
    6. The registration with the name servers.
    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: IReactorTime,
        run_in_thread: RunInThread,
        surroundings: Surroundings = Surroundings(),
        wall: IWallClock = WALL_CLOCK,
    ) -> None:
        """Reads the tables. ``run_in_thread`` runs their writes.

        Raises StoreError, OSError (also if brokerIP1 cannot be resolved).
        """
        super().__init__()
        self.settings = settings
        self.store = store
        self.clock = clock
        self.is_slave = store.is_slave
        self.broker_id = (settings.broker_id or FIRST_SLAVE_ID) if self.is_slave else MASTER_ID
        self.addresses = OwnAddresses(settings, surroundings.bind_address, surroundings.addresses)
        self._node = surroundings.node
        self._is_named = self.addresses.broker_ip1 in surroundings.addresses
        """Whether brokerIP1 is a name, whose address may change."""
        folder = store.root / CONFIG_FOLDER
        self.turns = Turns(clock)
        self.topics = TopicConfigManager(folder, settings, wall, run_in_thread, clock)
        if not self.is_slave:
            self._add_topics_not_written()
        self.groups = SubscriptionGroupManager(folder, settings, wall, run_in_thread, clock)
        self.consumer_offsets = ConsumerOffsetManager(
            folder, clock, settings.flush_consumer_offset_interval_ms, run_in_thread, self.turns
        )
        self.deleted_topics = DeletedTopics(
            TableStorage(folder, run_in_thread, clock, store.disk),
            store,
            Deleting(self.topics, self.consumer_offsets, self.groups, self.turns, wall),
        )
        self.tables = CopiedTables(self.topics, self.groups, self.consumer_offsets, self.deleted_topics)
        stamps = Stamps(self.addresses, wall)
        self.stats = BrokerStats(settings.broker_cluster_name, clock, wall)
        self.producers = ProducerManager()
        self.consumers = ConsumerManager(settings, self.groups)
        self.locks = RebalanceLockManager(clock, store)
        self.schedule = ScheduleMessageService(folder, store, settings, clock, wall, run_in_thread)
        self.timers = TimerMessageService(store, settings, clock, wall, self.turns, run_in_thread)
        self.held_pulls = PullRequestHoldService(clock, store)
        store.subscribe(self.held_pulls.message_arrived)
        self.transactions = TransactionalMessageService(store, settings, self.tables, self.producers, stamps, clock)
        self.waiting_reads: WaitingReads | None = None
        """What consumers cannot read yet, if ``readUpTo=confirmed``."""
        if store.read_limit is not None:
            self.waiting_reads = WaitingReads(store, store.read_limit, self.turns, clock, wall)
        self.ports = OrderedServices()
        self.runtime_info = RuntimeInfo(store, self.stats, self.schedule, wall, self.waiting_reads)
        self.slave_synchronize = SlaveSynchronize(
            store,
            self.tables,
            self.schedule,
            MasterLookup(
                surroundings.connect,
                self.addresses,
                surroundings.master_address,
                is_member=surroundings.epoch is not None,
                node=self._node,
            ),
            clock,
            timers=TimerCheckPoints(folder, store, self.turns, run_in_thread),
        )
        self._uses_tls = any(uses_tls(address) for address, _ in surroundings.name_servers)
        self.registrant = Registrant(
            settings,
            self.broker_id,
            self.addresses,
            self.topics,
            surroundings.epoch,
        )
        self.outer_api = BrokerOuterAPI(
            self.registrant,
            surroundings.name_servers,
            clock,
            self,
            surroundings.find_machines,
        )
        self.live_settings = LiveSettings(
            store,
            [self.topics, self.groups, self.transactions, self.registrant, self.consumers.filters],
            self,
            is_member=surroundings.epoch is not None,
        )
        self._processors = BrokerProcessors(
            BrokerParts(
                settings,
                store,
                clock,
                stamps,
                self._node,
                self.tables,
                self.producers,
                self.consumers,
                self.locks,
                self.stats,
                self.schedule,
                self.transactions,
                self.held_pulls,
                self.live_settings,
            )
        )
        self.topics.subscribe(self.outer_api)
        self._add_services()
        if not surroundings.is_held_back:
            self.add("name servers", self.outer_api)

    def _add_topics_not_written(self) -> None:
        """Add the topics of messages that a master has stored, and answered, before it died without writing the topic.

        A snapshot of tables has all topics of the messages before it. So a topic with older messages only was deleted.
        A store without snapshots was a Java broker's, which writes a topic before its messages. After a clean stop all
        topics are in the table: others were deleted, perhaps by a Java broker. Raises OSError.
        """
        store = self.store
        if store.recovery.clean_stop:
            return
        snapshots = snapshot_offsets(store.root, store.disk)
        if snapshots:
            for config in new_topics(store, self.topics.table, snapshots[-1]).values():
                self.topics.update(config)

    def _add_services(self) -> None:
        """In the order of their start."""
        if self._is_named:
            seconds = self.settings.register_name_server_period_ms / 1000
            self.add("own address", OwnAddressLookup(self.addresses, self._node, seconds, self.clock))
        self.add("topics", self.topics)
        self.add("groups", self.groups)
        self.add("consumer offsets", self.consumer_offsets)
        self.add("deleted topics", self.deleted_topics)
        self.add("delayed messages", self.schedule)
        self.add("timer messages", self.timers)
        self.add("statistics", self.stats)
        self.add("batch topics", BatchTopics(self.store, self.topics, self.clock))
        self.add("client housekeeping", ClientHousekeepingService(self.producers, self.consumers, self.clock))
        if self.waiting_reads is not None:
            self.add("waiting reads", self.waiting_reads)
        if self.is_slave:
            self.add("slave synchronize", self.slave_synchronize)
        else:
            self.add("transactions", self.transactions)
        self.add("held pulls", self.held_pulls)
        self.add("ports", self.ports)

    def master_found(self, addresses: MasterAddresses) -> None:
        if self.registrant.epoch is not None:
            return  # only the coordinator of a failover cluster says who leads
        self.slave_synchronize.master_found(addresses)
        self._node.master_found(addresses)

    def settings_changed(self, changes: Mapping[str, str]) -> None:
        if "brokerPermission" in changes:  # name servers tell clients what they may do
            self.outer_api.register_all()
        self.timers.settings_changed(self.live_settings.current)

    def register_as_slave(self, broker_id: int) -> None:
        """Tell name servers that this broker is a slave with this id, although it may run as a master still."""
        if broker_id != self.registrant.broker_id:
            self.broker_id = self.registrant.broker_id = broker_id
            self.outer_api.register_all()
        if self.outer_api.parent is None:  # it was held back: the brokerId was not known
            self.add("name servers", self.outer_api)

    def promoted(self) -> None:
        """Tell name servers often that this broker is the master now. Call it once the services run."""
        self.outer_api.promoted()

    def set_fit(self, is_fit: bool, reason: str) -> None:
        """Register with the name servers if the broker is fit to serve consumers, else unregister."""
        if is_fit:
            self.outer_api.come_back()
        else:
            self.outer_api.withdraw(reason)

    def warnings(self) -> list[str]:
        """What an operator should know."""
        waits = None if self.waiting_reads is None else self.waiting_reads.warning
        return [*self.outer_api.warnings(), *([] if waits is None else [waits])]

    @property
    def stop_problems(self) -> list[str]:
        """One line for each service, or port, that did not stop cleanly."""
        return [*self.ports.problems, *self.problems]

    def config(self) -> dict[str, str]:
        """The effective settings by RocketMQ's names, defaults included."""
        settings = self.store.settings
        in_effect = {
            "brokerIP1": self.addresses.broker_ip1,
            "brokerIP2": self.addresses.broker_ip2,
            "brokerId": self.broker_id,
            "listenPort": self.addresses.store_host.port,
            "haListenPort": self.addresses.ha_port,
            "storePathCommitLog": settings.commit_log_folder,
            "accessMessageInMemoryMaxRatio": settings.memory_ratio(self.is_slave),
            **FIXED_FOR_TOOLS,
            "useTLS": str(self._uses_tls).lower(),
        }
        return {**config_of(self.store), **{key: str(value) for key, value in in_effect.items()}}

    def ordinary_sends(self, access: ISendAccess | None) -> IRequestPass | None:
        """What answers ordinary sends at all ports; None on a slave."""
        return self._processors.ordinary_sends(access)

    def processors(self, fast_port: bool = False) -> Processors:
        """The processor of each request code. The fast port does not answer pulls, as in Java."""
        return self._processors.of_port(fast_port)
