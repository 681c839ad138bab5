"""The own files of a store, its log, and what recovery would find in it. It needs no reactor."""

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.settings.settings import Settings
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import CommitLog, segment_size_of
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.log.recovery import Examination, Vouched, examine
from rmqha.store.nodestate import NodeState

ABORT_FILE = "abort"
CHECKPOINT_FILE = "checkpoint"
LOCK_FILE = "lock"
CUT_FOLDER = "cut"
"""Below ``rmqha``: what recovery cut and repairs replaced."""


def open_log(settings: Settings, owned: bool = True, disk: Disk = DISK) -> CommitLog:
    """Open the log of a store. Its files show the segment size. Raises StoreError, OSError."""
    folder = settings.commit_log_folder
    return CommitLog(folder, segment_size_of(folder, settings.mapped_file_size_commit_log, disk), owned, disk)


def examine_store(settings: Settings, bar: IBar = NO_BAR, disk: Disk = DISK) -> Examination:
    """What recovery would find in a store that no process has open. Changes nothing. Raises StoreError, OSError.

    ``bar`` shows the offset that is proved so far, and the end of the log's files.
    """
    root = settings.store_path_root_dir
    state = NodeState.read(root, disk)
    vouched = Vouched() if state is None else Vouched(state.confirmed_offset, state.flushed_offset)
    log = open_log(settings, owned=False, disk=disk)
    try:
        checkpoint = Checkpoint.read(root / CHECKPOINT_FILE, disk)
        clean_stop = not disk.exists(root / ABORT_FILE)
        return examine(log, checkpoint, clean_stop, vouched, lambda at: bar.show(at, log.max_offset))
    finally:
        log.close()
