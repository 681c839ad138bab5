"""Sizes that a master tells, and nobody can use, are refused in words (attack findings D9)."""

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.asking import segment_size_of
from rmqha.settings.settings import SettingsError, make_settings
from rmqha.store.messagestore import MessageStore
from tests.fixtures import new_folder

REFUSED = {
    "mappedFileSizeConsumeQueue": ("-20", "0", "7", "2147483647", "9" * 30, "9" * 5000, "x", ""),
    "maxHashSlotNum": ("-1", "0", "300000000", "2147483648", "9" * 5000),
    "maxIndexNum": ("-1", "0", "1", "300000000", "2147483648"),
}


class AdoptedSizesTests(SynchronousTestCase):
    def setUp(self) -> None:
        texts = {"brokerRole": "SLAVE", "storePathRootDir": str(new_folder(self) / "store")}
        self.settings = make_settings(texts)

    def test_none_of_these_is_adopted_and_the_store_stays_openable(self) -> None:
        store = MessageStore(self.settings)
        for key, values in REFUSED.items():
            for value in values:
                with capturedLogs() as logs:
                    store.adopt_derived_file_settings({key: value})
                (event,) = [event for event in logs if "file sizes" in event["log_format"]]
                self.assertIn(key, event["error"])
                self.assertEqual(store.settings, self.settings)
        with capturedLogs() as logs:
            store.adopt_derived_file_settings({"mappedFileSizeConsumeQueue": "20"})
        self.assertIn("mappedFileSizeConsumeQueue=20 ", logs[0]["error"])
        with capturedLogs() as logs:
            store.adopt_derived_file_settings({"maxHashSlotNum": "50000000", "maxIndexNum": "100000000"})
        self.assertEqual(len([event for event in logs if "file sizes" in event["log_format"]]), 1, "together too large")
        self.successResultOf(store.close())
        self.successResultOf(MessageStore(self.settings).close())

    def test_nor_by_our_own_settings(self) -> None:
        for key, values in REFUSED.items():
            for value in values:
                with self.assertRaisesRegex(SettingsError, key):
                    make_settings({key: value})

    def test_a_segment_must_be_one(self) -> None:
        for value in ("7", "-1", "0", "2147483648", "9" * 5000, "x"):
            with capturedLogs() as logs:
                self.assertIsNone(segment_size_of({"mappedFileSizeCommitLog": value}))
            self.assertEqual([event["size"] for event in logs], [value[:40]])
        self.assertEqual(segment_size_of({"mappedFileSizeCommitLog": "1073741824"}), 1 << 30)
        self.assertIsNone(segment_size_of({}))
