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
from rmqha.store.derived.putnotes import PutNote, PutNotes
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.wire.record import Host
from tests.fixtures import new_folder
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


def note(offset: int, size: int = 100, properties: bytes = b"") -> PutNote:
    """Of a message there."""
    return PutNote("T", 0, offset // size, offset, size, 0, NOW_MS, properties)


class PutNotesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.notes = PutNotes()

    def offsets(self, offset: int, most: int = 100) -> list[int]:
        """Of the messages noted there."""
        return [request.physical_offset for request in self.notes.take(offset, most, 1000)]

    def test_consecutive_ones_are_taken_once(self) -> None:
        self.notes.add([note(0), note(100), note(200)])
        self.assertEqual(self.offsets(0, most=2), [0, 100])
        self.assertEqual(self.offsets(200), [200])
        self.assertEqual(self.offsets(200), [])

    def test_a_gap_ends_them(self) -> None:
        self.notes.add([note(0), note(200)])
        self.assertEqual(self.offsets(0), [0])
        self.assertEqual(self.offsets(100), [])
        self.assertEqual(self.offsets(200), [200])

    def test_what_was_dispatched_from_the_log_is_dropped(self) -> None:
        self.notes.add([note(0), note(100), note(200)])
        self.assertEqual(self.offsets(200), [200])

    def test_they_have_limits(self) -> None:
        self.notes.add([note(at * 100) for at in range(putnotes.MOST_NOTES)])
        self.notes.add([note(putnotes.MOST_NOTES * 100)])
        self.assertEqual(len(self.offsets(0, most=10 * putnotes.MOST_NOTES)), putnotes.MOST_NOTES)
        large = b"x" * putnotes.MOST_PROPERTIES_BYTES
        self.notes.add([note(0, properties=large)])
        self.notes.add([note(100)])
        self.assertEqual(self.offsets(0), [0])
        self.notes.add([note(100)])
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

    @given(MESSAGES)
    def test_a_note_is_what_the_record_says(self, messages: Sequence[Message]) -> None:
        store = self.open(takes_notes=True)
        noted: list[PutNote] = []
        self.patch(store.derived.dispatcher.notes, "add", noted.extend)
        results = store.put_together(messages)
        assert isinstance(results, list)
        log, found = store.commit_log, []
        for each in noted:
            data = log.select(each.physical_offset, each.size)
            assert data is not None
            found.append(read_dispatch_request(data, 0))
        self.assertEqual([each.request() for each in noted], found)
        self.assertEqual(len(noted), sum(result.is_stored for result in results))
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
                store.put_together(messages)
                self.clock.pump([0.01] * 20)
            self.assertEqual(store.derived.dispatcher.behind_bytes, 0)
            store.derived.dispatcher.write_pending()
            store.close_now()
            found.append(
                (contents(store.root / "consumequeue"), contents(store.root / "index", named=False), arrived.last)
            )
        self.assertEqual(found[0], found[1])


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
