"""``rmqha/state.json``: what a node tells those outside of its process."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK
from rmqha.store.nodestate import NodeState, Offsets, state_path
from tests import examples
from tests.fixtures import new_folder

COUNTS = st.integers(0, 2**63 - 1)
STATES = st.builds(
    NodeState,
    store_id=st.text("0123456789abcdef", min_size=32, max_size=32),
    epoch=COUNTS,
    epoch_start=COUNTS,
    role=st.sampled_from(("", "SLAVE")),
    state=st.sampled_from(("", "IN_SYNC")),
    offsets=st.builds(Offsets, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    lag_bytes=st.none() | COUNTS,
    lag_seconds=st.none() | st.floats(0, 1e6),
    peers=st.lists(st.dictionaries(st.sampled_from(("address", "offset")), COUNTS)).map(tuple),
    master=st.none() | st.just("broker-a:10912"),
    last_contact=st.none() | st.just("2026-11-22T10:00:00.000Z"),
    since=st.none() | st.just("2026-11-22T09:00:00.000Z"),
    reason=st.none() | st.text("abc ", max_size=5),
    tables=st.none() | st.dictionaries(st.sampled_from(("inSync", "reason")), st.none() | st.booleans()),
    warnings=st.lists(st.text("abc ", max_size=5), max_size=3).map(tuple),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


class NodeStateTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self)

    @settings(deadline=None, max_examples=examples(60))
    @given(STATES)
    def test_what_is_written_is_read(self, state: NodeState) -> None:
        self.patch(os, "fsync", lambda fd: None)
        state.write(self.store)
        self.assertEqual(NodeState.read(self.store), state)

    def test_the_file_has_the_promised_names(self) -> None:
        NodeState("id", 2, 50, "SLAVE", "IN_SYNC", Offsets(1, 5, 4, 3, 2)).write(self.store)
        content = json.loads((self.store / "rmqha" / "state.json").read_text())
        promised = {
            "storeId": "id",
            "epoch": 2,
            "epochStart": 50,
            "role": "SLAVE",
            "state": "IN_SYNC",
            "min": 1,
            "written": 5,
            "verified": 4,
            "flushed": 3,
            "confirmed": 2,
        }
        self.assertEqual({name: content[name] for name in promised}, promised)

    def test_what_an_older_node_wrote_is_read(self) -> None:
        later = ("master", "lastContact", "since", "reason", "tables", "warnings")
        state = NodeState("id", 2, 50, "SLAVE", "IN_SYNC", Offsets(1, 5, 4, 3, 2), lag_bytes=7)
        old = {name: value for name, value in state.as_json().items() if name not in later}
        self.write_raw(json.dumps(old).encode())
        self.assertEqual(NodeState.read(self.store), state)

    def test_a_store_without_a_node_has_none(self) -> None:
        self.assertIsNone(NodeState.read(self.store))
        self.assertIsNone(NodeState.read(self.store / "none"))

    def test_each_new_store_is_another(self) -> None:
        first, second = NodeState.new(), NodeState.new()
        self.assertNotEqual(first.store_id, second.store_id)
        self.assertEqual(replace(first, store_id=""), NodeState(""))

    def write_raw(self, content: bytes) -> None:
        path = state_path(self.store)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def test_a_file_that_is_no_state_is_refused_by_name(self) -> None:
        whole = NodeState.new().as_json()
        without = [{k: v for k, v in whole.items() if k != name} for name in ("storeId", "epoch", "min", "confirmed")]
        for content in (
            b"",
            b"\0" * 20,
            b"{",
            b"[]",
            b"5",
            b"null",
            b'"text"',
            b"\xff",
            *(json.dumps(some).encode() for some in without),
            json.dumps({**whole, "epoch": "many"}).encode(),
            json.dumps({**whole, "written": None}).encode(),
            json.dumps({**whole, "peers": 5}).encode(),
        ):
            self.write_raw(content)
            with self.assertRaises(StoreError, msg=repr(content)) as caught:
                NodeState.read(self.store)
            self.assertIn(str(state_path(self.store)), str(caught.exception))

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(200))
    @given(st.sampled_from(sorted(NodeState.new().as_json())), JSON_VALUES)
    def test_any_field_gone_wrong_is_a_state_or_is_refused(self, name: str, value: object) -> None:
        self.write_raw(json.dumps({**NodeState.new().as_json(), name: value}).encode())
        try:
            found = NodeState.read(self.store)
        except StoreError:
            return
        self.assertIsInstance(found, NodeState)

    def test_bytes_taken_back_begin_a_new_epoch_if_they_were_confirmed(self) -> None:
        state = NodeState("id", epoch=3, epoch_start=10, offsets=Offsets(confirmed=1000))
        for end in (1000, 1001, 5000):
            self.assertIs(state.after_loss(end), state)
        for end in (999, 0):
            after = state.after_loss(end)
            self.assertEqual((after.epoch, after.epoch_start, after.store_id), (4, end, "id"))


class ReplaceFileTests(SynchronousTestCase):
    """Whole or not at all."""

    def setUp(self) -> None:
        self.path = new_folder(self) / "folder" / "file.json"

    def test_content_is_replaced_and_nothing_else_is_left(self) -> None:
        DISK.replace(self.path, b"long first content")
        DISK.replace(self.path, b"second")
        self.assertEqual(self.path.read_bytes(), b"second")
        self.assertEqual(os.listdir(self.path.parent), ["file.json"])

    def test_content_is_durable_before_it_counts_and_the_name_is_durable_after(self) -> None:
        events: list[str] = []
        rename = Path.rename

        def fsync(fd: int) -> None:
            name = os.readlink(f"/proc/self/fd/{fd}")
            content = Path(name).read_bytes() if Path(name).is_file() else b""
            events.append(f"fsync {Path(name).name} {content!r}")

        def renamed(path: Path, target: Path) -> Path:
            events.append(f"rename to {target.name}")
            return rename(path, target)

        self.patch(os, "fsync", fsync)
        self.patch(Path, "rename", renamed)
        DISK.replace(self.path, b"new")
        self.assertEqual(events, ["fsync file.json.tmp b'new'", "rename to file.json", "fsync folder b''"])

    def test_a_disk_that_refuses_leaves_the_old_content(self) -> None:
        def refuse(fd: int) -> None:
            raise OSError(5, "input/output error")

        DISK.replace(self.path, b"old")
        self.patch(os, "fsync", refuse)
        with self.assertRaises(OSError):
            DISK.replace(self.path, b"new")
        self.assertEqual(self.path.read_bytes(), b"old")
