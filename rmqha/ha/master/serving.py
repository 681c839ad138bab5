"""How a node serves its log to slaves, and its confirmed offset. ``Node`` and the simulator share this module."""

from twisted.internet.interfaces import IReactorTime

from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.ha.master.grouptransfer import GroupTransfer
from rmqha.ha.master.protocol import HAMasterFactory, MasterOptions
from rmqha.settings import BrokerRole, Settings
from rmqha.store.messagestore import MessageStore


class LogServing:
    """The HA port's ``factory``. Puts of a SYNC_MASTER wait for its slaves (``group_transfer``)."""

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        clock: IReactorTime,
        check: SlaveCheck | None = None,
        max_connections: int | None = None,
    ) -> None:
        """``max_connections`` is how many the process can open, None for no limit. The store must be flushing."""
        self.group_transfer: GroupTransfer | None = None
        if settings.broker_role is BrokerRole.SYNC_MASTER:
            log = store.commit_log
            confirmed = max(log.min_offset, min(log.verified_offset, store.node_state.offsets.confirmed))
            self.group_transfer = GroupTransfer(log, settings, clock, confirmed_offset=confirmed)
            store.replicate_by(self.group_transfer)
        options = MasterOptions.of(settings, max_connections)
        self.factory = HAMasterFactory(store.commit_log, clock, options, self.group_transfer, check)


def confirmed_offset(store: MessageStore, settings: Settings, serving: LogServing | None) -> int:
    """The end of the log that a failover cannot lose.

    If puts wait for slaves, enough slaves have confirmed it; otherwise it is on our own disk.
    """
    log = store.commit_log
    group_transfer = None if serving is None else serving.group_transfer
    if group_transfer is not None and settings.in_sync_replicas > 1:
        return min(log.verified_offset, max(log.min_offset, group_transfer.confirmed_offset))
    return max(log.min_offset, min(log.verified_offset, log.flushed_offset))
