"""The runner of RocketMQ's own tests: what it runs, reads and counts."""

import struct
from collections import Counter
from itertools import chain

from twisted.trial.unittest import SynchronousTestCase

from tests.fixtures import new_folder
from tests.peer.__main__ import KINDS, STORE_NOTHING, read_part
from tests.peer.running import PREFIX, Result, classes_of, part_of, read_result, user_topics


class PeerTests(SynchronousTestCase):
    def test_each_class_is_in_one_of_the_parts(self) -> None:
        classes = classes_of("masters")
        thirds = [part_of(classes, part, 3) for part in (1, 2, 3)]
        self.assertEqual(Counter(chain(*thirds)), Counter(classes))
        self.assertLess(max(map(len, thirds)) - min(map(len, thirds)), 2)
        self.assertEqual(set(map(Counter(classes).get, classes)), {1})

    def test_classes_that_store_nothing_are_run(self) -> None:
        self.assertLess({PREFIX + name for name in STORE_NOTHING}, set(classes_of("pairs")))
        self.assertEqual({kind: len(classes_of(kind)) for kind in KINDS}["tls"], 3)

    def test_parts(self) -> None:
        self.assertEqual(read_part("2/3"), (2, 3))
        for wrong in ("0/3", "4/3", "1", "a/b"):
            self.assertRaises(ValueError, read_part, wrong)

    def test_results(self) -> None:
        line = f"@@R\t{PREFIX}smoke.IT\ttestA\tFAIL\t2.5\tjava.lang.AssertionError\n"
        self.assertEqual(read_result(line), Result("smoke.IT.testA", "FAIL", 2.5, "java.lang.AssertionError"))
        self.assertIsNone(read_result(f"@@DONE\t{PREFIX}smoke.IT\n"))
        self.assertIsNone(read_result("what a test prints\n"))

    def test_messages_of_users_are_counted_by_units_of_their_queues(self) -> None:
        store = new_folder(self)
        for topic in ("Orders", "%RETRY%group", "RMQ_SYS_TRANS_HALF_TOPIC"):
            for queue, count in (("0", 2), ("1", 1)):
                folder = store / "consumequeue" / topic / queue
                folder.mkdir(parents=True)
                units = struct.pack(">qiq", 0, 100, -1) * count + bytes(20 * 3)
                (folder / f"{0:020d}").write_bytes(units)
        self.assertEqual(user_topics(store), {"Orders": 3})
