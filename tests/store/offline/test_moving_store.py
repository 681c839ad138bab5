"""What commands say of a store that moves while they look: between any two of their reads its node takes messages."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from rmqha.cli import main
from rmqha.kit.progress import NO_BAR, OffsetBar
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.verify import verify, verify_queues
from rmqha.settings.settings import Settings
from rmqha.store.log.mappedfile import Disk, PagesRead
from rmqha.store.message import Message
from rmqha.store.nodestate import state_path
from rmqha.store.retention import Retention
from tests.pipeline.lake import options_of
from tests.store.test_put import SEGMENT_SIZE, PutTestCase

READS = ("list_segments", "open_segment", "folders_in", "files_in", "size", "read", "open_pages", "open_view")
FIRST_MOVES, MAX_MOVES = 12, 60
EXPIRED_SEGMENTS = 3
COMMANDS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "{store}", "--json"),
    "verify --against": ("verify", "{store}", "--against", "{store}", "--json"),
    "dump": ("dump", "{store}", "--json"),
    "queues": ("queues", "{store}", "--json"),
    "status": ("status", "{store}"),
    "doctor": ("doctor", "{store}"),
    "query": ("query", "{store}", "--topic", "A", "--key", "k3"),
}


class MovingStoreTests(PutTestCase):
    """Has a store that is in use, and whose node takes messages and deletes expired files whenever somebody reads."""

    settings = replace(PutTestCase.settings, mapped_file_size_consume_queue=100, max_index_num=40)
    is_told = True
    """Whether the node writes state.json each time; it does so once a second."""
    expires = False

    def setUp(self) -> None:
        self.patch(os, "fsync", lambda _: None)  # nothing is to survive a power cut here
        super().setUp()
        self.is_moving = False
        self.moves = 0
        for _ in range(FIRST_MOVES):
            self.move()
        self.tell()

    def move(self) -> None:
        """Messages of old and new queues, with keys; sometimes the oldest files go."""
        self.moves += 1
        for number in range(3):
            properties = {"KEYS": f"k{self.moves % 7}", "UNIQ_KEY": f"{self.moves}-{number}"}
            topic = "AB"[number % 2] if number < 2 else f"N{self.moves % 11}"
            message = Message(topic, b"x" * 150, queue_id=self.moves % 2, properties=properties)
            self.put(message)
        for _ in range(8):
            self.clock.advance(0.06)
        is_long = len(self.log.segment_bases) > 2 and self.log.min_offset < EXPIRED_SEGMENTS * SEGMENT_SIZE
        if self.expires and self.moves > FIRST_MOVES and is_long:
            self.log.delete_first_segment()
            derived = self.store.derived
            Retention(self.log, derived.queues, derived.index, Settings()).delete_derived()
        if self.is_told:
            self.tell()

    def tell(self) -> None:
        dispatched = self.store.derived.dispatcher.written_until
        state = replace(self.store.node_state, role="ASYNC_MASTER", state="RUNNING", dispatched=dispatched)
        replace(state, offsets=self.store.offsets(self.log.verified_offset)).write(self.root)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Before and after each read of somebody else the store moves."""
        before = self.moves

        def hooked(read: Callable[..., Any]) -> Callable[..., Any]:
            def hooked_read(*arguments: Any, **named: Any) -> Any:
                if self.is_moving or self.moves > MAX_MOVES:
                    return read(*arguments, **named)
                self.move_once()
                try:
                    self.is_moving = True  # a read may read itself
                    found = read(*arguments, **named)
                finally:
                    self.is_moving = False
                self.move_once()
                return found

            return hooked_read

        patches = [patch.object(Disk, name, hooked(getattr(Disk, name))) for name in READS]
        patches.append(patch.object(PagesRead, "read", hooked(PagesRead.read)))
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()
        self.assertGreater(self.moves, before, "it has not moved")

    def move_once(self) -> None:
        self.is_moving = True
        try:
            self.move()
        finally:
            self.is_moving = False

    def begin_again(self) -> None:
        self.stores.remove(self.store)
        self.store._release(None)
        self.open_new()
        self.moves = 0
        for _ in range(FIRST_MOVES):
            self.move()

    def check_all(self) -> None:
        for name, arguments in COMMANDS.items():
            with self.subTest(name):
                self.begin_again()
                with self.moving():
                    result = CliRunner().invoke(main, [each.format(store=self.root) for each in arguments])
                allowed = (0, 1) if name == "doctor" else (0,)  # what it says of the machine does not count
                self.assertIn(result.exit_code, allowed, f"{result.output} {result.exception!r}")
                self.assertNotIn("rebuild", result.output)
                if name.startswith("verify"):
                    found = json.loads(result.stdout)
                    self.assertEqual(
                        (found["queueProblems"], found["missingKeys"], found["badStretchCount"]), (0, 0, 0)
                    )
                    self.assertGreater(found["queuesBuiltUntil"], 0)
        with self.subTest("job verify"):
            self.begin_again()
            options = options_of(self.root)
            with self.moving():
                proof = verify(options, LocalEngine())
                found = verify_queues(options, proof, OffsetBar(NO_BAR, 0, 0))
            self.assertEqual((proof.problem, list(found.problems(self.root))), (None, []))

    @pytest.mark.long
    def test_a_node_that_tells_each_time(self) -> None:
        self.check_all()

    @pytest.mark.long
    def test_a_node_that_told_once(self) -> None:
        self.is_told = False
        self.check_all()

    @pytest.mark.long
    def test_a_node_that_deletes_expired_files(self) -> None:
        self.expires = True
        self.check_all()

    @pytest.mark.long
    def test_a_broker_that_tells_nothing(self) -> None:
        """As a Java broker does: each message is in its queue and in the index before the next one."""
        self.is_told = False
        self.patch(type(self), "tell", lambda _: None)
        self.check_all()
        self.assertFalse(state_path(self.root).exists())
