"""The options ``--conf`` and ``--set`` of the offline commands: how the node of a store was set up."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.commands import Trouble, settings_of
from rmqha.testing.records import write_log
from tests.cli.test_cli import BODY_BYTES, LOG_BYTES, SEGMENT_SIZE, CommandTestCase
from tests.fixtures import new_folder

QUEUE_FILE_BYTES, SLOTS, ENTRIES = 20 * 64, 128, 512


class SettingsOfTests(SynchronousTestCase):
    """What ``settings_of`` makes of the options."""

    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.conf = self.folder / "broker.conf"

    def test_set_wins_over_the_file(self) -> None:
        self.conf.write_text("maxHashSlotNum = 10\nmaxIndexNum=40\n")
        settings = settings_of(self.folder, self.conf, ("maxHashSlotNum=20",))
        self.assertEqual((settings.max_hash_slot_num, settings.max_index_num), (20, 40))

    def test_the_argument_wins_over_store_path_root_dir(self) -> None:
        self.conf.write_text("storePathRootDir=/elsewhere\n")
        self.assertEqual(settings_of(self.folder, self.conf).store_path_root_dir, self.folder)

    def test_a_log_in_a_folder_of_its_own_belongs_to_the_store_of_the_file(self) -> None:
        log = self.folder / "log"
        self.conf.write_text(f"storePathRootDir={self.folder}\nstorePathCommitLog={log}\n")
        self.assertEqual(settings_of(self.folder, self.conf).commit_log_folder, log)
        copy = self.folder / "copy"
        self.assertEqual(settings_of(copy, self.conf).commit_log_folder, copy / "commitlog")
        self.assertEqual(settings_of(copy, self.conf, (f"storePathCommitLog={log}",)).commit_log_folder, log)

    def test_the_delay_levels_are_those_of_the_stores_node(self) -> None:
        def levels(*sets: str) -> str:
            return str(settings_of(self.folder, self.conf, sets).message_delay_level)

        self.conf.write_text("maxHashSlotNum=10\n")
        default = levels()
        for noted, found in (("1s 2d", "1s 2d"), ("nonsense", default), (None, default)):
            NodeState("1f", delay_levels=noted).write(self.folder)
            self.assertEqual(levels(), found)
        NodeState("1f", delay_levels="1s 2d").write(self.folder)
        self.assertEqual(levels("messageDelayLevel=3h"), "3h")
        self.conf.write_text("messageDelayLevel=7s\n")
        self.assertEqual(levels(), "7s")
        (self.folder / "rmqha" / "state.json").write_text("{")
        self.assertEqual(levels(), "7s")

    def test_what_cannot_be_used_is_wrong_usage(self) -> None:
        self.conf.write_text("maxIndexNum=many\n")
        for conf, sets, named in (
            (self.conf, (), "maxIndexNum=many"),
            (self.folder / "none", (), "none"),
            (None, ("maxIndexNum",), "--set maxIndexNum"),
            (None, ("=1",), "--set =1"),
        ):
            with self.subTest(named):
                trouble = self.assertRaises(Trouble, settings_of, self.folder, conf, sets)
                self.assertEqual(trouble.code, ExitCode.USAGE)
                self.assertIn(named, str(trouble))


class OfflineCommandTests(CommandTestCase):
    """A store whose log lies elsewhere, with files of unusual sizes: only its broker.conf tells."""

    def setUp(self) -> None:
        folder = new_folder(self)
        self.root, self.log, self.conf = folder / "store", folder / "log", folder / "broker.conf"
        self.conf.write_text(
            f"storePathRootDir={self.root}\nstorePathCommitLog={self.log}\nmappedFileSizeCommitLog={SEGMENT_SIZE}\n"
            f"mappedFileSizeConsumeQueue={QUEUE_FILE_BYTES}\nmaxHashSlotNum={SLOTS}\nmaxIndexNum={ENTRIES}\n"
        )
        write_log(self.log, LOG_BYTES, BODY_BYTES, SEGMENT_SIZE)

    def test_each_command_takes_them(self) -> None:
        conf = f"--conf={self.conf}"
        self.root.mkdir()
        self.output_of("recover", self.root, "--apply", conf)
        self.assertIn("queues agree", self.output_of("verify", self.root, conf))
        messages = len(self.output_of("dump", self.root, conf, "--json", "--topic=BenchTopic").splitlines())
        self.assertGreater(messages, 100)
        self.assertIn("BenchTopic", self.output_of("queues", self.root, conf))
        self.output_of("rebuild", self.root, conf)
        self.assertIn(f"{messages} sound messages", self.output_of("job", "verify", self.root, conf))
        self.assertIn("BenchTopic", self.output_of("job", "stats", self.root, conf))
        self.output_of("job", "archive", self.root, conf, "--output", self.root.parent / "lake")
        before = self.derived_files()
        self.output_of("job", "rebuild", self.root, conf)
        self.assertEqual(self.derived_files(), before)
        self.assertIn("queues agree", self.output_of("verify", self.root, conf))

    def derived_files(self) -> dict[str, int]:
        """The sizes of all queue and index files; an index file is named by its time."""
        paths = [path for name in ("consumequeue", "index") for path in (self.root / name).rglob("*") if path.is_file()]
        sizes = {path.stat().st_size for path in paths}
        self.assertEqual(sizes, {QUEUE_FILE_BYTES, 40 + 4 * SLOTS + 20 * ENTRIES})
        return {str(path.relative_to(self.root)): path.stat().st_size for path in paths if "index" not in path.parts}

    def test_a_store_whose_log_is_elsewhere_is_not_read_without(self) -> None:
        """The queues are there, and no log that they belong to."""
        MessageStore(make_settings({"storePathRootDir": str(self.root), "storePathCommitLog": str(self.log)})).close()
        self.assertIn("the log's last is -1", self.complaint(1, "verify", self.root))
        self.assertIn("storePathCommitLog", self.complaint(2, "verify", self.root, "--set=storePathCommitLog=a,b"))

    def test_segments_of_another_size_than_set_are_named(self) -> None:
        message = self.complaint(
            1,
            "dump",
            self.root.parent,
            "--set",
            f"storePathCommitLog={self.log}",
            "--set",
            "mappedFileSizeCommitLog=4096",
        )
        self.assertIn("mappedFileSizeCommitLog says 4096", message)
