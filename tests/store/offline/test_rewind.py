"""A store is taken back to an earlier place of its log: its queues agree with the log, whatever was dispatched."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings import Settings, make_settings
from rmqha.store.messagestore import ABORT_FILE, MessageStore
from rmqha.store.nodestate import NODE_FOLDER, NodeState, Offsets
from rmqha.store.offline.audit import audit
from rmqha.store.offline.rewind import rewind
from rmqha.store.offline.storereader import StoreReader
from tests.store.damages import UNHURRIED
from tests.store.logs import file_bytes
from tests.store.offline.test_prefix import Made, logs, queue_ends, result_of, store_of

UNIT_BYTES = 20


def cut_queue(folder: Path, units: int) -> None:
    """Leave so many units of a queue: a process that was killed had written no more of it."""
    at = 0
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        kept = max(0, min(len(content), units * UNIT_BYTES - at))
        path.write_bytes(content[:kept].ljust(len(content), b"\0"))
        at += len(content)


def assert_agrees(case: SynchronousTestCase, store: Path, settings: Settings, made: Made, end: int) -> None:
    """The log is the generated one up to ``end``; a node that starts has each queue's units, and the index."""
    content = file_bytes(store / "commitlog")
    case.assertEqual((content[:end], content[end:].strip(b"\0")), (made.content[:end], b""))
    opened = MessageStore(make_settings({"storePathRootDir": str(store), "brokerRole": "ASYNC_MASTER"}))
    try:
        case.assertEqual(opened.commit_log.verified_offset, end)
        ends = {key: offset for key, offset in opened.derived.queue_offsets().items() if offset}
        case.assertEqual(ends, queue_ends(made, end))
    finally:
        result_of(opened.close())
    reader = StoreReader(store, settings)
    try:
        found = audit(reader, end, settings, lambda _: None, [], None)
        case.assertEqual((found.problems, found.missing_keys), ((), 0))
    finally:
        reader.close()


class GeneratedTests(SynchronousTestCase):
    @UNHURRIED
    @given(st.data())
    def test_queues_agree_with_the_log_that_is_left(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        end = data.draw(st.sampled_from([message.end for message in made.messages]))
        with store_of(made) as (store, settings):
            if data.draw(st.booleans(), "whether the node was killed"):
                (store / ABORT_FILE).touch()
                for folder in sorted((store / "consumequeue").glob("*/*")):
                    if data.draw(st.booleans()):
                        cut_queue(folder, data.draw(st.integers(0, 10)))
                (store / NODE_FOLDER / "queue-ends.json").unlink(missing_ok=True)
            NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[made.end] * 4)).write(store)
            done = rewind(settings, end)
            state = NodeState.read(store)
            assert state is not None
            self.assertEqual((done.end, state.offsets.verified), (end, end))
            if end < made.end:
                assert done.kept_in is not None
                self.assertEqual(done.kept_in.read_bytes().rstrip(b"\0"), made.content[end:].rstrip(b"\0"))
            assert_agrees(self, store, settings, made, end)
