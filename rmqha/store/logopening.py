"""Opens the log of a locked store: examines and recovers it, and closes it again if the opening ends early."""

from collections.abc import Callable
from dataclasses import replace

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.derived.replacing import noted_sizes, remove_if_doubted, remove_staging
from rmqha.store.examining import ABORT_FILE, examine_store, open_log
from rmqha.store.log.commitlog import CommitLog, segment_size_of
from rmqha.store.log.mappedfile import Disk, file_name
from rmqha.store.log.recovery import Examination, MayCut, Recovery, check_may_cut
from rmqha.store.logrecovery import recover_log
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import NodeState, state_path
from rmqha.store.opening import Opening

BuildDerived = Callable[[CommitLog, Settings], object]
"""Builds queues and index of a recovered log, and puts them in place of the old ones."""


class LogOpening:
    """Opens a log in this order: ``check``, ``open``, ``tidied_settings`` and perhaps ``build``.

    Meanwhile state.json says how far it is, if the store is ``of_node`` or had a state before.
    """

    _log = Logger()

    commit_log: CommitLog
    recovery: Recovery
    _examined: Examination

    def __init__(self, settings: Settings, opening: Opening, of_node: bool, disk: Disk) -> None:
        """Raises StoreError, OSError."""
        self.settings = settings
        self._opening = opening
        self._of_node = of_node
        self._disk = disk
        self._root = settings.store_path_root_dir
        known = NodeState.read(self._root, disk)
        self._had_state = known is not None
        self.node_state = known or NodeState.new()

    def check(self, may_cut: MayCut) -> None:
        """Examine the log as recovery will. Changes no byte that a file of it has.

        Raises LogDamaged, StoreError, OSError, OpeningStopped.
        """
        if self._of_node:
            self.node_state = replace(self.node_state, dispatched=0)  # it may make queues again
        if self._had_state:  # we write no state into a store that is refused
            self._opening.write_state = self._write_state
        self._give_sizes()
        self._examined = self._opening.known_log or examine_store(
            self.settings, self._opening.bar(OpeningPhase.RECOVERING), self._disk
        )
        if self.settings.broker_role is BrokerRole.SLAVE:  # its master sends the missing bytes again
            may_cut = max(may_cut, MayCut.LOST_END)
        check_may_cut(self._examined, may_cut, self._root)

    def _give_sizes(self) -> None:
        """Give files between others their size, as zeros, if they have no byte: power was lost before they had it.

        Then the log is examined like any other with missing bytes there. Raises StoreError, OSError.
        """
        folder = self.settings.commit_log_folder
        for base, size in self._disk.list_segments(folder)[:-1]:
            if size == 0:
                full_size = segment_size_of(folder, self.settings.mapped_file_size_commit_log, self._disk)
                self._disk.give_size(folder / file_name(base), full_size)

    def open(self) -> CommitLog:
        """Open and recover the log. Raises StoreError, OSError."""
        self.commit_log = open_log(self.settings, disk=self._disk)
        if self._had_state or self._of_node:
            self._opening.write_state = self._write_state
        self.recovery, self.node_state = recover_log(self.settings, self.commit_log, self._examined, self.node_state)
        return self.commit_log

    def tidied_settings(self) -> Settings:
        """Remove queues and index that nobody may use. Returns the settings with the sizes of those that stay.

        Raises StoreError, OSError.
        """
        if remove_staging(self._root, self._disk):
            self._log.info(
                "removed the unused queues and index of a rebuild or reseed that was killed",
                event=Event.UNFINISHED_REBUILD_REMOVED,
            )
        if remove_if_doubted(self._root, self.settings, self._disk):
            self._log.warn(
                "queues and index do not match a part of the log that was repaired: they are built again",
                event=Event.DERIVED_REMOVED,
            )
        self.settings = noted_sizes(self._root, self.settings, self._disk)
        return self.settings

    def build(self, build_derived: BuildDerived) -> Recovery:
        """Have queues and index built again. Returns a recovery after a clean stop: that is how they are opened."""
        try:
            build_derived(self.commit_log, self.settings)
        except BaseException:  # of any kind: close the store, then raise it again
            self.stop(is_clean=self.recovery.clean_stop)
            raise
        end = self.commit_log.verified_offset
        return Recovery(True, self.commit_log.min_offset, checked_from=end, end=end, messages=0)

    def stop(self, is_clean: bool) -> None:
        """Close the log of a store whose opening was stopped. Raises OSError.

        The stop counts as clean if queues and index were open, or if the stop before it was clean.
        """
        if is_clean:
            self._disk.remove(self._root / ABORT_FILE, missing_ok=True)
        self._disk.sync_folder(self._root)
        self.commit_log.close()

    def write_back(self) -> None:
        """Let state.json say again what it said before the opening, if there is one. Raises OSError."""
        if self._disk.exists(state_path(self._root)):
            self.node_state.write(self._root, self._disk)

    def _write_state(self, phase: OpeningPhase) -> None:
        """Write the phase of opening to state.json. All else stays as the last run left it. Raises OSError."""
        replace(self.node_state, state=phase.name).write(self._root, self._disk)
