"""Opens, recovers and removes the consume queues and the index of a store together."""

import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Lock

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.kit.steps import Steps, at_once
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.deletions import NOTHING_DELETED, DeletedTopicTable, read_deletions
from rmqha.store.derived.batchqueue import BatchConsumeQueue
from rmqha.store.derived.consumequeue import (
    CONSUME_QUEUE_FOLDER,
    ConsumeQueue,
    QueueDamaged,
    queue_file_size,
)
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.dispatchmark import DispatchMark, remove_mark
from rmqha.store.derived.dispatchrequest import read_dispatch_request, read_place
from rmqha.store.derived.geometry import Geometry, UnprovedIndexFile, geometry_of
from rmqha.store.derived.index import INDEX_FOLDER, KeyIndex, configured_geometry, new_geometry, used_index_paths
from rmqha.store.derived.queueends import QueueEnd, end_of, read_ends, write_ends
from rmqha.store.derived.queuetable import QueueKey, open_queues
from rmqha.store.derived.queuetypes import QueueTypes
from rmqha.store.derived.replacing import new_retired_folder, remove_retired, retire_topic
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK, Disk, Readable, file_name
from rmqha.store.log.recovery import Recovery
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.opening import Opening

RECOVERY_THREADS = 4
QUEUES_A_ROUND = 256
QUEUES_A_TURN = 16
"""How many queues a thread recovers before it takes the next ones."""
MAX_OPEN_SEGMENTS = 64
QUEUES_LOOKED_AT = 64
"""Queues of deleted topics whose first message is read in one step."""
TOPICS_TOLD = 5
NO_MARK = 2**63 - 1
MARKED_BYTES = 16 << 20
"""If more of the log than this is to be dispatched, a mark shows the next start that this did not end."""


def new_folder_aside(root: Path, name: str, disk: Disk = DISK) -> Path:
    """Make a folder below ``rmqha`` for what is set aside. Raises OSError."""
    number = 0
    while disk.exists(folder := root / NODE_FOLDER / f"{name}-aside-{number}"):
        number += 1
    disk.make_folder(folder)
    return folder


def open_index(
    root: Path, settings: Settings, with_slots: bool = True, disk: Disk = DISK
) -> tuple[KeyIndex | None, list[tuple[Path, str]]]:
    """The index below ``root``, None if messageIndexEnable is false; and its files from the first damaged one on.

    Those files are left out: the index continues after the file before them. Files keep their geometry with any
    settings. New files follow the settings. Raises StoreError, OSError.
    """
    if not settings.message_index_enable:
        return None, []
    folder = root / INDEX_FOLDER
    wanted = configured_geometry(settings.max_hash_slot_num, settings.max_index_num)
    made = new_geometry(folder, settings.max_hash_slot_num, settings.max_index_num, disk)
    files: list[tuple[Path, Geometry]] = []
    damaged: list[tuple[Path, str]] = []
    for path in used_index_paths(folder, disk):
        try:
            if damaged:
                raise UnprovedIndexFile(path, "a file before it is damaged")
            files.append((path, geometry_of(path, wanted, made, with_slots, disk)))
        except UnprovedIndexFile as error:
            damaged.append((path, str(error)))
    return KeyIndex(folder, *made, files, disk), damaged


class _LogHeads:
    """Reads a few bytes of the log at any offset. Only their pages enter the page cache. Several threads may read."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._files: dict[int, Readable] = {}
        self._lock = Lock()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of one segment. Empty outside the log. Raises OSError."""
        if not self._log.min_offset <= offset < self._log.verified_offset:
            return b""
        base = offset - offset % self._log.segment_size
        with self._lock:
            file = self._files.get(base)
            if file is None:
                if len(self._files) >= MAX_OPEN_SEGMENTS:  # no other thread reads while the lock is held
                    self.close()
                file = self._files[base] = self._log.disk.open_pages(self._log.folder / file_name(base))
            return file.read(offset - base, size)


def _problem_of_last(key: QueueKey, queue: ConsumeQueue, heads: _LogHeads, proved_from: int, end: int) -> str | None:
    """What is wrong if the queue's last unit does not point to the message with this queue offset.

    The next put derives its queue offset from this unit. Units of messages that are not in the log before ``end`` are
    not checked. If no message is found before ``proved_from``, the log may be the damaged one: ``rmqha verify`` shows
    that. Raises OSError.
    """
    if queue.last_message is None:
        return None
    queue_offset, physical_offset, size = queue.last_message
    if physical_offset < heads.min_offset or physical_offset + size > end:
        return None
    found = read_place(heads, physical_offset, size)
    if found == (*key, queue_offset) or (found is None and physical_offset < proved_from):
        return None
    place = "no message of this size" if found is None else f"message {found[2]} of queue {found[1]} of {found[0]!r}"
    return f"its last unit, {queue_offset}, points to {place} at {physical_offset} of the log"


class Derived:
    """The queues and the index of a recovered log, and the dispatcher that continues them."""

    _log = Logger()

    def __init__(
        self,
        root: Path,
        settings: Settings,
        log: CommitLog,
        recovery: Recovery,
        opening: Opening,
    ) -> None:
        """Recovers them up to the log's end. ``opening`` may be stopped meanwhile.

        Raises OpeningStopped, StoreError, OSError.
        """
        self._delay_levels = settings.message_delay_level
        self._settings = settings
        problems: dict[QueueKey, str] = {}
        self._disk = log.disk
        self.queues = open_queues(root, settings, problems=problems, disk=self._disk)
        self._warn_of_queue_size()
        self._root = root
        self._commit_log = log
        self._log_end = log.verified_offset
        self._marking = Lock()
        self._marked_from = NO_MARK
        self.is_closed = False
        deleted = self._read_deleted()
        ends = read_ends(root, recovery.end, self._warn, self._disk) if recovery.clean_stop else {}
        self._known_ends = {
            key: end for key, end in ends.items() if not deleted.is_deleted(key[0], end.max_physical_offset - 1)
        }
        mark = DispatchMark.read(root, self._disk)
        self._leave_out_damaged(mark, problems)
        self._recover_queues(log, recovery, problems, opening)
        misplaced = self.queues.misplaced
        refill_from = self._log_lost_units(problems)
        rebuilt = at_once(self._finding_rebuilt(deleted, NOTHING_DELETED))
        self._forget_topics(rebuilt)
        built_until = max(log.min_offset, self.queues.max_physical_offset)
        start = built_until if recovery.clean_stop else min(built_until, max(log.min_offset, recovery.checked_from))
        if problems or misplaced:  # queues skip units that they have
            start = log.min_offset
        start = min(start, refill_from, *rebuilt.values(), self._log_end if mark is None else mark.start)
        self.index, damaged = open_index(root, settings, recovery.clean_stop, self._disk)
        self._warn_of_index_sizes()
        if damaged:
            assert self.index is not None, "it has files"
            start = min(start, self.index.end_phy_offset)
        start = max(log.min_offset, start)
        is_marked = problems or misplaced or rebuilt or damaged or refill_from < self._log_end
        if is_marked or self._log_end - start > MARKED_BYTES:
            DispatchMark(start, list(problems)).write(root, self._disk)  # first: this process may die at each step
        self._note_opened()
        self._set_queues_aside(root, problems)
        self._set_misplaced_aside(misplaced)
        if rebuilt:
            retired = new_retired_folder(root, self._disk)
            changed = {each for topic in rebuilt for each in retire_topic(root, topic, retired, self._disk)}
            for each in sorted(changed):
                self._disk.sync_folder(each)
            remove_retired(retired, self._disk)
        if problems:
            DispatchMark(start).write(root, self._disk)  # the queues that are built now are not damaged
        if damaged:
            self._set_index_aside(root, damaged)
            assert self.index is not None, "it has files"
            self.index.truncate(self.index.end_phy_offset)  # a message's keys may be in two files
        self._cut_index(recovery, start)
        is_slave = settings.broker_role is BrokerRole.SLAVE
        self.dispatcher = Dispatcher(log, self.queues, self.index, settings.message_delay_level, start, is_slave)
        self.dispatcher.placer.found_batches = self._found_batches
        self.dispatcher.deleted = deleted
        self.dispatcher.placer.empty = self._empty
        if log.last_message_offset is not None and log.last_message_offset < start:
            self.dispatcher.last_store_timestamp = log.last_store_timestamp

    def _warn(self, text: str) -> None:
        self._log.warn("{text}", event=Event.QUEUE_ENDS_UNREADABLE, text=text)

    def _warn_of_queue_size(self) -> None:
        configured, size = self._settings.mapped_file_size_consume_queue, self.queues.file_size
        if configured is not None and queue_file_size(configured) != size:
            self._log.warn(
                "queue files have {size} bytes, and mappedFileSizeConsumeQueue says {configured}: the node keeps the "
                "size of the files; to change them to the setting, stop it and run rmqha rebuild with these settings",
                event=Event.QUEUE_FILE_SIZE_DIFFERS,
                size=size,
                configured=configured,
            )

    def _warn_of_index_sizes(self) -> None:
        wanted = configured_geometry(self._settings.max_hash_slot_num, self._settings.max_index_num)
        if self.index is None or wanted is None:
            return
        others = [geometry for geometry in self.index.geometries if geometry != wanted]
        if others:
            self._log.warn(
                "{count} index files have {found}, and the settings say {wanted}: the node keeps these files, and "
                "makes new ones as configured; to change all, stop it and run rmqha rebuild with these settings",
                event=Event.INDEX_FILE_SIZE_DIFFERS,
                count=len(others),
                found=str(others[-1]),
                wanted=str(wanted),
            )

    def must_mark(self, start: int) -> bool:
        """Whether the disk must have a mark before dispatch goes back to ``start``."""
        return start < min(self.dispatcher.reput_offset, self._marked_from)

    def mark(self, start: int) -> None:
        """Note durably that dispatch goes back to ``start``, or to where a mark says already. Raises OSError.

        It may run in a thread. Once this is closed it does nothing, so that it takes back no mark of what comes next.
        """
        with self._marking:
            if self.is_closed:
                return
            mark = DispatchMark.read(self._root, self._disk)
            if mark is None or start < mark.start:
                DispatchMark(start).write(self._root, self._disk)
            self._marked_from = start if mark is None else min(start, mark.start)

    def note_unfinished(self) -> bool:
        """If dispatch has not come to the end of the recovered log, note where it must continue. Raises OSError.

        After an unclean stop, one queue may have units of later messages than another one: the queues do not show it.
        """
        is_unfinished = self.dispatcher.reput_offset < self._log_end
        if is_unfinished:
            DispatchMark(self.dispatcher.reput_offset).write(self._root, self._disk)
        return is_unfinished

    def settle(self) -> None:
        """Note where queues end, and where dispatch must continue. Call it once both are flushed. Raises OSError."""
        if not self.note_unfinished():
            remove_mark(self._root, self._disk)
        if self._disk.is_folder(
            self._root / NODE_FOLDER
        ):  # without it no node of ours ran: the store stays a Java broker's
            write_ends(self._root, self.queues.queues.values(), self._commit_log.verified_offset, self._disk)

    def _note_opened(self) -> None:
        """A death from here on is an unclean stop.

        Not earlier: after an unclean stop, fewer damages of queues and index show. Raises OSError.
        """
        if not self._disk.exists(self._root / ABORT_FILE):
            self._disk.touch(self._root / ABORT_FILE)
            self._disk.sync_folder(self._root)

    def _leave_out_damaged(self, mark: DispatchMark | None, problems: dict[QueueKey, str]) -> None:
        """An earlier start died before it had set these queues aside. Their files need not show the damage now."""
        for key in () if mark is None else mark.damaged:
            if key in self.queues.queues:
                self.queues.forget(*key)
                problems[key] = "an earlier start has found that"

    def _recover_queues(
        self, log: CommitLog, recovery: Recovery, problems: dict[QueueKey, str], opening: Opening
    ) -> None:
        """Find the ends of all queues, several at once, because each mostly waits for the disk."""
        checked_from = None if recovery.clean_stop else min(recovery.checked_from, recovery.end)
        checked_to = recovery.end if checked_from is None else checked_from
        is_master = self._settings.broker_role is not BrokerRole.SLAVE

        def recover(key: QueueKey, queue: ConsumeQueue) -> str | None:
            try:
                queue.recover(checked_from)
            except QueueDamaged as error:
                return str(error)
            if not is_master or self._known_ends.get(key) == end_of(queue):
                return None
            return _problem_of_last(key, queue, heads, recovery.checked_from, checked_to)

        def recover_some(some: list[tuple[QueueKey, ConsumeQueue]]) -> list[str | None]:
            return [recover(*item) for item in some]

        heads = _LogHeads(log)
        items = list(self.queues.queues.items())
        try:
            with ThreadPoolExecutor(RECOVERY_THREADS) as threads:  # it starts a thread only when it has work
                at_once = map if len(items) <= QUEUES_A_TURN else threads.map
                for begin in range(0, len(items), QUEUES_A_ROUND):
                    opening.check()
                    some = items[begin : begin + QUEUES_A_ROUND]
                    parts = [some[at : at + QUEUES_A_TURN] for at in range(0, len(some), QUEUES_A_TURN)]
                    found = chain.from_iterable(at_once(recover_some, parts))
                    for (key, queue), problem in zip(some, found, strict=True):
                        if problem is not None:
                            self.queues.forget(*key)
                            problems[key] = problem
                        else:
                            self._agree_with_log(queue, log, recovery)
        finally:
            heads.close()

    def _log_lost_units(self, problems: Mapping[QueueKey, str]) -> int:
        """Log which queues ended later at the clean stop. Returns from where on the log has their units."""
        refill_from = self._log_end
        for key, known in self._known_ends.items():
            queue = self.queues.queues.get(key)
            if key in problems or (queue is not None and queue.max_offset >= known.max_offset):
                continue
            found = QueueEnd(0, -1) if queue is None else end_of(queue)
            refill_from = min(refill_from, found.max_physical_offset)
            self._log.error(
                "queue {queue_id} of {topic} ends at {found}, but ended at {known} when the store was closed: the "
                "missing units are rebuilt from the log",
                event=Event.QUEUE_TOO_SHORT,
                topic=key[0],
                queue_id=key[1],
                found=found.max_offset,
                known=known.max_offset,
            )
        return refill_from

    def _agree_with_log(self, queue: ConsumeQueue, log: CommitLog, recovery: Recovery) -> None:
        """Drop units of messages past the log's end. If the last unit is wrong, drop all of the log's checked part.

        It may be torn, or power was lost twice and an older state of the file came back. Dispatch adds them again.
        Raises OSError.
        """
        queue.mark_kept_units()
        if queue.max_physical_offset > recovery.end:
            queue.truncate(recovery.end)
        is_checked = not recovery.clean_stop and queue.max_physical_offset > recovery.checked_from
        if is_checked and queue.last_unit != self._last_unit_in(queue, log):
            queue.truncate(recovery.checked_from)
        queue.correct_min_offset(log.min_offset)
        queue.release_files()

    def _last_unit_in(self, queue: ConsumeQueue, log: CommitLog) -> tuple[int, ...] | None:
        """The last unit as it should be, by the message in the proved log that it points to. None if that is not the
        queue's, or has another queue offset.
        """
        assert queue.last_message is not None, "the queue has units"
        queue_offset, offset, _ = queue.last_message
        data = log.get_data(offset, log.segment_size)
        try:
            request = None if data is None else read_dispatch_request(data, 0)
        except (struct.error, IndexError):  # the offset is not the start of a record
            return None
        if request is None or isinstance(request, int) or request.physical_offset != offset:
            return None
        if (request.topic, request.queue_id, request.queue_offset) != (queue.topic, queue.queue_id, queue_offset):
            return None
        return queue.unit_of(request, self._delay_levels)

    def _set_queues_aside(self, root: Path, problems: Mapping[QueueKey, str]) -> None:
        """Move the folders of damaged queues below ``rmqha``. Dispatch rebuilds the queues. Raises OSError."""
        if not problems:
            return
        aside = new_folder_aside(root, CONSUME_QUEUE_FOLDER, self._disk)
        for key, problem in problems.items():
            folder = self.queues.existing_folder_of(*key)
            target = aside / key[0] / folder.name
            self._disk.make_folder(target.parent)
            self._disk.rename(folder, target)
            self._log.error(
                "queue {queue_id} of {topic} is damaged: {problem}; it is rebuilt from the log, and the old one is "
                "kept in {kept_in}",
                event=Event.QUEUE_DAMAGED,
                topic=key[0],
                queue_id=key[1],
                problem=problem,
                kept_in=str(target),
            )

    def _set_misplaced_aside(self, folders: Sequence[Path]) -> None:
        """Move folders of queues below ``rmqha`` that are of the wrong type. Raises OSError."""
        if not folders:
            return
        aside = new_folder_aside(self._root, "misplaced-queues", self._disk)
        for folder in folders:
            target = aside / folder.parent.parent.name / folder.parent.name / folder.name
            self._disk.make_folder(target.parent)
            self._disk.rename(folder, target)
            self._disk.remove_if_empty(folder.parent)
        topics = sorted({folder.parent.name for folder in folders})
        self._log.warn(
            "queues of {topics} are of the wrong type for their topics (queue.type): they are rebuilt from the log, "
            "and the old ones are kept in {kept_in}",
            event=Event.QUEUES_OF_WRONG_TYPE,
            topics=", ".join(topics[:TOPICS_TOLD]) + (" and more" if len(topics) > TOPICS_TOLD else ""),
            kept_in=str(aside),
        )

    def _read_deleted(self) -> DeletedTopicTable:
        """What was deleted. A master's log may have lost its end since: what is put there now was not deleted.

        Raises StoreError, OSError.
        """
        deleted = read_deletions(self._root, self._disk)
        if deleted.end > self._log_end and self._settings.broker_role is not BrokerRole.SLAVE:
            deleted = deleted.lowered_to(self._log_end)
            deleted.write(self._root / CONFIG_FOLDER, self._disk)
        return deleted

    def _finding_rebuilt(self, deleted: DeletedTopicTable, former: DeletedTopicTable) -> Steps[dict[str, int]]:
        """The topics whose queues have messages that were deleted, or do not have some that were not.

        Each with the offset of the log from which on they are built again. ``former`` is what they were built by.
        Raises OSError.
        """
        log_start = self._commit_log.min_offset
        found: dict[str, int] = {}
        for deletion in former.without(deleted):  # the master that we follow now has not deleted the topic
            begin = max(log_start, deleted.marks.get(deletion.topic, 0))
            if deletion.offset > max(begin, deleted.forgotten):
                found[deletion.topic] = begin
        new = {deletion.topic for deletion in deleted.without(former)}
        keys = [key for key in self.queues.queues if key[0] in new and key[0] not in found]
        for count, key in enumerate(keys, 1):
            queue = self.queues.queues.get(key)
            if queue is not None and queue.max_offset:
                mark, first = deleted.marks[key[0]], self.queues.first_message(queue)
                if first is None or first < mark:
                    found[key[0]] = max(log_start, mark)
            if count % QUEUES_LOOKED_AT == 0:
                yield
                if self.is_closed:
                    return {}
        return found

    def _forget_topics(self, topics: Container[str]) -> None:
        """Take the queues of these topics out of the table."""
        for key in [key for key in self.queues.queues if key[0] in topics]:
            self.queues.forget(*key)
            self._known_ends.pop(key, None)

    def setting_deleted(self, deleted: DeletedTopicTable) -> Steps[dict[str, int]]:
        """From now on this is what was deleted. Returns what to ``build_again``: topics, and the offset of each.

        Raises OSError, and then what was deleted before counts.
        """
        former, self.dispatcher.deleted = self.dispatcher.deleted, deleted
        try:
            return (yield from self._finding_rebuilt(deleted, former))
        except OSError:
            self.dispatcher.deleted = former
            raise

    def build_again(self, topics: Iterable[str], start: int, folder: Path) -> set[Path]:
        """Move the queues of these topics to a ``new_retired_folder``, and dispatch from ``start`` on. Raises OSError.

        If ``must_mark`` says so, ``mark`` the start before. Returns the folders to flush after it. Queues and dispatch
        are sound at once, and after a death too.
        """
        assert not self.must_mark(start), f"no mark says that queues are built again from {start} on"
        self.queues.write_pending()
        if start < self.dispatcher.reput_offset:
            self._log_end = self._commit_log.verified_offset  # ``note_unfinished`` looks at what is there now
        moved, changed = set(), set[Path]()
        try:
            for topic in topics:
                changed.update(retire_topic(self._root, topic, folder, self._disk))
                moved.add(topic)
        finally:
            self._forget_topics(moved)
            self.dispatcher.go_back_to(start)
        return changed

    def _empty(self, queue: ConsumeQueue) -> None:
        """A queue starts again from 0. Raises OSError."""
        self._known_ends.pop((queue.topic, queue.queue_id), None)
        queue.truncate(0)

    def set_queue_types(self, types: QueueTypes) -> None:
        """Use what the topics' table says now. Queues of the wrong type are set aside, and dispatched again.

        Raises OSError.
        """
        self.queues.types = replace(types, seen=self.queues.types.seen)
        wrong = [
            key
            for key, queue in self.queues.queues.items()
            if self.queues.types.is_batch(key[0]) is not isinstance(queue, BatchConsumeQueue)
        ]
        if wrong:
            self._dispatch_again(wrong)

    def _found_batches(self, topic: str) -> bool:
        """The log has a batch of a topic that the table does not have. Whether dispatch goes back. Raises OSError."""
        before = self.dispatcher.reput_offset
        self.queues.types = self.queues.types.with_seen(topic)
        wrong = [key for key in self.queues.queues if key[0] == topic]
        if wrong:
            self._dispatch_again(wrong)
        return self.dispatcher.reput_offset != before

    def _dispatch_again(self, wrong: Sequence[QueueKey]) -> None:
        """Set queues of the wrong type aside, and dispatch the log again from their first message on."""
        self.queues.write_pending()
        start, folders = self.dispatcher.reput_offset, []
        for key in wrong:
            queue = self.queues.queues[key]
            first = queue.unit(queue.min_offset)
            start = min(
                start, self._commit_log.min_offset if first is None or first.is_blank else first.physical_offset
            )
            folders.append(queue.folder)
        self._log_end = self._commit_log.verified_offset  # ``note_unfinished`` looks at what is there now
        self.mark(start)
        for key in wrong:
            self.queues.forget(*key)
        self._set_misplaced_aside(folders)
        self.dispatcher.go_back_to(start)

    def _set_index_aside(self, root: Path, damaged: list[tuple[Path, str]]) -> None:
        """Move damaged index files below ``rmqha``. Dispatch rebuilds them. Raises OSError."""
        aside = new_folder_aside(root, INDEX_FOLDER, self._disk)
        for path, _ in damaged:
            self._disk.rename(path, aside / path.name)
        for folder in (aside, root / INDEX_FOLDER):  # a file that came back would have keys that new files have too
            self._disk.sync_folder(folder)
        self._log.error(
            "{problem}; the index is rebuilt from this file on, and {count} old files are kept in {kept_in}",
            event=Event.INDEX_DAMAGED,
            problem=damaged[0][1],
            count=len(damaged),
            kept_in=str(aside),
        )

    def _cut_index(self, recovery: Recovery, start: int) -> None:
        """Drop the index entries that may be wrong."""
        if self.index is not None:
            if not recovery.clean_stop:
                self.index.truncate(start)
            elif self.index.end_phy_offset >= recovery.end:
                self.index.truncate(recovery.end)

    @property
    def file_settings(self) -> dict[str, str]:
        """The settings of the files, by their names in broker.conf."""
        return {
            "mappedFileSizeConsumeQueue": str(self.queues.file_size),
            **({BatchConsumeQueue.size_key: str(self.queues.batch_file_size)} if self.queues.types.has_any else {}),
            **(self.index.file_settings if self.index is not None else {}),
        }

    @property
    def has_files(self) -> bool:
        """Whether there are queue or index files yet."""
        return bool(self.queues.queues) or (self.index is not None and self.index.has_files)

    @property
    def shows_sizes(self) -> bool:
        """Whether existing files show the sizes of both queue and index files."""
        return bool(self.queues.queues) and (self.index is None or self.index.has_files)

    def queue_offsets(self) -> dict[tuple[str, int], int]:
        """The next offset of each queue (upstream's topicQueueTable). It is right once dispatch has caught up.

        An offset is never lower than at the last clean stop, even if units were lost since.
        """
        known = {key: end.max_offset for key, end in self._known_ends.items()}
        return {**known, **{key: max(queue.max_offset, known.get(key, 0)) for key, queue in self.queues.queues.items()}}

    def close(self) -> None:
        """Close all files. Nothing is flushed."""
        with self._marking:
            self.is_closed = True
        self.queues.close()
        if self.index is not None:
            self.index.close()
