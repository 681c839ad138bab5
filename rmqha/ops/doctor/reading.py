"""Reads what ``rmqha doctor`` wants to know of a store on this machine. Changes nothing."""

import os
import re
import resource
import time
from pathlib import Path

from rmqha.ops.doctor.facts import HeldSlot, Judgement, OpenFiles, Store
from rmqha.ops.storestatus import status_of_store
from rmqha.settings.settings import Settings, properties_of
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, queue_size_of
from rmqha.store.errors import StoreError
from rmqha.store.examining import LOCK_FILE
from rmqha.store.log.room import room_of
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.retention import SlotFolder
from rmqha.wire.compiled import implementation

PROCESSES = Path("/proc")
OPEN_FILES = re.compile(r"^Max open files +(\d+)", re.MULTILINE)


def read_store(path: Path, settings: Settings, has_settings: bool) -> Store:
    """What is known of the store. ``has_settings`` says whether the settings are those of its node."""
    try:
        reader = StoreReader(path, settings)
    except (StoreError, OSError) as error:
        return Store(str(path), str(error))
    try:
        return _read(reader, settings, has_settings)
    except (StoreError, OSError) as error:
        return Store(str(path), str(error))
    finally:
        reader.close()


def _read(reader: StoreReader, settings: Settings, has_settings: bool) -> Store:
    path, state = reader.root, reader.state
    config = properties_of(settings) if has_settings else {}
    if state is not None and state.role:
        config = {**config, "brokerRole": state.role}
    if not has_settings:
        config.pop("brokerId", None)
    slots, problem = _slots(path)
    room = room_of(reader.log.folder)
    queues = path / CONSUME_QUEUE_FOLDER
    return Store(
        str(path),
        config=config,
        judgement=None if state is None else Judgement.of(status_of_store(reader), time.time()),
        is_ours=state is not None,
        log_end=reader.limit if state is None else state.offsets.verified,
        is_running=reader.live,
        segment_size=reader.log.segment_size if reader.log.segment_bases else None,
        queue_file_size=queue_size_of(queues, None) if any(queues.glob("*/*/*")) else None,
        free_bytes=room.free,
        used_ratio=room.used_ratio,
        slots=slots,
        slots_problem=problem,
        open_files=_open_files(path / LOCK_FILE) if reader.live else _own_limit(),
        implementation=implementation(),
    )


def _slots(path: Path) -> tuple[tuple[HeldSlot, ...] | None, str | None]:
    try:
        return tuple(HeldSlot(slot.name, slot.offset) for slot in SlotFolder(path).slots()), None
    except (StoreError, OSError) as error:
        return None, str(error)


def _open_files(lock: Path, processes: Path = PROCESSES) -> OpenFiles | None:
    """The open files of the process that has this lock file open; None if we may not look at it."""
    wanted = lock.stat()
    for folder in processes.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            files = list((folder / "fd").iterdir())
            if any(_is(file, wanted) for file in files):
                found = OPEN_FILES.search((folder / "limits").read_text())
                return None if found is None else OpenFiles(int(found[1]), len(files))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return None


def _is(file: Path, wanted: os.stat_result) -> bool:
    try:
        found = file.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)


def _own_limit() -> OpenFiles:
    """What a node that is started here would get: it raises its limit itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(2**31 if hard == resource.RLIM_INFINITY else hard, None)
