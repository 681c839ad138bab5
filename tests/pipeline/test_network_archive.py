"""A stream of the logs of a cluster's brokers into archives: one for each broker, each message once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError, WrongArchive, archived_paths
from rmqha.pipeline.jobs.origin import Origin, broker_folder
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.network import segment as segments
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.sqltypes import sql_type
from rmqha.pipeline.views import view_schema
from rmqha.store.errors import DataLossError
from rmqha.testing.records import make_record
from tests.pipeline.fakecluster import ADDRESS, FakeCluster
from tests.pipeline.lake import archived_offsets, make_store, options_of, rows_of, visible_files
from tests.pipeline.microbatches import NetworkQuery
from tests.pipeline.stores import all_offsets
from tests.pipeline.tables import table_offsets

pytestmark = pytest.mark.long


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(segments, "PAUSES_SECONDS", (0.0, 0.0))
    with FakeCluster(tmp_path, monkeypatch) as cluster:
        cluster.states["broker-a"] = "store of a"
        cluster.add("broker-a")
        cluster.add("broker-b", seed=2)  # Java's
        yield cluster


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def start(lake: Path, tmp_path: Path) -> Callable[..., NetworkQuery]:
    """Starts the query, on its checkpoint if there is one."""
    return lambda address=ADDRESS, **texts: NetworkQuery(address, lake, tmp_path / "checkpoint", **texts)


def check_once(brokers: FakeCluster, lake: Path, *names: str) -> None:
    """Each message of these brokers is archived once, and nothing else is."""
    for name in names:
        folder = lake / f"brokerName={name}"
        assert archived_offsets(folder) == all_offsets(brokers.stores[name])
        assert visible_files(folder) == sorted(archived_paths(folder))
    assert {path.name for path in lake.iterdir()} == {f"brokerName={name}" for name in names}


def test_each_broker_has_an_archive(brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]) -> None:
    assert start(maxBytesPerTrigger="9k").run() > 3
    check_once(brokers, lake, "broker-a", "broker-b")
    assert {one.store_id for one in Archive(lake / "brokerName=broker-a").manifests()} == {"store of a"}
    for name in brokers.stores:
        brokers.grow(name, 70_000, seed=1 if name == "broker-a" else 2)
    assert start().run() == 1
    check_once(brokers, lake, "broker-a", "broker-b")


def test_a_job_goes_on_with_the_archive_of_one_broker(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]
) -> None:
    start().run()
    brokers.grow("broker-a", 70_000)
    folder = lake / "brokerName=broker-a"
    options = options_of(brokers.stores["broker-a"], output=folder)
    assert archive(options, LocalEngine()).messages > 0
    start().run()
    check_once(brokers, lake, "broker-a", "broker-b")


def test_brokers_come_and_go(brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]) -> None:
    query = start()
    query.run()
    brokers.remove("broker-b")
    brokers.grow("broker-a", 70_000)
    brokers.add("broker-c", seed=3)
    query.run()
    check_once(brokers, lake, "broker-a", "broker-b", "broker-c")
    brokers.grow("broker-b", 70_000, seed=2)
    brokers.add_again("broker-b")
    query.run()
    check_once(brokers, lake, "broker-a", "broker-b", "broker-c")


@pytest.mark.parametrize("is_new", [False, True])
def test_the_stream_goes_on_while_a_broker_does_not_answer(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], is_new: bool
) -> None:
    """Its name server still knows it. Also a query that was started again goes on."""
    query = start()
    query.run()
    brokers.answering.remove("broker-b")
    brokers.grow("broker-a", 70_000)
    query = start() if is_new else query
    assert query.run() == 1
    assert archived_offsets(lake / "brokerName=broker-a") == all_offsets(brokers.stores["broker-a"])
    brokers.answering.add("broker-b")
    brokers.grow("broker-b", 70_000, seed=2)
    assert query.run() == 1
    check_once(brokers, lake, "broker-a", "broker-b")


def test_a_query_that_ends_by_itself_does_not_leave_a_broker_out(
    brokers: FakeCluster, start: Callable[..., NetworkQuery]
) -> None:
    query = start()
    query.run()
    brokers.answering.remove("broker-b")
    with pytest.raises(DataLossError, match="no node of broker-b answers: cannot connect"):
        query.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]  # ours has it


def test_the_first_start_needs_all_brokers(brokers: FakeCluster, start: Callable[..., NetworkQuery]) -> None:
    """Later nobody would know where to start with one."""
    brokers.answering.remove("broker-b")
    with pytest.raises(DataLossError, match="no node of broker-b answers"):
        start().run()


def test_a_batch_whose_broker_is_away_fails_and_is_run_again(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = start(maxBytesPerTrigger="9k")
    assert query.batch()
    with monkeypatch.context() as patch:
        patch.setattr(query.reader, "partitions", interrupt)
        with pytest.raises(KeyboardInterrupt):
            query.batch()  # it is noted how far the batch is to reach
    brokers.remove("broker-b")
    for _ in range(2):
        with pytest.raises(DataLossError, match="broker-b has messages of this batch, and cannot be read: the name"):
            start().run()
    brokers.add_again("broker-b")
    start().run()
    check_once(brokers, lake, "broker-a", "broker-b")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("died_after", [0, 1, 2])
def test_a_batch_that_died_between_two_brokers_is_completed(
    brokers: FakeCluster,
    lake: Path,
    start: Callable[..., NetworkQuery],
    monkeypatch: pytest.MonkeyPatch,
    died_after: int,
) -> None:
    archives = Origin.archive
    query = start()
    calls: list[str] = []

    def dying(origin: Origin, output: Path) -> Archive:
        if len(calls) == died_after:
            raise KeyboardInterrupt
        calls.append(origin.name)
        return archives(origin, output)

    with monkeypatch.context() as patch:
        patch.setattr(Origin, "archive", dying)
        with pytest.raises(KeyboardInterrupt):
            query.batch()
    start().run()
    check_once(brokers, lake, "broker-a", "broker-b")


def test_each_archive_is_a_table(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], kind: TableFormat
) -> None:
    """Also that of a broker that comes later."""
    start(sink={"table": kind.value}, maxBytesPerTrigger="20k").run()
    brokers.add("broker-c", seed=3)
    start(sink={"table": kind.value}).run()
    check_once(brokers, lake, *brokers.stores)
    for name, store in brokers.stores.items():
        assert table_offsets(lake / f"brokerName={name}", kind) == all_offsets(store)


def test_one_broker_is_archived_as_a_job_does(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]
) -> None:
    address = "rmqha://broker:2"
    done = archive(options_of(Path(address), output=lake, endingOffset=15_000), LocalEngine())
    start(address).run()
    brokers.grow("broker-b", 70_000, seed=2)
    assert archive(options_of(Path(address), output=lake), LocalEngine()).start > done.end
    assert archived_offsets(lake) == all_offsets(brokers.stores["broker-b"])


def test_a_name_that_is_no_name_of_a_folder(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]
) -> None:
    """As Spark writes a column in a path, and reads it."""
    brokers.add("c/../d=100%", seed=3)
    start().run()
    assert archived_offsets(lake / "brokerName=c%2F..%2Fd%3D100%25") == all_offsets(brokers.stores["c/../d=100%"])


def test_a_cluster_is_not_archived_over_the_archive_of_one_log(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]
) -> None:
    archive(options_of(brokers.stores["broker-a"], output=lake), LocalEngine())
    before = sorted(lake.rglob("*"))
    with pytest.raises(WrongArchive, match="the archive of one log, and the brokers of a cluster have an archive each"):
        start().run()
    assert sorted(lake.rglob("*")) == before


def test_one_log_is_not_archived_over_those_of_a_cluster(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], tmp_path: Path
) -> None:
    start().run()
    before = sorted(lake.rglob("*"))
    query = NetworkQuery("rmqha://broker:1", lake, tmp_path / "another")
    for run in (query.run, lambda: archive(options_of(make_store(tmp_path / "other"), output=lake), LocalEngine())):
        with pytest.raises(WrongArchive, match=f"archive one of them alone to {lake}/brokerName=broker-a"):
            run()
    assert sorted(lake.rglob("*")) == before


def test_two_logs_for_one_archive_are_refused(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], tmp_path: Path
) -> None:
    """As a union of two streams may have: of two clusters with the same names, or of two brokers alone."""
    for number, (one, other) in enumerate(
        ((ADDRESS, ADDRESS.replace("ns-a", "ns-z")), ("rmqha://broker:1", "rmqha://broker:2"), (ADDRESS, "rmqha://b:1"))
    ):
        target = tmp_path / f"lake-{number}"
        queries = [NetworkQuery(address, target, tmp_path / f"c-{number}") for address in (one, other)]
        messages = []
        for query in queries:
            first = query.reader.initialOffset()
            messages += query.write(first, query.reader.latestOffset(first, query.reader.getDefaultReadLimit()))
        with pytest.raises(ArchiveError, match="an archive belongs to one store, not to "):
            queries[0].writer.commit(messages, 0)
        assert visible_files(target) == []


def test_another_log_of_the_same_name_is_refused(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], tmp_path: Path
) -> None:
    start().run()
    brokers.add("broker-b", 70_000, seed=9)
    with pytest.raises(DataLossError, match="broker-b has other bytes before"):
        start().run()
    with pytest.raises(WrongArchive, match="differs from it at"):
        NetworkQuery(ADDRESS, lake, tmp_path / "another").run()


def test_what_is_not_confirmed_is_not_archived(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery]
) -> None:
    brokers.confirmed["broker-a"] = 10_000
    with pytest.raises(ArchiveError, match="only confirmed messages can be archived, up to 10000 "):
        start(readUpTo="written").run()
    assert visible_files(lake / "brokerName=broker-a") == []


@pytest.mark.parametrize(("text", "told"), [("csv", "it must be one of parquet, delta, iceberg"), ("", "it must be")])
def test_a_table_of_no_known_format_is_refused(
    brokers: FakeCluster, lake: Path, start: Callable[..., NetworkQuery], text: str, told: str
) -> None:
    with pytest.raises(OptionError, match=f"table={text}: {told}"):
        start(sink={"table": text})


def test_json_is_inferred_from_all_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    """For a query, and for a job on one of them."""
    with FakeCluster(tmp_path, monkeypatch) as cluster:
        for name in ("a", "b"):
            cluster.add_records(name, [make_record(n, b'{"%s": %d}' % (name.encode(), n)) for n in range(90)])
        found = view_schema(parse_options({"path": ADDRESS, "bodyFormat": "json"}))
        assert sql_type(found.field("value").type) == "struct<`a`:bigint,`b`:bigint>"
        archive(options_of(Path("rmqha://broker:2"), output=lake, bodyFormat="json"), LocalEngine())
    values = [row["value"] for row in rows_of(list(archived_paths(lake)))]
    assert values == [{"b": number} for number in range(90)]


NAMES = (
    "001",
    "0e1",
    "1d",
    "2026-01-01",
    "12:00:00",
    "-5",
    " 7",
    "\u0661",
    "true",
    "NaN",
    "Infinity",
    "epoch",
    "null",
    "b",
    "\u00e9",
    "_1",
)


def test_no_engine_takes_a_brokers_name_for_a_number_or_a_date(tmp_path: Path) -> None:
    folders = [broker_folder(tmp_path, name) for name in NAMES]
    assert len(set(folders)) == len(NAMES)
    for folder in folders[:-2]:
        folder.mkdir()
        pq.write_table(pa.table({"x": [1]}), folder / "1.parquet")
        query = f"SELECT typeof(brokerName) FROM read_parquet('{folder}/*.parquet', hive_partitioning = true)"
        assert duckdb.execute(query).fetchall() == [("VARCHAR",)], folder
    assert [folder.name for folder in folders[:2]] == ["brokerName=_001", "brokerName=_0e1"]
    assert [folder.name for folder in folders[-3:]] == ["brokerName=b", "brokerName=\u00e9", "brokerName=__1"]


def test_an_archive_that_has_such_a_name_goes_on(tmp_path: Path) -> None:
    (tmp_path / "brokerName=001" / "_manifest").mkdir(parents=True)
    assert broker_folder(tmp_path, "001") == tmp_path / "brokerName=001"
