"""kvConfig.json: texts by namespace and key, which outlive the process."""

from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from rmqha.namesrv.kvconfig import FILE_NAME, MAX_CHARACTERS, MAX_TEXTS, KVConfigManager, TableFull
from rmqha.store.errors import StoreError

FROM_JAVA = b"""{
\t"configTable":{
\t\t"ORDER_TOPIC_CONFIG":{
\t\t\t"T":"broker-a:4"
\t\t}
\t}
}"""


class KVConfigTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp())

    def test_what_was_put_is_there_until_it_is_deleted(self) -> None:
        config = KVConfigManager(None)
        config.put("N", "k", "v")
        config.put("N", "k", "w")
        config.put("N", "other", "")
        self.assertEqual((config.get("N", "k"), config.get("N", "none"), config.get("M", "k")), ("w", None, None))
        self.assertEqual(config.namespace("N"), {"k": "w", "other": ""})
        config.delete("N", "k")
        config.delete("M", "k")
        self.assertEqual((config.namespace("N"), config.namespace("M")), ({"other": ""}, {}))

    def test_it_outlives_the_process(self) -> None:
        config = KVConfigManager(self.folder)
        config.put("N", "k", "käse")
        config.put("N", "gone", "v")
        config.delete("N", "gone")
        self.assertEqual(KVConfigManager(self.folder).namespace("N"), {"k": "käse"})

    def test_nothing_is_written_before_there_is_something_to_keep(self) -> None:
        KVConfigManager(self.folder)
        self.assertFalse(self.folder.exists())

    def test_the_file_is_as_java_has_it(self) -> None:
        KVConfigManager(self.folder).put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
        path = self.folder / FILE_NAME
        self.assertEqual(path.read_bytes(), FROM_JAVA)
        self.assertEqual(KVConfigManager(self.folder).get("ORDER_TOPIC_CONFIG", "T"), "broker-a:4")

    def test_a_file_that_is_something_else_is_refused(self) -> None:
        self.folder.mkdir()
        for content in (b"", b"[]", b"{}", b'{"configTable":[]}', b'{"configTable":{"N":"text"}}', b"\xff"):
            with self.subTest(content):
                (self.folder / FILE_NAME).write_bytes(content)
                error = self.assertRaises(StoreError, KVConfigManager, self.folder)
                self.assertIn(FILE_NAME, str(error))

    def test_texts_that_come_during_a_write_share_the_next_one(self) -> None:
        """2,000 texts took 15 s: each wrote the whole table (attack finding D9)."""
        writes: list[tuple[Callable[[], None], Deferred[None]]] = []

        def run_in_thread(function: Callable[[], None], /) -> Deferred[None]:
            writes.append((function, Deferred()))
            return writes[-1][1]

        config = KVConfigManager(self.folder, run_in_thread)
        answers = [config.put("N", f"k{number}", "v") for number in range(2000)]
        for count in (1, 2):
            self.assertEqual(len(writes), count)
            write, done = writes[-1]
            write()
            done.callback(None)
            self.assertEqual(sum(answer.called for answer in answers), (1, 2000)[count - 1])
        self.assertEqual((len(writes), len(KVConfigManager(self.folder).namespace("N"))), (2, 2000))

    def test_a_write_that_fails_is_told_to_all_that_wait_for_it(self) -> None:
        def run_in_thread(_: Callable[[], None], /) -> Deferred[None]:
            return fail(OSError("no room"))

        self.failureResultOf(KVConfigManager(self.folder, run_in_thread).put("N", "k", "v"), OSError)

    def test_there_is_room_for_so_many(self) -> None:
        config = KVConfigManager(None)
        for number in range(MAX_TEXTS):
            config.put("N", str(number), "")
        with self.assertRaises(TableFull):
            config.put("N", "more", "")
        config.put("N", "0", "changed")
        config.delete("N", "1")
        config.put("N", "more", "")
        with self.assertRaises(TableFull):
            config.put("N", "0", "x" * MAX_CHARACTERS)
