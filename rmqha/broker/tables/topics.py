"""The topics of a broker: topics.json, system topics, and topics created when needed (spec/remoting.md 5)."""

import string
from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.tables.configmanager import NamedConfigManager, TableStorage
from rmqha.broker.tables.newnames import NewNameLimits, NewNames
from rmqha.kit.threads import RunInThread
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.protocol import RequestRefused
from rmqha.settings.settings import Settings
from rmqha.store.metadata import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    TopicConfigTable,
)
from rmqha.wire.beans import INT_MIN
from rmqha.wire.command import ResponseCode
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.fastjson import dumps_strict
from rmqha.wire.record import MAX_TOPIC_BYTES
from rmqha.wire.topics import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    NO_SENDS_TO,
    OFFSET_MOVED_EVENT,
    RETRY_PREFIX,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TRACE_TOPIC,
    reply_topic,
)

SYSTEM_TOPIC_PREFIX = "rmq_sys_"
BENCHMARK_TOPIC_QUEUES = 1024
CLUSTER_TOPIC_QUEUES = 16
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
READ_WRITE = PERM_READ | PERM_WRITE
TOPIC_CHARACTERS = frozenset(string.ascii_letters + string.digits + "%|_-")

MAX_ROW_BYTES = len(dumps_strict({"": TopicConfig("", INT_MIN, INT_MIN, INT_MIN, topic_sys_flag=INT_MIN).to_json()}))
"""Bytes of a topic in the table as JSON, without its name, which occurs twice."""


def topic_problem(name: str) -> str | None:
    """Why a topic cannot have this name; None if it can (spec/remoting.md 2.1)."""
    if not name.strip():
        return "The specified topic is blank."
    if not TOPIC_CHARACTERS.issuperset(name):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > MAX_TOPIC_BYTES:
        return "The specified topic is longer than topic max length."
    return None


class TopicConfigManager(NamedConfigManager[TopicConfig]):
    """The topics by name."""

    _log = Logger()
    table: TopicConfigTable

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        wall: IWallClock,
        run_in_thread: RunInThread = execute,
        clock: IReactorTime | None = None,
    ) -> None:
        """Reads topics.json of ``folder``, and adds the system topics that are missing. Raises StoreError, OSError."""
        seeds = {topic.topic_name: topic for topic in _system_topics(settings)}
        self.system_topics = frozenset(seeds) | SYSTEM_TOPICS | NO_SENDS_TO
        names = NewNames("topic", NewNameLimits.of_topics(settings), wall, MAX_ROW_BYTES)
        storage = TableStorage(folder, run_in_thread, clock)
        super().__init__(storage, TopicConfigTable, settings, seeds, names, wall)

    def is_system(self, name: str) -> bool:
        """Whether this is a system topic, which clients may not change or delete."""
        return name in self.system_topics or name.startswith(SYSTEM_TOPIC_PREFIX)

    def create_in_send(
        self,
        name: str,
        default_topic: str,
        default_queue_nums: int,
        topic_sys_flag: int = 0,
        by: object | None = None,
    ) -> TopicConfig | None:
        """The topic, created from the template if missing; None if that is not allowed (spec/remoting.md 5.2).

        ``by`` is the connection that names it. Raises RequestRefused if too many topics are new.
        """
        found = self.get(name)
        if found is not None:
            return found
        template = self.get(default_topic)
        if template is None or not self._may_inherit(template):
            return None
        self.take_new(name, by)
        queues = max(0, min(default_queue_nums, template.write_queue_nums))
        return self._add(
            TopicConfig(name, queues, queues, template.perm & ~PERM_INHERIT, template.topic_filter_type, topic_sys_flag)
        )

    def _may_inherit(self, template: TopicConfig) -> bool:
        may_create = self.settings.auto_create_topic_enable or template.topic_name != AUTO_CREATE_TOPIC_KEY_TOPIC
        return may_create and bool(template.perm & PERM_INHERIT)

    def create_in_send_back(
        self, name: str, queue_nums: int, perm: int = READ_WRITE, topic_sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, created if missing. For %RETRY% and %DLQ% topics, and topics of transactions.

        Raises RequestRefused if no message could be put into it, or if the table has no room for it.
        """
        problem = topic_problem(name)  # older brokers made topics with names that are too long
        if problem is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{problem} {name}")
        found = self.get(name)
        if found is not None:
            return found
        if name not in self.system_topics:
            self._new.check_room(name)
        return self._add(TopicConfig(name, queue_nums, queue_nums, perm, topic_sys_flag=topic_sys_flag))

    def _add(self, config: TopicConfig) -> TopicConfig:
        tell = self._log.debug if config.topic_name.startswith(RETRY_PREFIX) else self._log.info
        if self._new.gets_line():
            tell("topic {topic} created with {queues} queues", topic=config.topic_name, queues=config.write_queue_nums)
        self.update(config)
        return config

    def name_of(self, row: TopicConfig) -> str:
        return row.topic_name


def _system_topics(settings: Settings) -> list[TopicConfig]:
    """The topics that each broker has from the start (spec/remoting.md 5.3)."""

    def topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    def template(name: str, queues: int, enabled: bool) -> TopicConfig:
        return topic(name, queues, PERM_INHERIT | READ_WRITE if enabled else PERM_INHERIT)

    cluster = settings.broker_cluster_name
    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, BENCHMARK_TOPIC_QUEUES),
        template(cluster, CLUSTER_TOPIC_QUEUES, settings.cluster_topic_enable),
        template(settings.broker_name, 1, settings.broker_topic_enable),
        topic(OFFSET_MOVED_EVENT, 1),
        topic(SCHEDULE_TOPIC, settings.message_delay_level.max_level),
        topic(reply_topic(cluster), 1),
    ]
    if settings.auto_create_topic_enable:
        topics.append(template(AUTO_CREATE_TOPIC_KEY_TOPIC, settings.default_topic_queue_nums, enabled=True))
    if settings.trace_topic_enable:
        topics.append(topic(TRACE_TOPIC, 1))
    return topics
