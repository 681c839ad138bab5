"""The tables of ``config/*.json``, and those that real brokers wrote."""

import gzip
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.errors import StoreError
from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConfigTable,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicFilterType,
    topic_at_group,
)
from rmqha.wire.beans import MAX_UNKNOWN_DEPTH
from rmqha.wire.fastjson import dumps_compact, dumps_pretty, dumps_strict, loads_lenient
from tests import examples
from tests.fixtures import DATA, STORES, new_folder, unpacked
from tests.strategies import INT32, INT64

TABLES: tuple[type[ConfigTable], ...] = (
    TopicConfigTable,
    SubscriptionGroupTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
)

NAMES = st.text("aZ09_-%|", min_size=1, max_size=6) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
VERSIONS = st.builds(DataVersion, INT64, INT64)
TOPICS = st.builds(TopicConfig, NAMES, INT32, INT32, INT32, st.sampled_from(TopicFilterType), INT32, st.booleans())
GROUPS = st.builds(
    SubscriptionGroupConfig,
    NAMES,
    consume_enable=st.booleans(),
    consume_from_min_enable=st.booleans(),
    consume_broadcast_enable=st.booleans(),
    retry_queue_nums=INT32,
    retry_max_times=INT32,
    broker_id=INT64,
    which_broker_when_consume_slowly=INT64,
    notify_consumer_ids_changed_enable=st.booleans(),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
UNKNOWN = st.dictionaries(KEYS.map("x.{}".format) | st.just("attributes"), ANY_JSON, max_size=4)
OFFSETS = st.dictionaries(INT32, INT64, max_size=3)
ANY_TABLE: st.SearchStrategy[ConfigTable] = st.one_of(
    st.builds(TopicConfigTable, VERSIONS, st.dictionaries(NAMES, TOPICS, max_size=3)),
    st.builds(SubscriptionGroupTable, VERSIONS, st.dictionaries(NAMES, GROUPS, max_size=3)),
    st.builds(ConsumerOffsetTable, st.dictionaries(NAMES, OFFSETS, max_size=3)),
    st.builds(DelayOffsetTable, OFFSETS),
)

FIRST, SECOND = DelayOffsetTable({1: 10}), DelayOffsetTable({1: 20, 3: 4})
DELAY_FILE, DELAY_BACKUP = "delayOffset.json", "delayOffset.json.bak"


@cache
def broker_said(store: str) -> dict[str, Any]:
    """What the broker of this store answered shortly before its end."""
    name = "expected-queues-clean" if store == "master-clean" else "expected-queues"
    with gzip.open(DATA / f"{name}.json.gz") as file:
        content: dict[str, Any] = json.load(file)
    return content


class JavaFilesTests(SynchronousTestCase):
    """The config folders of the fixtures."""

    def test_each_is_written_again_as_java_wrote_it(self) -> None:
        seen = 0
        for store in STORES:
            for table in TABLES:
                # What a slave got as an answer it stores as it came.
                dumps = dumps_compact if (store, table) == ("slave", DelayOffsetTable) else dumps_pretty
                for suffix in ("", ".bak"):
                    raw = (unpacked(store) / CONFIG_FOLDER / (table.FILE_NAME + suffix)).read_bytes()
                    written = dumps(table.from_json(loads_lenient(raw)).to_json())
                    self.assertEqual(written, raw, f"{store} {table.FILE_NAME}{suffix}")
                    seen += 1
        self.assertEqual(seen, 24)

    def test_topics_are_what_the_broker_said(self) -> None:
        for store in STORES:
            found = TopicConfigTable.read(unpacked(store) / CONFIG_FOLDER).topic_config_table
            said = {
                name: TopicConfig(
                    topic_name=name,
                    read_queue_nums=topic["readQueueNums"],
                    write_queue_nums=topic["writeQueueNums"],
                    perm=topic["perm"],
                    topic_filter_type=TopicFilterType(topic["topicFilterType"]),
                    topic_sys_flag=topic["topicSysFlag"],
                    order=topic["order"],
                )
                for name, topic in broker_said(store)["topics"].items()
            }
            self.assertEqual(found, said, store)
            self.assertEqual(found["TTelemetry_8"].read_queue_nums, 8)

    def test_offsets_are_what_the_broker_said(self) -> None:
        for store in STORES:
            consumed = ConsumerOffsetTable.read(unpacked(store) / CONFIG_FOLDER).offset_table
            said = broker_said(store)["consumerOffsets"]
            self.assertEqual(consumed, {key: {int(q): at for q, at in queues.items()} for key, queues in said.items()})
            self.assertEqual(consumed[topic_at_group("TPay-4", "CG_commit")], {0: 108, 1: 145, 2: 118, 3: 226})
            delayed = DelayOffsetTable.read(unpacked(store) / CONFIG_FOLDER)
            self.assertEqual(delayed, DelayOffsetTable.from_json(loads_lenient(broker_said(store)["delayOffsetsRaw"])))
        self.assertEqual(delayed.offset_table, {1: 24, 3: 27})

    def test_versions_and_groups_are_those_of_the_master(self) -> None:
        master, slave = (unpacked(store) / CONFIG_FOLDER for store in ("master-crash", "slave"))
        topics = TopicConfigTable.read(master)
        self.assertEqual(topics.data_version, DataVersion(14, 1795205931873))
        self.assertEqual(TopicConfigTable.read(slave), topics)
        groups = SubscriptionGroupTable.read(master)
        self.assertEqual(groups.data_version, DataVersion(4, 1795205930896))
        self.assertEqual(SubscriptionGroupTable.read(slave), groups)
        self.assertEqual(groups.subscription_group_table["CG_pull"], SubscriptionGroupConfig("CG_pull"))
        self.assertEqual(len(groups.subscription_group_table), 11)


class FormTests(SynchronousTestCase):
    def test_a_version_follows_the_one_before(self) -> None:
        self.assertEqual(DataVersion(7, 5).next(1795200000000), DataVersion(8, 1795200000000))
        self.assertEqual(DataVersion(7, 5), DataVersion(7, 5))
        self.assertNotEqual(DataVersion(7, 5), DataVersion(7, 6))
        self.assertNotEqual(DataVersion(7, 5), DataVersion(8, 5))

    def test_what_lacks_is_java_s_default(self) -> None:
        empty: tuple[ConfigTable, ...] = (
            TopicConfigTable(DataVersion(0, 0), {}),
            SubscriptionGroupTable(DataVersion(0, 0), {}),
            ConsumerOffsetTable({}),
            DelayOffsetTable({}),
        )
        for table in empty:
            self.assertEqual(type(table).from_json({}), table)
            self.assertEqual(type(table).from_json(dict.fromkeys(table.KNOWN)), table)
        topic = {
            "order": False,
            "perm": 6,
            "readQueueNums": 16,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "T",
            "topicSysFlag": 0,
            "writeQueueNums": 16,
        }
        group = {
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "groupName": "G",
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": 16,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        self.assertEqual(TopicConfig.from_json({}, "T").to_json(), topic)
        self.assertEqual(TopicConfig.from_json(dict.fromkeys(topic), "T").to_json(), topic)
        self.assertEqual(SubscriptionGroupConfig.from_json({}, "G").to_json(), group)
        self.assertEqual(SubscriptionGroupConfig.from_json(dict.fromkeys(group), "G").to_json(), group)

    def test_every_field_has_its_place(self) -> None:
        topic = {
            "order": True,
            "perm": 7,
            "readQueueNums": 2,
            "topicFilterType": "MULTI_TAG",
            "topicName": "T",
            "topicSysFlag": 3,
            "writeQueueNums": 1,
        }
        found = TopicConfig.from_json(topic)
        self.assertEqual(found, TopicConfig("T", 2, 1, 7, TopicFilterType.MULTI_TAG, 3, True))
        self.assertEqual(list(found.to_json().items()), list(topic.items()))
        numbers = {"brokerId": 2**40, "retryMaxTimes": 5, "retryQueueNums": 6, "whichBrokerWhenConsumeSlowly": 7}
        group = SubscriptionGroupConfig("G", retry_max_times=5, retry_queue_nums=6, broker_id=2**40)
        for java_name, name in (
            ("consumeBroadcastEnable", "consume_broadcast_enable"),
            ("consumeEnable", "consume_enable"),
            ("consumeFromMinEnable", "consume_from_min_enable"),
            ("notifyConsumerIdsChangedEnable", "notify_consumer_ids_changed_enable"),
        ):
            found_group = SubscriptionGroupConfig.from_json({**numbers, "groupName": "G", java_name: False})
            self.assertFalse(getattr(found_group, name), java_name)
            self.assertEqual(found_group.to_json(), {**group.to_json(), **numbers, java_name: False})
            self.assertEqual(list(found_group.to_json()), sorted(found_group.to_json()))

    def test_what_5_x_adds_is_kept(self) -> None:
        attributes = {"message.type": "FIFO", "reserve.time": "-1"}
        content: dict[str, Any] = {
            "dataVersion": {"counter": 3, "stateVersion": 9, "timestamp": 4},
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 7},
            "topicConfigTable": {"T": {"attributes": attributes, "perm": 4, "topicName": "T"}},
        }
        topics = TopicConfigTable.from_json(content)
        self.assertEqual(topics.topic_config_table["T"], TopicConfig("T", perm=4, unknown={"attributes": attributes}))
        self.assertEqual(topics.data_version, DataVersion(3, 4, unknown={"stateVersion": 9}))
        self.assertNotEqual(topics.data_version, DataVersion(3, 4), "a slave that dropped it fetches the table again")
        written = topics.to_json()
        self.assertEqual(list(written), ["dataVersion", "mappingDataVersion", "topicConfigTable"])
        self.assertEqual(written["dataVersion"], content["dataVersion"])
        self.assertEqual(written["topicConfigTable"]["T"]["attributes"], attributes)
        self.assertEqual(topics.data_version.next(8).to_json(), {"counter": 4, "stateVersion": 9, "timestamp": 8})
        offsets = {"dataVersion": {"counter": 1, "stateVersion": 2}, "offsetTable": {"T@G": {0: 1}}}
        for kind, table in ((ConsumerOffsetTable, offsets), (DelayOffsetTable, {**offsets, "offsetTable": {1: 2}})):
            self.assertEqual(kind.from_json(table).to_json(), table)

    def test_of_a_version_from_a_stranger_a_number_is_kept(self) -> None:
        version = DataVersion.from_stranger({"counter": 1, "stateVersion": 2, "timestamp": 3, "junk": "x" * 999})
        self.assertEqual(version.to_json(), {"counter": 1, "stateVersion": 2, "timestamp": 3})
        for content in ({"stateVersion": "x" * 999}, {}, None):
            self.assertEqual(DataVersion.from_stranger(content), DataVersion())

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(200))
    @given(st.data())
    def test_any_unknown_field_at_any_level_is_read_written_and_served_again(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(TABLES))
        content = kind.from_json({}).to_json() | data.draw(UNKNOWN)
        for name, rows in (("topicConfigTable", TOPICS), ("subscriptionGroupTable", GROUPS)):
            if name in content:
                drawn = data.draw(st.dictionaries(NAMES, st.tuples(rows, UNKNOWN), max_size=3))
                content[name] = {key: row.to_json() | unknown for key, (row, unknown) in drawn.items()}
                content["dataVersion"] = data.draw(VERSIONS).to_json() | data.draw(UNKNOWN)
        folder = new_folder(self)
        kind.from_json(content).write(folder)
        table = kind.read(folder)
        self.assertEqual(table.to_json(), content)
        self.assertEqual(table.snapshot().to_json(), content)
        self.assertEqual(loads_lenient(dumps_strict(table.to_json())), content)
        if isinstance(table, TopicConfigTable):
            self.assertEqual(table.changed(table.data_version, table.rows).to_json(), content)

    def test_an_unknown_field_that_could_not_be_written_again_is_refused(self) -> None:
        deep: Any = 1
        for _ in range(MAX_UNKNOWN_DEPTH):
            deep = [deep]
        for kind in TABLES:
            kind.from_json({"x": deep}).write(new_folder(self))
            with self.assertRaisesRegex(ValueError, "'x' is nested more than 64 deep"):
                kind.from_json({"x": {"y": deep}})

    def test_what_java_converts_is_converted(self) -> None:
        topic = TopicConfig.from_json({"perm": "4", "order": "true", "topicFilterType": "TAGLESS"}, "T")
        self.assertEqual(topic, TopicConfig("T", perm=4, order=True))
        self.assertFalse(TopicConfig.from_json({"order": "false"}).order)
        for keys in ('{0:5,"1":6}', '{"0":"5","1":"6"}'):
            table = DelayOffsetTable.from_json({"offsetTable": loads_lenient(keys)})
            self.assertEqual(table.offset_table, {0: 5, 1: 6})

    def test_what_is_no_table_is_refused(self) -> None:
        for table in TABLES:
            no_tables: tuple[Any, ...] = (None, [], 5, "{}", True)
            for other in no_tables:
                with self.assertRaises(ValueError, msg=f"{table} {other!r}"):
                    table.from_json(other)
        tables: tuple[Any, ...] = (
            {"topicConfigTable": []},
            {"topicConfigTable": {"T": None}},
            {"topicConfigTable": {"T": 5}},
            {"dataVersion": 5},
            {"dataVersion": {"counter": 2**63}},
        )
        fields: tuple[dict[str, Any], ...] = (
            {"perm": "x"},
            {"perm": 2**31},
            {"perm": -(2**31) - 1},
            {"perm": 1.5},
            {"perm": True},
            {"perm": []},
            {"order": 5},
            {"order": []},
            {"topicName": 5},
            {"topicFilterType": {}},
        )
        for content in (*tables, *({"topicConfigTable": {"T": topic}} for topic in fields)):
            with self.assertRaises(ValueError, msg=repr(content)):
                TopicConfigTable.from_json(content)
        no_offsets: tuple[Any, ...] = ([], 5, {"x": 5}, {0: None}, {0: "x"}, {0: 2**63}, {2**31: 0}, {0: 0.5}, {0: {}})
        for offsets in no_offsets:
            with self.assertRaises(ValueError, msg=repr(offsets)):
                DelayOffsetTable.from_json({"offsetTable": offsets})
            with self.assertRaises(ValueError, msg=repr(offsets)):
                ConsumerOffsetTable.from_json({"offsetTable": {"T@G": offsets}})

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(300))
    @given(ANY_TABLE)
    def test_what_is_written_is_read_in_its_order(self, table: ConfigTable) -> None:
        for dumps in (dumps_pretty, dumps_compact):
            found = type(table).from_json(loads_lenient(dumps(table.to_json())))
            self.assertEqual(found, table)
            self.assertEqual(dumps(found.to_json()), dumps(table.to_json()))

    @settings(deadline=None, max_examples=examples(100))
    @given(ANY_TABLE)
    def test_strict_json_is_read_too(self, table: ConfigTable) -> None:
        """Others than Java quote their integer keys."""
        self.assertEqual(type(table).from_json(json.loads(json.dumps(table.to_json()))), table)


class FilesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self) / CONFIG_FOLDER

    def put(self, name: str, content: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(content)

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def test_an_empty_table_is_written_as_java_writes_it(self) -> None:
        for table, content in (
            (DelayOffsetTable(), b'{\n\t"offsetTable":{}\n}'),
            (ConsumerOffsetTable({"T@G": {}}), b'{\n\t"offsetTable":{\n\t\t"T@G":{}\n\t}\n}'),
            (
                TopicConfigTable(DataVersion(1, 2)),
                b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":2\n\t},\n\t"topicConfigTable":{}\n}',
            ),
            (
                SubscriptionGroupTable(DataVersion(1, 2)),
                b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":2\n\t},\n\t"subscriptionGroupTable":{}\n}',
            ),
        ):
            table.write(self.folder)
            self.assertEqual((self.folder / table.FILE_NAME).read_bytes(), content)

    @settings(deadline=None, max_examples=examples(60))
    @given(ANY_TABLE)
    def test_what_is_written_is_read(self, table: ConfigTable) -> None:
        table.write(self.folder)
        self.assertEqual(type(table).read(self.folder), table)

    def test_the_content_before_is_the_backup(self) -> None:
        FIRST.write(self.folder)
        self.assertEqual(self.content(), {DELAY_FILE: b'{\n\t"offsetTable":{1:10\n\t}\n}'})
        SECOND.write(self.folder)
        after = {DELAY_FILE: dumps_pretty(SECOND.to_json()), DELAY_BACKUP: dumps_pretty(FIRST.to_json())}
        self.assertEqual(self.content(), after)
        DelayOffsetTable().write(self.folder)
        self.assertEqual(self.content()[DELAY_BACKUP], after[DELAY_FILE])

    def test_a_file_that_cannot_be_read_does_not_become_the_backup(self) -> None:
        for broken in (b"", b"{", bytes(21)):
            self.put(DELAY_BACKUP, dumps_pretty(FIRST.to_json()))
            self.put(DELAY_FILE, broken)
            SECOND.write(self.folder)
            expected = {DELAY_FILE: dumps_pretty(SECOND.to_json()), DELAY_BACKUP: dumps_pretty(FIRST.to_json())}
            self.assertEqual(self.content(), expected, repr(broken))

    def test_a_folder_without_files_has_empty_tables(self) -> None:
        for table in TABLES:
            self.assertEqual(table.read(self.folder), table.from_json({}))
        self.assertFalse(self.folder.exists())

    def test_the_backup_counts_only_if_there_is_no_sound_file(self) -> None:
        self.put(DELAY_BACKUP, dumps_compact(FIRST.to_json()))
        self.assertEqual(DelayOffsetTable.read(self.folder), FIRST)
        for broken in (
            b"",
            b" ",
            b"{",
            b"null",
            b"[]",
            bytes(21),
            b"\xff",
            b'{"offsetTable":{1:20',
            b'{"offsetTable":5}',
        ):
            self.put(DELAY_FILE, broken)
            self.assertEqual(DelayOffsetTable.read(self.folder), FIRST, repr(broken))
        self.put(DELAY_FILE, dumps_compact(SECOND.to_json()))
        for other in (dumps_compact(FIRST.to_json()), b"", b"{"):
            self.put(DELAY_BACKUP, other)
            self.assertEqual(DelayOffsetTable.read(self.folder), SECOND, repr(other))

    def test_a_broken_file_without_a_backup_counts_as_empty(self) -> None:
        """As for Java; so does an empty backup."""
        self.put(DELAY_FILE, b"{")
        self.assertEqual(DelayOffsetTable.read(self.folder), DelayOffsetTable())
        self.put(DELAY_BACKUP, b"")
        self.assertEqual(DelayOffsetTable.read(self.folder), DelayOffsetTable())

    def test_a_backup_that_is_needed_and_broken_is_refused_by_name(self) -> None:
        for table in TABLES:
            for broken in (b"{", b" ", b"null", bytes(21), b"\xff", b'{"dataVersion":5,"offsetTable":5}'):
                self.put(table.FILE_NAME + ".bak", broken)
                for file in (None, b"", b"{"):
                    if file is not None:
                        self.put(table.FILE_NAME, file)
                    with self.assertRaises(StoreError, msg=f"{table} {broken!r} {file!r}") as caught:
                        table.read(self.folder)
                    self.assertIn(str(self.folder / (table.FILE_NAME + ".bak")), str(caught.exception))
                (self.folder / table.FILE_NAME).unlink()

    def test_a_disk_that_cannot_be_read_is_no_empty_table(self) -> None:
        self.put(DELAY_BACKUP, dumps_compact(FIRST.to_json()))
        (self.folder / DELAY_FILE).mkdir()
        with self.assertRaises(OSError):
            DelayOffsetTable.read(self.folder)
        with self.assertRaises(OSError):
            SECOND.write(self.folder)
        self.assertEqual((self.folder / DELAY_BACKUP).read_bytes(), dumps_compact(FIRST.to_json()))

    def test_wherever_writing_stops_the_table_is_the_old_or_the_new_one(self) -> None:
        steps = [0]
        fsync, rename = os.fsync, Path.rename

        def step(action: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any) -> Any:
                steps[0] -= 1
                if steps[0] < 0:
                    raise OSError(5, "input/output error")
                return action(*args)

            return counted

        self.patch(os, "fsync", step(fsync))
        self.patch(Path, "rename", step(rename))
        seen = []
        for allowed in range(20):
            self.put(DELAY_FILE, dumps_pretty(FIRST.to_json()))
            self.put(DELAY_BACKUP, dumps_pretty(DelayOffsetTable().to_json()))
            steps[0] = allowed
            try:
                SECOND.write(self.folder)
            except OSError:
                seen.append(DelayOffsetTable.read(self.folder).offset_table)
                backup = DelayOffsetTable.from_json(loads_lenient((self.folder / DELAY_BACKUP).read_bytes()))
                self.assertIn(backup, (DelayOffsetTable(), FIRST))
            else:
                break
        self.assertEqual(DelayOffsetTable.read(self.folder), SECOND)
        # fsync of the new file, its predecessor becomes the backup, the new one takes its place, fsync of the folder.
        self.assertEqual(seen, [FIRST.offset_table] * 3 + [SECOND.offset_table])
