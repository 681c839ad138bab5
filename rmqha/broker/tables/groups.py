"""The consumer groups of a broker: subscriptionGroup.json, and groups created at first use (spec/remoting.md 5.4)."""

from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.tables.configmanager import NamedConfigManager, TableStorage
from rmqha.broker.tables.newnames import MAX_TABLE_BYTES, NewNameLimits, NewNames
from rmqha.broker.tables.topics import TOPIC_CHARACTERS
from rmqha.kit.events import Event
from rmqha.kit.threads import RunInThread
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.protocol import RequestRefused
from rmqha.settings.settings import Settings
from rmqha.store.metadata import SubscriptionGroupConfig, SubscriptionGroupTable
from rmqha.wire.beans import INT_MIN, LONG_MIN
from rmqha.wire.command import ResponseCode
from rmqha.wire.fastjson import dumps_strict
from rmqha.wire.record import MAX_TOPIC_BYTES
from rmqha.wire.topics import RETRY_PREFIX

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TOOLS_CONSUMER_GROUP = "TOOLS_CONSUMER"
SYSTEM_GROUPS = (
    TOOLS_CONSUMER_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
MAX_GROUP_LENGTH = 255
"""The longest name that Java takes."""
MAX_NEW_GROUP_LENGTH = MAX_TOPIC_BYTES - len(RETRY_PREFIX)
"""The longest name whose retry topic fits a record. Messages that consumers of a longer one give back were lost."""
MAX_ROW_BYTES = len(
    dumps_strict(
        {"": SubscriptionGroupConfig("", False, False, False, INT_MIN, INT_MIN, LONG_MIN, LONG_MIN, False).to_json()}
    )
)
"""Bytes of a group in the table as JSON, without its name, which occurs twice."""


def group_problem(name: str) -> str | None:
    """Why a group cannot have this name; None if it can (Java's Validators.checkGroup)."""
    if not name.strip():
        return "the specified group is blank"
    if len(name) > MAX_GROUP_LENGTH:
        return f"the specified group is longer than group max length {MAX_GROUP_LENGTH}: {name[:40]}…"
    if not TOPIC_CHARACTERS.issuperset(name):
        return f"the specified group[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def new_group_problem(name: str) -> str | None:
    """Why no group can be created with this name; None if one can."""
    problem = group_problem(name)
    if problem is None and len(name) > MAX_NEW_GROUP_LENGTH:
        return (
            f"the specified group has {len(name)} characters, at most {MAX_NEW_GROUP_LENGTH} are possible: the name of "
            f"its topic {RETRY_PREFIX}… must fit into a message: {name[:40]}…"
        )
    return problem


def check_group(name: str) -> None:
    """Raises RequestRefused if no group can have this name."""
    _check(group_problem(name))


def check_new_group(name: str) -> None:
    """Raises RequestRefused if no group can be created with this name."""
    _check(new_group_problem(name))


def _check(problem: str | None) -> None:
    if problem is not None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)


class SubscriptionGroupManager(NamedConfigManager[SubscriptionGroupConfig]):
    """The groups by name."""

    _log = Logger()
    table: SubscriptionGroupTable

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        wall: IWallClock,
        run_in_thread: RunInThread = execute,
        clock: IReactorTime | None = None,
    ) -> None:
        """Reads subscriptionGroup.json of ``folder``, and adds the system's groups. Raises StoreError, OSError."""
        limits = NewNameLimits.of_groups(settings)
        names = NewNames("group", limits, wall, MAX_ROW_BYTES, MAX_TABLE_BYTES)
        seeds = {name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS}
        storage = TableStorage(folder, run_in_thread, clock)
        super().__init__(storage, SubscriptionGroupTable, settings, seeds, names, wall)

    def find_or_create(self, name: str, by: object | None = None) -> SubscriptionGroupConfig | None:
        """The group, created with the defaults if missing; None if that is not allowed.

        ``by`` is the connection that names it. Raises RequestRefused for an invalid name, or for too many groups.
        """
        found = self.get(name)
        if found is not None:
            return found
        check_new_group(name)
        if not (self.settings.auto_create_subscription_group or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        self.take_new(name, by)
        if self._new.gets_line():
            self._log.info("group {group} created", event=Event.GROUP_CREATED, group=name)
        group = SubscriptionGroupConfig(name)
        self.update(group)
        return group

    def name_of(self, row: SubscriptionGroupConfig) -> str:
        return row.group_name
