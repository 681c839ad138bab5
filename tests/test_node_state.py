"""What a node tells of itself in state.json, without a process."""

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.node import Node, NodePlan
from rmqha.settings import make_settings
from rmqha.store.messagestore import MessageStore
from tests.fixtures import new_folder
from tests.ha.doubles import make_image

IMAGE = make_image([300] * 6)


class ConfirmedTests(SynchronousTestCase):
    """Readers outside go no further than ``confirmed``: no power loss may take it back."""

    def test_a_slaves_confirmed_is_not_beyond_what_is_flushed_and_proved(self) -> None:
        settings = make_settings(
            {"storePathRootDir": str(new_folder(self)), "brokerRole": "SLAVE", "mappedFileSizeCommitLog": "4096"}
        )
        store = MessageStore(settings)
        self.addCleanup(lambda: self.successResultOf(store.close()))
        node = Node(NodePlan(settings), MemoryReactorClock(), lambda *_: None)
        node._store = store
        log = store.commit_log
        flushed = IMAGE.messages[2]
        log.append_data(0, IMAGE.bytes_at(0, flushed))
        log.verify()
        log.sync()
        log.append_data(flushed, IMAGE.bytes_at(flushed, IMAGE.messages[4]))
        log.verify()
        self.assertEqual(node.state().offsets.verified, IMAGE.messages[4])
        self.assertEqual((node.state().offsets.flushed, node.state().offsets.confirmed), (flushed, flushed))
        log.append_data(IMAGE.messages[4], IMAGE.bytes_at(IMAGE.messages[4], IMAGE.messages[4] + 50))
        log.sync()
        self.assertEqual(node.state().offsets.flushed, IMAGE.messages[4] + 50)
        self.assertEqual(node.state().offsets.confirmed, IMAGE.messages[4], "half a record is no record")
