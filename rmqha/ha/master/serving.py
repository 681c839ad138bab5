"""How a node serves its log to slaves, and its confirmed offset. ``Node`` and the simulator share this module."""

from twisted.internet.interfaces import IReactorTime

from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.ha.master.confirming import Confirming
from rmqha.ha.master.grouptransfer import GroupTransfer
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.protocol import HAMasterFactory, MasterOptions
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.settings.settings import BrokerRole, FlushDiskType, Settings
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
        self._store = store
        self._needs_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.members: SyncMembers | None = None
        self.group_transfer: GroupTransfer | SyncMembers | None = None
        log = store.commit_log
        if leadership is not None:
            confirmed = log.min_offset if store.read_limit is None else store.read_limit.offset
            self.members = SyncMembers(log, settings, clock, leadership, confirmed, lambda _: self.log_flushed())
            self.group_transfer, store.leadership = self.members, leadership
        elif settings.broker_role is BrokerRole.SYNC_MASTER:
            confirmed = max(log.min_offset, min(log.verified_offset, store.node_state.offsets.confirmed))
            self.group_transfer = GroupTransfer(log, settings, clock, confirmed_offset=confirmed)
        if self.group_transfer is not None:
            store.replicate_by(self.group_transfer)
        options = MasterOptions.of(settings, max_connections)
        self.factory = HAMasterFactory(log, clock, options, self.group_transfer, check)
        self.factory.leadership = leadership
        if store.read_limit is not None and settings.broker_role is not BrokerRole.SLAVE:
            confirming = self.members or Confirming(
                log, settings, store.read_limit.offset, lambda _: self.log_flushed()
            )
            self.factory.confirming, store.read_limit.why = confirming, confirming.why
        if self.members is not None:
            self.members.start()

    def log_flushed(self) -> None:
        """The flushed part of the log, or the confirmed one, has grown."""
        limit, confirming = self._store.read_limit, self.factory.confirming
        if limit is not None and confirming is not None:
            log = self._store.commit_log
            limit.grow(min(confirming.offset, log.flushed_offset) if self._needs_flush else confirming.offset)


def confirmed_offset(store: MessageStore, settings: Settings, serving: LogServing | None) -> int:
    """The end of the log that a failover cannot lose.

    If puts wait for slaves, enough slaves have confirmed it; otherwise it is on our own disk. If reads have a limit, it
    is not after that limit. It is the end of a record, unless slaves that catch up have confirmed a part of one.
    """
    log = store.commit_log
    if store.read_limit is not None and not store.read_limit.is_lifted:
        return max(log.min_offset, min(log.durable_offset, store.read_limit.offset))
    group_transfer = None if serving is None else serving.group_transfer
    if isinstance(group_transfer, SyncMembers) or (group_transfer is not None and settings.in_sync_replicas > 1):
        return min(log.verified_offset, max(log.min_offset, group_transfer.confirmed_offset))
    return max(log.min_offset, log.durable_offset)
