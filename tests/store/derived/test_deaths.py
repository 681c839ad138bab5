"""A start that builds damaged queues or index again dies at each of its system calls: the next start builds them.

So does a rewind.
"""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.deletions import DeletedTopicTable, Deletion
from rmqha.store.derived.index import INDEX_FOLDER
from rmqha.store.derived.queueends import ends_path
from rmqha.store.derived.replacing import FOLDERS, doubt
from rmqha.store.log.mappedfile import file_name
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.rewind import rewind
from rmqha.testing.sim.disk import SimDisk
from tests.store.logs import SEGMENT_SIZE
from tests.store.queues import FOREVER, MANY, Writer, records_of

ROOT = Path("/store")
SETTINGS = Settings(
    store_path_root_dir=ROOT,
    mapped_file_size_commit_log=SEGMENT_SIZE,
    mapped_file_size_consume_queue=140,
    mapper_file_size_batch_consume_queue=460,
    max_hash_slot_num=20,
    max_index_num=100,
    broker_role=BrokerRole.ASYNC_MASTER,
)
SLAVE = replace(SETTINGS, broker_role=BrokerRole.SLAVE)
MESSAGES = 60
QUEUE = ROOT / "consumequeue" / "T0" / "0"

Damage = Callable[[SimDisk], None]


class Death(BaseException):
    """The process is killed."""


def made(seed: int) -> SimDisk:
    """The disk of a node that was closed cleanly."""
    disk = SimDisk(Random(seed))
    NodeState.new().write(ROOT, disk)
    store = MessageStore(SETTINGS, disk=disk)
    Writer(store.commit_log).put_many(MESSAGES)
    store.close_now(NodeState.new)
    for name in ("store", "store/rmqha", "store/consumequeue", "store/index"):
        disk.sync_folder(Path("/") / name)
    return disk


def killed(seed: int) -> tuple[SimDisk, int]:
    """The disk of a node that was killed before it flushed its queues, and the start of a message of its log."""
    disk = made(seed)
    store = MessageStore(SETTINGS, disk=disk)
    writer = Writer(store.commit_log)
    writer.number, writer.offsets = MESSAGES, Counter(store.derived.queue_offsets())
    writer.put_many(MESSAGES)
    store.derived.dispatcher.catch_up()
    store.commit_log.sync()
    offset = records_of(store.commit_log)[3 * MESSAGES // 2].physical_offset
    store.abandon()
    return disk, offset


def dies(disk: SimDisk, calls: int, work: Callable[[], object]) -> bool:
    """Whether the work dies before this system call, counted from 0. A dead process makes no further call."""
    left = iter(range(calls))

    def system_call(name: str, path: Path) -> None:
        if next(left, None) is None:
            raise Death(f"before {name} {path}")

    disk.system_call = system_call
    try:
        work()
    except Death:
        return True
    finally:
        disk.system_call = lambda name, path: None
        disk.locks.clear()
    return False


def content(store: MessageStore) -> tuple[object, object]:
    """All units of the queues, and what the index says of each key of the log."""
    derived = store.derived
    derived.dispatcher.catch_up()
    units = {
        key: {offset: queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)}
        for key, queue in derived.queues.queues.items()
        if queue.max_offset
    }
    assert derived.index is not None, "it is enabled"
    records = records_of(store.commit_log)
    keys = {(each.topic, key) for each in records for key in each.properties["KEYS"].split()}
    return units, {key: list(derived.index.query(*key, 0, FOREVER, MANY)) for key in keys}


def after_start(disk: SimDisk, settings: Settings) -> tuple[object, object]:
    """What queues and index have after the next start."""
    store = MessageStore(settings, disk=disk)
    try:
        return content(store)
    finally:
        store.abandon()


def built_afresh(disk: SimDisk) -> tuple[object, object]:
    """What they have if all of them are gone before the next start."""
    for name in FOLDERS:
        disk.remove_tree(ROOT / name)
    disk.remove(ends_path(ROOT), missing_ok=True)
    return after_start(disk, SETTINGS)


def index_damaged(disk: SimDisk) -> None:
    """The first file, and so all that follow."""
    disk.rot(ROOT / INDEX_FOLDER / disk.files_in(ROOT / INDEX_FOLDER)[0][0], 0, b"\xff" * 40)


def queue_damaged(disk: SimDisk) -> None:
    """A unit in its middle is gone."""
    disk.rot(QUEUE / file_name(140), 20, bytes(20))


def queue_too_short(disk: SimDisk) -> None:
    """Only its first units are left. Nothing but the file of the ends tells that there were more."""
    for number, (name, _) in enumerate(disk.files_in(QUEUE)):
        disk.rot(QUEUE / name, 0 if number else 40, bytes(140 if number else 100))


def topic_deleted(disk: SimDisk) -> None:
    """A slave's master has deleted a topic, and the slave has noted it, but not emptied its queues."""
    store = MessageStore(SETTINGS, disk=disk)
    mark = records_of(store.commit_log)[MESSAGES // 2].physical_offset
    store.close_now(NodeState.new)
    DeletedTopicTable((Deletion("T0", mark),)).write(ROOT / CONFIG_FOLDER, disk)


def doubted(disk: SimDisk) -> None:
    """A part of the log was repaired."""
    doubt(ROOT, disk)


def of_wrong_type(disk: SimDisk) -> None:
    """The table says now that a topic has a batch consume queue."""
    table = {"topicConfigTable": {"T0": {"topicName": "T0", "attributes": {"queue.type": "BatchCQ"}}}}
    disk.replace(ROOT / CONFIG_FOLDER / "topics.json", json.dumps(table).encode())


class DeathsTests(SynchronousTestCase):
    def check(self, damage: Damage) -> None:
        """Every second death is one of the whole machine: for masters the even ones, for slaves the others."""
        for settings, turn in (SETTINGS, 0), (SLAVE, 1):

            def start(disk: SimDisk, settings: Settings = settings) -> None:
                store = MessageStore(settings, disk=disk)
                store.derived.dispatcher.catch_up()
                store.close_now(NodeState.new)

            damaged = made(turn)
            damage(damaged)
            damaged.lose_power()  # all of it is on the disk
            expected = built_afresh(deepcopy(damaged))
            for calls in count():
                disk = deepcopy(damaged)
                is_over = not dies(disk, calls, partial(start, disk))
                if calls % 2 == turn:
                    disk.lose_power()
                self.assertEqual(after_start(disk, settings), expected, (settings.broker_role, calls))
                if is_over:
                    break

    def test_a_damaged_index(self) -> None:
        self.check(index_damaged)

    def test_a_damaged_queue(self) -> None:
        self.check(queue_damaged)

    def test_a_queue_that_has_lost_its_end(self) -> None:
        self.check(queue_too_short)

    @pytest.mark.long
    def test_queues_of_a_deleted_topic(self) -> None:
        self.check(topic_deleted)

    @pytest.mark.long
    def test_all_of_them_in_doubt(self) -> None:
        self.check(doubted)

    @pytest.mark.long
    def test_queues_of_the_wrong_type(self) -> None:
        self.check(of_wrong_type)

    def test_a_rewind_flushes_what_the_start_before_it_has_built(self) -> None:
        """It closes queues and index, and opens them again. A power loss after it takes nothing."""
        for seed in range(3):
            disk, offset = killed(seed)
            rewind(SLAVE, offset, disk)
            disk.lose_power()
            self.assertEqual(after_start(disk, SLAVE), built_afresh(disk), seed)

    @pytest.mark.long
    def test_a_rewind_of_a_store_that_was_killed(self) -> None:
        """Power is lost at each of its calls, and after it: queues and index have what the log still has."""
        for calls in count():
            disk, offset = killed(calls)
            is_over = not dies(disk, calls, partial(rewind, SLAVE, offset, disk))
            disk.lose_power()
            rewind(SLAVE, offset, disk)
            disk.lose_power()
            self.assertEqual(after_start(disk, SLAVE), built_afresh(disk), calls)
            if is_over:
                break
