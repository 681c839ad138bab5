"""The tables that most processors of a broker need, in one record."""

from dataclasses import dataclass

from rmqha.broker.tables.deletedtopics import DeletedTopics
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """Topics, consumer groups, and how far the groups have read."""

    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    consumer_offsets: ConsumerOffsetManager


@dataclass(frozen=True, slots=True)
class CopiedTables(BrokerTables):
    """What slaves copy: these tables, and which topics were deleted."""

    deleted: DeletedTopics
