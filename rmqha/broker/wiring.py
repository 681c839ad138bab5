"""Which processor answers which request of a broker, with the parts of the broker that it needs."""

from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.interfaces import (
    IBrokersNode,
)
from rmqha.broker.requests.admin import StatsProcessor, TableProcessor, TopicAdminProcessor
from rmqha.broker.requests.config import ConfigProcessor, LiveSettings
from rmqha.broker.requests.confirmed import ConfirmedProcessor
from rmqha.broker.requests.later import later_processors
from rmqha.broker.requests.ordinarysends import OrdinarySends
from rmqha.broker.requests.overview import CleaningProcessor, OverviewProcessor
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
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.clients import (
    ClientManageProcessor,
    ConsumerManager,
    ProducerManager,
)
from rmqha.broker.tables.locks import RebalanceLockManager
from rmqha.broker.tables.offsets import OffsetProcessors
from rmqha.broker.tables.stats import BrokerStats
from rmqha.remoting.protocol import Processor, Processors
from rmqha.settings.settings import Settings
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import RequestCode
from rmqha.wire.sends.run import ISendAccess

MAIN_PORT_ONLY = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What the processors of a broker work on."""

    settings: Settings
    store: MessageStore
    clock: IReactorTime
    stamps: Stamps
    node: IBrokersNode
    tables: CopiedTables
    producers: ProducerManager
    consumers: ConsumerManager
    locks: RebalanceLockManager
    stats: BrokerStats
    schedule: ScheduleMessageService
    transactions: TransactionalMessageService
    held_pulls: PullRequestHoldService
    live_settings: LiveSettings


class BrokerProcessors:
    """Makes the processors of a broker's ports. The settings of each port's processors change with the broker's."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._table_changes = TableChangesProcessor(parts.tables, parts.store, parts.clock)

    def of_port(self, fast_port: bool) -> Processors:
        """The processor of each request code. The fast port does not answer pulls, as in Java."""
        parts = self._parts
        families = [
            self._send_processors(),
            self._pull_processors(),
            OffsetProcessors(parts.store, parts.tables.consumer_offsets, parts.consumers).processors(),
            QueryProcessors(parts.store, parts.settings.default_query_max_num).processors(),
            ClientManageProcessor(
                parts.producers, parts.consumers, parts.tables.topics, parts.tables.groups, parts.clock
            ).processors(),
            ConfirmedProcessor(parts.store.read_limit, parts.clock).processors(),
            parts.locks.processors(),
            PopProcessor().processors(),
            later_processors(),
            self._table_changes.processors(),
            parts.transactions.processors(),
            *self._admin_processors(),
        ]
        merged: dict[int, Processor] = {code: processor for family in families for code, processor in family.items()}
        return {code: processor for code, processor in merged.items() if not (fast_port and code in MAIN_PORT_ONLY)}

    def ordinary_sends(self, access: ISendAccess | None) -> OrdinarySends | None:
        """What puts ordinary sends; None on a slave. ``access`` is asked about each, if access is controlled."""
        parts = self._parts
        if parts.store.is_slave:
            return None
        sends = OrdinarySends(
            parts.store, parts.live_settings.current, parts.tables.topics, parts.stamps, parts.stats, access
        )
        parts.live_settings.add(sends)
        return sends

    def _send_processors(self) -> Processors:
        parts = self._parts
        if parts.store.is_slave:
            return slave_processors(parts.settings)
        processor = SendMessageProcessor(
            parts.store,
            parts.live_settings.current,
            parts.tables,
            parts.stamps,
            parts.transactions,
            parts.stats,
        )
        parts.live_settings.add(processor)
        replies = ReplyProcessor(processor, parts.store, parts.producers, parts.stamps)
        recalls = RecallProcessor(processor, parts.store, parts.tables.topics, parts.stamps)
        return {**processor.processors(), **replies.processors(), **recalls.processors()}

    def _pull_processors(self) -> Processors:
        parts = self._parts
        processor = PullMessageProcessor(
            parts.store,
            parts.live_settings.current,
            parts.tables,
            parts.consumers,
            parts.held_pulls,
            parts.stats,
        )
        parts.live_settings.add(processor)
        return processor.processors()

    def _admin_processors(self) -> list[Processors]:
        parts = self._parts
        topics, groups, offsets = parts.tables.topics, parts.tables.groups, parts.tables.consumer_offsets
        stats = StatsProcessor(
            parts.store, parts.settings.broker_name, parts.tables, parts.consumers, parts.stats, parts.stamps.wall
        )
        return [
            TopicAdminProcessor(parts.tables, parts.stats, parts.store.is_slave).processors(),
            TableProcessor(
                topics,
                groups,
                offsets,
                parts.schedule,
                parts.store,
            ).processors(),
            stats.processors(),
            OverviewProcessor(
                parts.store,
                parts.tables,
                (parts.producers, parts.consumers),
                stats,
                parts.stamps.own,
                (parts.clock, parts.stamps.wall),
            ).processors(),
            CleaningProcessor(parts.node).processors(),
            ConfigProcessor(parts.live_settings, parts.clock, parts.node).processors(),
            ToClientsProcessor(parts.store, parts.settings.broker_name, parts.tables, parts.consumers).processors(),
        ]
