"""The broker as one service: its tables, its background services, its ports and its registration.

Each table, service and family of processors gets only what it needs. This module connects them, and says in which order
they start and stop.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from rmqha.broker.background.batchtopics import BatchTopics
from rmqha.broker.background.outerapi import (
    BrokerOuterAPI,
    FindMachines,
    MasterAddresses,
    Registrant,
    find_no_machines,
)
from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.background.slavesync import Connect, MasterLookup, SlaveSynchronize
from rmqha.broker.background.timercheck import TimerCheckPoints
from rmqha.broker.background.timermessages import TimerMessageService
from rmqha.broker.background.waitingreads import WaitingReads
from rmqha.broker.requests.admin import StatsProcessor, TableProcessor, TopicAdminProcessor
from rmqha.broker.requests.config import ConfigProcessor, Keep, LiveSettings, keep_nothing
from rmqha.broker.requests.confirmed import ConfirmedProcessor
from rmqha.broker.requests.later import later_processors
from rmqha.broker.requests.overview import Clean, CleaningProcessor, OverviewProcessor, clean_nothing
from rmqha.broker.requests.pop import PopProcessor
from rmqha.broker.requests.pull import PullMessageProcessor, PullRequestHoldService
from rmqha.broker.requests.query import QueryProcessors
from rmqha.broker.requests.recall import RecallProcessor
from rmqha.broker.requests.reply import ReplyProcessor
from rmqha.broker.requests.send import SendMessageProcessor, slave_processors
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.requests.tablechanges import TableChangesProcessor
from rmqha.broker.requests.toclients import ToClientsProcessor
from rmqha.broker.requests.transaction import TransactionalMessageService
from rmqha.broker.runtimeinfo import RuntimeInfo, config_of
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.clients import (
    ClientHousekeepingService,
    ClientManageProcessor,
    ConsumerManager,
    ProducerManager,
)
from rmqha.broker.tables.configmanager import TableStorage
from rmqha.broker.tables.deletedtopics import DeletedTopics, Deleting
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.locks import RebalanceLockManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager, OffsetProcessors
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.events import Event
from rmqha.kit.services import OrderedServices, PeriodicService
from rmqha.kit.threads import RunInThread
from rmqha.net.endpoints import host_and_port
from rmqha.net.tls.addresses import uses_tls
from rmqha.remoting.protocol import MAX_HEADER_BYTES, BodyLimit, Processor, Processors, RemotingLimits
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import Settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.offline.promote import new_topics
from rmqha.store.tablesnapshots import snapshot_offsets
from rmqha.store.timers import TimerCheckPoint
from rmqha.wire.command import RequestCode, ResponseCode
from rmqha.wire.record import Host
from rmqha.wire.topics import TRACE_TOPIC

MASTER_ID = 0
FIRST_SLAVE_ID = 1
SOME_ADDRESS_ELSEWHERE = ("192.0.2.1", 9)
"""Used to find our own address on the way there. Nothing is sent."""
ANY_ADDRESSES = ("", "0.0.0.0", "::")
FIXED_FOR_TOOLS = {"filterServerNums": "0", "msgTraceTopicName": TRACE_TOPIC}
"""mqadmin exportConfigs needs these. rmqha has no such settings, and behaves as Java's broker with these values."""
MAIN_PORT_ONLY = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

FindAddress = Callable[[str], Deferred[str]]
"""Looks up a name. Fails with OSError."""
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


def connect_nowhere(address: str) -> IStreamClientEndpoint:
    """For a broker that makes no connections. Raises ValueError."""
    raise ValueError(f"this broker does not connect to {address}")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a broker listens, and how it finds others.

    ``master_address`` is the main port of a slave's master, if it is configured. ``master_found`` is called with the
    master's addresses from name servers. ``keep_settings`` keeps settings that mqadmin changes, for the next start.
    ``addresses`` are those of our own names that were looked up, and ``find_address`` looks one up again.
    ``find_machines`` looks up a name server's name. ``epoch`` is that of a failover cluster. With ``is_held_back`` the
    broker registers after ``register_as_slave``.
    """

    bind_address: str = ""
    name_servers: NameServers = ()
    connect: Connect = connect_nowhere
    master_address: str | None = None
    epoch: int | None = None
    is_held_back: bool = False
    master_found: Callable[[MasterAddresses], None] = lambda _: None
    keep_settings: Keep = keep_nothing
    addresses: Mapping[str, str] = field(default_factory=dict)
    find_address: FindAddress | None = None
    find_machines: FindMachines = find_no_machines


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def default_ip(bind_address: str) -> str:
    """The default of brokerIP1: the address of the ports or, if they listen on all, the one used for other hosts."""
    if bind_address not in ANY_ADDRESSES:
        return bind_address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOME_ADDRESS_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def resolved(address: str, port: int) -> Host:
    """A host from an address or a name. brokerIP1 may be a name that clients can resolve. Raises OSError."""
    try:
        return Host.parse(address, port)
    except ValueError:
        return Host.parse(socket.gethostbyname(address), port)


class BrokerService(OrderedServices):
    """A broker on an open store, with the services of its role. ``ports`` is for the ports at which clients reach it.

    The services start in this order, and stop one by one in the reverse order, although some may fail to stop:

    1. The tables: topics, groups, consumer offsets, delayed messages, timer messages. They are written last, when
       nothing changes them.
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
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Reads the tables. ``run_in_thread`` runs their writes.

        Raises StoreError, OSError (also if brokerIP1 cannot be resolved).
        """
        super().__init__()
        self.settings = settings
        self.store = store
        self.clock = clock
        self.now_ms = now_ms
        self.is_slave = store.is_slave
        self.broker_id = (settings.broker_id or FIRST_SLAVE_ID) if self.is_slave else MASTER_ID
        self.broker_ip1 = settings.broker_ip1.strip("[]") or default_ip(surroundings.bind_address)
        self.broker_ip2 = settings.broker_ip2.strip("[]") or self.broker_ip1
        self.store_host = resolved(surroundings.addresses.get(self.broker_ip1, self.broker_ip1), settings.listen_port)
        self._find_address = surroundings.find_address if self.broker_ip1 in surroundings.addresses else None
        self._ha_port = settings.ha_port
        folder = store.root / CONFIG_FOLDER
        self.turns = Turns(clock)
        self.topics = TopicConfigManager(folder, settings, now_ms, run_in_thread, clock)
        if not self.is_slave:
            self._add_topics_not_written()
        self.groups = SubscriptionGroupManager(folder, settings, now_ms, run_in_thread, clock)
        self.consumer_offsets = ConsumerOffsetManager(
            folder, clock, settings.flush_consumer_offset_interval_ms, run_in_thread, self.turns
        )
        self.deleted_topics = DeletedTopics(
            TableStorage(folder, run_in_thread, clock, store.disk),
            store,
            Deleting(
                self.topics, self.consumer_offsets, lambda group: group in self.groups.table.rows, self.turns, now_ms
            ),
        )
        self.tables = CopiedTables(self.topics, self.groups, self.consumer_offsets, self.deleted_topics)
        self._stamps = Stamps(lambda: self.store_host, now_ms)
        self.stats = BrokerStats(settings.broker_cluster_name, clock, now_ms)
        self.producers = ProducerManager()
        self.consumers = ConsumerManager(settings, self.groups)
        self.locks = RebalanceLockManager(clock, self._may_lock)
        self._table_changes = TableChangesProcessor(self.tables, lambda: store.commit_log.min_offset, clock)
        self.schedule = ScheduleMessageService(folder, store, settings, clock, now_ms, run_in_thread)
        self.timers = TimerMessageService(store, settings, clock, now_ms, self.turns, run_in_thread)
        self.held_pulls = PullRequestHoldService(
            clock,
            lambda topic, queue: store.reader.max_offset(topic, queue),
            None if store.read_limit is None else lambda: store.reader,
        )
        store.subscribe(self.held_pulls.message_arrived)
        self.transactions = TransactionalMessageService(
            store, settings, self.tables, self.producers, self._stamps, clock
        )
        self.waiting_reads: WaitingReads | None = None
        """What consumers cannot read yet, if ``readUpTo=confirmed``."""
        if store.read_limit is not None:
            self.waiting_reads = WaitingReads(store, store.read_limit, self.turns, clock, lambda: now_ms() / 1000)
        self.clean: Clean = clean_nothing
        """Applies the retention rules now. The node sets it."""
        self.ports = OrderedServices()
        self.runtime_info = RuntimeInfo(store, self.stats, self.schedule.progress, now_ms, self.waiting_reads)
        self.slave_synchronize = SlaveSynchronize(
            store,
            self.tables,
            self.schedule,
            MasterLookup(
                surroundings.connect,
                lambda: self.broker_addr,
                surroundings.master_address,
                is_member=surroundings.epoch is not None,
            ),
            clock,
            timers=TimerCheckPoints(folder, store, self.turns, run_in_thread),
        )
        self._tell_node = surroundings.master_found
        self._uses_tls = any(uses_tls(address) for address, _ in surroundings.name_servers)
        self.registrant = Registrant(
            settings,
            self.broker_id,
            lambda: (self.broker_addr, self.ha_server_addr),
            lambda: self.topics.table,
            surroundings.epoch,
        )
        self.outer_api = BrokerOuterAPI(
            self.registrant,
            surroundings.name_servers,
            clock,
            self._master_found,
            surroundings.find_machines,
        )
        self.outer_api.is_held_back = surroundings.is_held_back
        self.topics.subscribe(self.outer_api.topics_changed)
        self.live_settings = LiveSettings(
            [store, self.topics, self.groups, self.transactions, self.registrant, self.consumers.filters],
            store.lift_read_limit if surroundings.epoch is None else None,
            surroundings.keep_settings,
        )
        self.live_settings.subscribe(self._settings_changed)
        self._add_services()

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

    def _look_up_address(self) -> None:
        """A stop does not wait for a slow answer."""
        Deferred.fromCoroutine(self._follow_address())

    async def _follow_address(self) -> None:
        """New messages have the address that the name of brokerIP1 has now. Without an answer it stays as it is."""
        if self._find_address is None:
            return
        try:
            found = Host.parse(await self._find_address(self.broker_ip1), self.store_host.port)
        except OSError:
            return
        if found.address != self.store_host.address:
            self.store_host = self.store_host._replace(address=found.address)
            self._log.info(
                "{what}={name} is {address}",
                event=Event.NAME_FOUND,
                what="brokerIP1",
                name=self.broker_ip1,
                address=str(self.store_host),
            )

    def _add_services(self) -> None:
        """In the order of their start."""
        if self._find_address is not None:
            self.add(
                "own address",
                PeriodicService(
                    "looking up brokerIP1",
                    self.settings.register_name_server_period_ms / 1000,
                    self._look_up_address,
                    self.clock,
                ),
            )
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
        self.add("name servers", self.outer_api)

    @property
    def broker_addr(self) -> str:
        """The address for clients, as registered with name servers: brokerIP1 and the main port."""
        return host_and_port(self.broker_ip1, self.store_host.port)

    @property
    def ha_server_addr(self) -> str:
        """The address for slaves: brokerIP2 and the HA port."""
        return host_and_port(self.broker_ip2, self._ha_port)

    def _master_found(self, addresses: MasterAddresses) -> None:
        if self.registrant.epoch is not None:
            return  # only the coordinator of a failover cluster says who leads
        self.slave_synchronize.master_found(addresses)
        self._tell_node(addresses)

    def _settings_changed(self, changes: Mapping[str, str]) -> None:
        if "brokerPermission" in changes:  # name servers tell clients what they may do
            self.outer_api.register_all()
        self.timers.settings_changed(self.live_settings.current)

    def _may_lock(self) -> bool:
        leadership = self.store.leadership
        return leadership is None or leadership.is_held()

    def register_as_slave(self, broker_id: int) -> None:
        """Tell name servers that this broker is a slave with this id, although it may run as a master still."""
        if broker_id != self.registrant.broker_id:
            self.broker_id = self.registrant.broker_id = broker_id
            self.outer_api.register_all()
        self.outer_api.begin()

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

    def listening(self, port: int) -> None:
        """The main port is this one. (With port 0 in the settings the system chooses it.)"""
        self.store_host = self.store_host._replace(port=port)

    def ha_listening(self, port: int) -> None:
        """The HA port is this one. (With port 0 in the settings the system chooses it.)"""
        self._ha_port = port

    def config(self) -> dict[str, str]:
        """The effective settings by RocketMQ's names, defaults included."""
        settings = self.store.settings
        in_effect = {
            "brokerIP1": self.broker_ip1,
            "brokerIP2": self.broker_ip2,
            "brokerId": self.broker_id,
            "listenPort": self.store_host.port,
            "haListenPort": self._ha_port,
            "storePathCommitLog": settings.commit_log_folder,
            "accessMessageInMemoryMaxRatio": settings.memory_ratio(self.is_slave),
            **FIXED_FOR_TOOLS,
            "useTLS": str(self._uses_tls).lower(),
        }
        return {**config_of(self.store), **{key: str(value) for key, value in in_effect.items()}}

    def processors(self, fast_port: bool = False) -> Processors:
        """The processor of each request code. The fast port does not answer pulls, as in Java."""
        families = [
            self._send_processors(),
            self._pull_processors(),
            OffsetProcessors(self.store, self.consumer_offsets, self.consumers).processors(),
            QueryProcessors(self.store, self.settings.default_query_max_num).processors(),
            ClientManageProcessor(self.producers, self.consumers, self.topics, self.groups, self.clock).processors(),
            ConfirmedProcessor(self.store.read_limit, self.clock).processors(),
            self.locks.processors(),
            PopProcessor().processors(),
            later_processors(),
            self._table_changes.processors(),
            self.transactions.processors(),
            *self._admin_processors(),
        ]
        merged: dict[int, Processor] = {code: processor for family in families for code, processor in family.items()}
        return {code: processor for code, processor in merged.items() if not (fast_port and code in MAIN_PORT_ONLY)}

    def _send_processors(self) -> Processors:
        if self.is_slave:
            return slave_processors(self.settings)
        processor = SendMessageProcessor(
            self.store,
            self.live_settings.current,
            self.tables,
            self._stamps,
            prepare_message=self.transactions.prepare,
            messages_put=self.stats.messages_put,
        )
        self.live_settings.add(processor)
        replies = ReplyProcessor(processor, self.store, self.producers, self._stamps)
        recalls = RecallProcessor(processor, self.store, self.topics, self._stamps)
        return {**processor.processors(), **replies.processors(), **recalls.processors()}

    def _pull_processors(self) -> Processors:
        processor = PullMessageProcessor(
            self.store,
            self.live_settings.current,
            self.tables,
            self.consumers,
            self.held_pulls,
            self.stats.messages_got,
        )
        self.live_settings.add(processor)
        return processor.processors()

    def _admin_processors(self) -> list[Processors]:
        topics, groups, offsets = self.topics, self.groups, self.consumer_offsets
        stats = StatsProcessor(
            self.store, self.settings.broker_name, self.tables, self.consumers, self.stats, self.now_ms
        )
        return [
            TopicAdminProcessor(self.tables, self.stats, self.is_slave).processors(),
            TableProcessor(
                topics,
                groups,
                offsets,
                lambda: self.schedule.table,
                lambda: TimerCheckPoint.read(self.store.root / CONFIG_FOLDER, self.store.disk),
            ).processors(),
            stats.processors(),
            OverviewProcessor(
                self.store,
                self.tables,
                (self.producers, self.consumers),
                stats,
                lambda: self.broker_addr,
                (self.clock, self.now_ms),
            ).processors(),
            CleaningProcessor(lambda: self.clean).processors(),
            ConfigProcessor(self.live_settings, self.clock).processors(),
            ToClientsProcessor(self.store, self.settings.broker_name, self.tables, self.consumers).processors(),
        ]
