"""``rmqha promote --dry-run``: what an operator is told before a promotion."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import orjson
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import ConsumerOffsetTable
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.commands import Trouble
from rmqha.store.restarts import Restart, write_restarts
from rmqha.wire.brokerinfo import NODE_STATE_KEY
from tests.cli.test_cli import CommandTestCase
from tests.fixtures import new_folder
from tests.store.offline.test_prefix import fixed_log, store_of
from tests.store.queues import Writer
from tests.store.test_popinflight import JAVAS_CHECKPOINT, REVIVE

promote_module = import_module("rmqha.cli.promote")


class DryRunTests(CommandTestCase):
    def setUp(self) -> None:
        made = fixed_log()
        self.store_path = new_folder(self) / "store"
        with store_of(made) as (store, _):
            shutil.copytree(store, self.store_path)
        self.end = made.end
        NodeState("1f", role="SLAVE", state="STOPPED", offsets=Offsets(0, *[made.end] * 4)).write(self.store_path)

    def said(self) -> str:
        return self.output_of("promote", self.store_path, "--dry-run")

    def test_groups_that_have_read_what_is_not_here_are_named_with_the_number(self) -> None:
        groups = {f"A@G{number:02}": {0: 30} for number in range(25)}
        ConsumerOffsetTable(groups).write(self.store_path / "config")
        said = self.said()
        self.assertIn("A@G00 queue 0: 30 to 20; it has read 10 messages that are not here", said)
        self.assertIn("and 5 more", said)

    def test_what_was_not_on_the_disk_at_an_unclean_stop_is_named(self) -> None:
        state = NodeState.read(self.store_path)
        assert state is not None
        replace(state, offsets=replace(state.offsets, flushed=self.end - 300)).write(self.store_path)
        self.assertNotIn("unclean stop", self.said())
        (self.store_path / "abort").touch()
        self.assertIn("the last 300 bytes were not certainly on the disk at an unclean stop", self.said())

    def test_topics_that_the_old_master_may_have_deleted_are_named(self) -> None:
        write_restarts(self.store_path, {f"T{number:02}": Restart(0, 0) for number in range(25)})
        said = self.said()
        self.assertIn("has not said whether it had deleted T00, T01, ", said)
        self.assertIn("T19 and 5 more, of which a queue starts again from 0", said)


class PoppedTests(CommandTestCase):
    """POP consumers of a 5.x master hold messages of the store."""

    def test_a_promotion_says_so_and_wants_a_switch_that_is_not_force(self) -> None:
        store = new_folder(self) / "store"
        settings = make_settings({"storePathRootDir": str(store), "mappedFileSizeCommitLog": "65536"})
        opened = MessageStore(settings)
        Writer(opened.commit_log).put(REVIVE, 0, JAVAS_CHECKPOINT.encode(), TAGS="ck")
        opened.derived.dispatcher.catch_up()
        opened.close_now()
        end = opened.commit_log.max_offset
        NodeState("1f", role="SLAVE", state="STOPPED", offsets=Offsets(0, *[end] * 4)).write(store)
        said = self.output_of("promote", store, "--dry-run")
        self.assertIn("3 messages are with POP consumers", said)
        self.assertIn("wants --abandon-popped", said)
        for options in ((), ("--force",)):
            refused = self.run_command("promote", store, *options)
            self.assertEqual(refused.exit_code, ExitCode.IN_USE)
            self.assertIn("--abandon-popped promotes it anyway", refused.output)
        self.assertIn("They were abandoned", self.output_of("promote", store, "--abandon-popped"))


class LyingNodeTests(SynchronousTestCase):
    """A node at an address may answer anything."""

    def promoted(self, state: str, store: str) -> str:
        def asked(answer: dict[str, str]) -> Callable[..., Deferred[dict[str, str]]]:
            return lambda *_: succeed(answer)

        self.patch(promote_module, "ask_config", asked({"storePathRootDir": store}))
        self.patch(promote_module, "ask_runtime_info", asked({NODE_STATE_KEY: state}))
        finding = Deferred.fromCoroutine(promote_module._store_of("h:1", cast(Any, None), None))
        return str(self.failureResultOf(finding, Trouble).value)

    def test_it_gets_one_sentence(self) -> None:
        sound = orjson.dumps(NodeState("1f").as_json()).decode()
        for state, store in (("", "/x"), ("{", "/x"), ("[]", "/x"), ('{"storeId": 1}', "/x"), ("null", "/x")):
            with self.subTest(state):
                self.assertIn("h:1 does not say what a node says", self.promoted(state, store))
        for store in ("/x\0y", "", "x" * 5000, "/proc/self/mem"):
            with self.subTest(store):
                self.assertIn("runs on another machine", self.promoted(sound, store))
