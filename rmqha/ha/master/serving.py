"""How a node serves its log to slaves, and its confirmed offset. ``Node`` and the simulator share this module."""

from twisted.internet.interfaces import IReactorTime

from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.ha.master.enoughslaves import EnoughSlaves
from rmqha.ha.master.followers import Copies, Followers
from rmqha.ha.master.insyncslaves import InSyncSlaves
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.protocol import HAMasterFactory, MasterOptions
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.messagestore import MessageStore


class LogServing:
    """The HA port's ``factory``. Puts of a SYNC_MASTER wait for its slaves (``group_transfer``).

    If reads have a limit, a master's slaves confirm what may be read. With SYNC_FLUSH it must be on our disk too.
    The leader of a failover cluster has ``members``: its puts wait for those of its sync set, and these confirm.
    """

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        clock: IReactorTime,
        check: SlaveCheck | None = None,
        max_connections: int | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        """``max_connections`` is how many the process can open, None for no limit. The store must be flushing."""
        log, limit = store.commit_log, store.read_limit
        self.members: SyncMembers | None = None
        if leadership is not None:
            self.members = SyncMembers(
                Copies(log, log.min_offset if limit is None else limit.offset), settings, leadership
            )
        reads: InSyncSlaves | SyncMembers | None = None
        if limit is not None and settings.broker_role is not BrokerRole.SLAVE:
            reads = self.members or InSyncSlaves(Copies(log, limit.offset), settings)
            limit.why = reads.why
        self._confirming = None if reads is None else Followers(reads, settings, clock, limit)
        self.group_transfer: Followers | None = None
        if self.members is not None:
            self.group_transfer = self._confirming or Followers(self.members, settings, clock)
            self.members.heed(self.group_transfer)
            store.puts.leadership = leadership
        elif settings.broker_role is BrokerRole.SYNC_MASTER:
            confirmed = max(log.min_offset, min(log.verified_offset, store.node_state.offsets.confirmed))
            self.group_transfer = Followers(EnoughSlaves(Copies(log, confirmed), settings), settings, clock)
        if self.group_transfer is not None:
            store.replicate_by(self.group_transfer)
        tables = dict.fromkeys(table for table in (self.group_transfer, self._confirming) if table is not None)
        self.factory = HAMasterFactory(log, clock, MasterOptions.of(settings, max_connections), tuple(tables), check)
        self.factory.leadership, self.factory.read_policy = leadership, reads

    def log_flushed(self) -> None:
        """The flushed part of the log has grown."""
        if self._confirming is not None:
            self._confirming.let_read()


def confirmed_offset(store: MessageStore, settings: Settings, serving: LogServing | None) -> int:
    """The end of the log that a failover cannot lose.

    If puts wait for slaves, enough slaves have confirmed it; otherwise it is on our own disk. If reads have a limit, it
    is not after that limit. It is the end of a record, unless slaves that catch up have confirmed a part of one.
    """
    log = store.commit_log
    if store.read_limit is not None and not store.read_limit.is_lifted:
        return max(log.min_offset, min(log.durable_offset, store.read_limit.offset))
    if (
        serving is not None
        and serving.group_transfer is not None
        and (serving.members or settings.in_sync_replicas > 1)
    ):
        return min(log.verified_offset, max(log.min_offset, serving.group_transfer.confirmed_offset))
    return max(log.min_offset, log.durable_offset)
