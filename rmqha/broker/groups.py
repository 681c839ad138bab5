"""The consumer groups a broker knows: subscriptionGroup.json, and those made when first seen (spec/remoting.md 5.4)."""

from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.configmanager import ConfigManager
from rmqha.broker.newnames import NewNameLimits, NewNames
from rmqha.broker.remoting import RequestRefused
from rmqha.broker.topics import TOPIC_CHARACTERS
from rmqha.settings import Settings
from rmqha.store.flush import RunInThread
from rmqha.store.metadata import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from rmqha.wire.command import ResponseCode

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


def group_problem(name: str) -> str | None:
    """Why a group cannot have this name; None if it can (Java's Validators.checkGroup)."""
    if not name.strip():
        return "the specified group is blank"
    if len(name) > MAX_GROUP_LENGTH:
        return f"the specified group is longer than group max length {MAX_GROUP_LENGTH}: {name[:40]}…"
    if not TOPIC_CHARACTERS.issuperset(name):
        return f"the specified group[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def check_group(name: str) -> None:
    """Raises RequestRefused if no group can have this name."""
    problem = group_problem(name)
    if problem is not None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)


class SubscriptionGroupManager(ConfigManager[SubscriptionGroupTable]):
    """The groups by name. Each change is persisted and gives the table its next version.

    ``settings`` say whether groups may be made, and may be changed meanwhile.
    """

    _log = Logger()

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        now_ms: Callable[[], int],
        run_in_thread: RunInThread = execute,
        clock: IReactorTime | None = None,
    ) -> None:
        """Reads subscriptionGroup.json of ``folder``, and adds the system's groups. Raises StoreError, OSError."""
        super().__init__(folder, SubscriptionGroupTable, run_in_thread, clock)
        self.settings = settings
        self._now_ms = now_ms
        self._new = NewNames("group", NewNameLimits.of_groups(settings), lambda: now_ms() / 1000)
        groups = self.table.subscription_group_table
        if not groups.keys() >= set(SYSTEM_GROUPS):
            version = self.table.data_version
            new = version == DataVersion()
            self.table = SubscriptionGroupTable(
                DataVersion(0, now_ms()) if new else version.next(now_ms()),
                {**{name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS}, **groups},
            )
            self.persist()

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group; None if there is none."""
        return self.table.subscription_group_table.get(name)

    def find_or_create(self, name: str, by: object | None = None) -> SubscriptionGroupConfig | None:
        """The group, made with the defaults if it was not there; None if that is not allowed.

        ``by`` is the connection that names it. Raises RequestRefused if it cannot have that name, or for too many.
        """
        found = self.get(name)
        if found is not None:
            return found
        check_group(name)
        if not (self.settings.auto_create_subscription_group or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        self._new.take(len(self.table.subscription_group_table), by)
        self._log.info("group {group} made", group=name)
        group = SubscriptionGroupConfig(name)
        self.update(group)
        return group

    def take_new(self, name: str, by: object | None) -> None:
        """Count a group that an operator makes, if it is new. Raises RequestRefused for too many."""
        if name not in self.table.subscription_group_table:
            self._new.take(len(self.table.subscription_group_table), by)

    def update(self, config: SubscriptionGroupConfig) -> None:
        """Make the group, or give it these settings."""
        self.table.subscription_group_table[config.group_name] = config
        self._changed()

    def delete(self, name: str) -> bool:
        """Forget the group; whether there was one."""
        if self.table.subscription_group_table.pop(name, None) is None:
            return False
        self._changed()
        return True

    def replace(self, table: SubscriptionGroupTable) -> None:
        """Hold this table instead, with its version: a slave that follows its master."""
        self.table = table
        self.persist()

    def _changed(self) -> None:
        self.table.data_version = self.table.data_version.next(self._now_ms())
        self.persist()
