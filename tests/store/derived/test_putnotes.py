"""What puts note of their messages: the same as the log says, within limits, and queues and index are the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.kit.wallclock import IWallClock
from rmqha.settings.settings import Settings
from rmqha.store.derived import putnotes
from rmqha.store.derived.dispatchrequest import DispatchRequest, read_dispatch_request
from rmqha.store.derived.index import IndexedKey, hashed
from rmqha.store.derived.putnotes import PutNote, PutNotes
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.wire.delay import DelayLevels
from rmqha.wire.layout import UNIT
from rmqha.wire.record import Host
from rmqha.wire.sends.run import Queue
from tests.fixtures import new_folder
from tests.store.sends import Sends
from tests.store.test_put import NOW_MS

HOSTS = st.sampled_from([Host(b"\x7f\0\0\x01", 1), Host(bytes(16), 2)])
PROPERTIES = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "é"]),
    st.text("ab 12é\udc80", min_size=1, max_size=8),
    max_size=4,
)
MESSAGES = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["T", "U", "é"]),
        body=st.binary(max_size=300),
        properties=PROPERTIES,
        queue_id=st.integers(0, 2),
        sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x80]),
        born_host=HOSTS,
        store_host=HOSTS,
    ),
    max_size=40,
)


def note(offset: int, size: int = 100, messages: int = 1, keys: int = 0) -> PutNote:
    """Of messages there."""
    return PutNote(offset, offset + size, NOW_MS, messages, {}, [("T#k", offset, NOW_MS)] * keys, keys)


class PutNotesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.notes = PutNotes()

    def add(self, *notes: PutNote) -> None:
        for each in notes:
            self.notes.add(each)

    def offsets(self, offset: int, most: int = 100, most_keys: int = 1000) -> list[int]:
        """Of the messages noted there."""
        return [each.offset for each in self.notes.take(offset, most, most_keys)]

    def test_consecutive_ones_are_taken_once(self) -> None:
        self.add(note(0), note(100), note(200))
        self.assertEqual(self.offsets(0, most=2), [0, 100])
        self.assertEqual(self.offsets(200), [200])
        self.assertEqual(self.offsets(200), [])

    def test_a_gap_ends_them(self) -> None:
        self.add(note(0), note(200))
        self.assertEqual(self.offsets(0), [0])
        self.assertEqual(self.offsets(100), [])
        self.assertEqual(self.offsets(200), [200])

    def test_what_was_dispatched_from_the_log_is_dropped(self) -> None:
        self.add(note(0), note(100), note(200))
        self.assertEqual(self.offsets(200), [200])

    def test_no_more_messages_or_keys_are_taken_than_wanted_but_one_note_always_is(self) -> None:
        self.add(note(0, messages=3), note(100, messages=2, keys=4), note(200, keys=7), note(300))
        self.assertEqual(self.offsets(0, most=4), [0])
        self.assertEqual(self.offsets(100, most_keys=10), [100])
        self.assertEqual(self.offsets(200, most=1, most_keys=3), [200])
        self.assertEqual(self.offsets(300), [300])

    def test_they_have_limits(self) -> None:
        self.add(*[note(at * 100) for at in range(putnotes.MOST_MESSAGES)])
        self.add(note(putnotes.MOST_MESSAGES * 100))
        self.assertEqual(len(self.offsets(0, most=10 * putnotes.MOST_MESSAGES)), putnotes.MOST_MESSAGES)
        self.add(note(0, keys=putnotes.MOST_KEYS))
        self.add(note(100))
        self.assertEqual(self.offsets(0), [0])
        self.add(note(100))
        self.assertEqual(self.offsets(100), [100])


@implementer(IWallClock)
class StoppedWallClock:
    """It is always the same time of day."""

    def now_ms(self) -> int:
        return NOW_MS


class EqualTests(SynchronousTestCase):
    """The log says the same as the notes."""

    def open(self, takes_notes: bool) -> MessageStore:
        """A new store, with a clock that stands still."""
        settings = Settings(
            mapped_file_size_commit_log=4096, max_hash_slot_num=10, max_index_num=1000, max_message_size_bytes=3000
        )
        store = MessageStore(replace(settings, store_path_root_dir=new_folder(self)), wall=StoppedWallClock())
        self.clock = Clock()
        store.start_flushing(self.clock, execute, lambda failure: None)
        if not takes_notes:
            self.patch(store.derived.dispatcher.notes, "add", lambda notes: None)
        store.start_dispatching(self.clock, lambda failure: None)
        return store

    def sends_of(self, store: MessageStore, messages: Sequence[Message]) -> Sends:
        """A connection from the host of the first message."""
        return Sends(store, messages[0].born_host, "CLUSTER\x01C") if messages else Sends(store)

    @given(MESSAGES)
    def test_a_note_is_what_the_records_say(self, messages: Sequence[Message]) -> None:
        store = self.open(takes_notes=True)
        noted: list[PutNote] = []
        self.patch(store.derived.dispatcher.notes, "add", noted.append)
        puts = self.sends_of(store, messages).put(*messages)
        for each in noted:
            requests = requests_of(store, each)
            queues: dict[Queue, list[DispatchRequest]] = {}
            for request in requests:
                queues.setdefault((request.topic, request.queue_id), []).append(request)
            self.assertEqual(
                {queue: (units.first, units.count, bytes(units.units)) for queue, units in each.queues.items()},
                {queue: (some[0].queue_offset, len(some), units_of(some)) for queue, some in queues.items()},
            )
            keys = [
                (f"{request.topic}#{key}", request.physical_offset, request.store_timestamp)
                for request in requests
                for key in request.index_keys()
            ]
            packed = hashed([IndexedKey(*key) for key in keys]).tobytes()
            self.assertEqual(each.keys, packed if isinstance(each.keys, bytes) else keys)
            self.assertEqual((each.key_count, each.messages), (len(keys), len(requests)))
        self.assertEqual(sum(each.messages for each in noted), sum(put.by_pass for put in puts))
        store.abandon()

    @given(st.lists(MESSAGES, max_size=4))
    @pytest.mark.long
    def test_queues_index_and_arrivals_are_the_same(self, reads: Sequence[Sequence[Message]]) -> None:
        found = []
        for takes_notes in (True, False):
            store = self.open(takes_notes)
            arrived = Arrivals()
            store.subscribe(arrived)
            for messages in reads:
                self.sends_of(store, messages).put(*messages)
                self.clock.pump([0.01] * 20)
            self.assertEqual(store.derived.dispatcher.behind_bytes, 0)
            store.derived.dispatcher.write_pending()
            store.close_now()
            found.append(
                (contents(store.root / "consumequeue"), contents(store.root / "index", named=False), arrived.last)
            )
        self.assertEqual(found[0], found[1])


def requests_of(store: MessageStore, note: PutNote) -> list[DispatchRequest]:
    """What the log says of the messages of a note."""
    found, at = [], note.offset
    while at < note.end:
        data = store.commit_log.get_data(at, note.end - at)
        assert data is not None
        request = read_dispatch_request(data, 0)
        assert isinstance(request, DispatchRequest)
        found.append(request)
        at += request.size
    return found


def units_of(requests: Sequence[DispatchRequest]) -> bytes:
    """Of messages of one queue."""
    levels = DelayLevels()
    return b"".join(UNIT.pack(each.physical_offset, each.size, each.tags_code(levels)) for each in requests)


class Arrivals:
    """The last queue offset that a listener was told of, by topic, queue and tagsCode."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, int, int], int] = {}

    def __call__(self, request: DispatchRequest, tags_code: int) -> None:
        self.last[request.topic, request.queue_id, tags_code] = request.queue_offset


def contents(folder: Path, named: bool = True) -> dict[str, bytes]:
    """The files below a folder; an index file's name is the time at which it was made."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)) if named else str(number): path.read_bytes() for number, path in enumerate(files)
    }
