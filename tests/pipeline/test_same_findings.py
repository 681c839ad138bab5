"""``rmqha verify`` and ``rmqha job`` find the same in a log, and say it in the same words."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli import main
from rmqha.pipeline.jobs.compare import compare
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.verify import verify
from rmqha.pipeline.options import parse_options
from rmqha.store.log.lockfile import LockFile
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.findings import Comparison, Verification
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.records import make_record
from tests.fixtures import copy_of, unpacked
from tests.pipeline import stores
from tests.pipeline.lake import SEGMENT_SIZE, make_store, overwrite
from tests.store.damages import UNHURRIED, damages, logs, on_disk

SPLITS = st.sampled_from(["1", "100", "700", "5000", "1m"])


def by_command(store: Path) -> Verification:
    reader = StoreReader(store)
    try:
        return reader.verify(lambda _: None)
    finally:
        reader.close()


def by_job(store: Path, split_bytes: str, boundaries: str = "auto") -> Verification:
    options = {"path": str(store), "splitBytes": split_bytes, "batchBytes": "2000", "boundaries": boundaries}
    return verify(parse_options(options), LocalEngine())


@pytest.mark.long
@UNHURRIED
@given(st.data(), SPLITS, st.sampled_from(["auto", "hop"]), st.booleans())
def test_a_damaged_log_gives_the_same_findings(
    data: st.DataObject, split_bytes: str, boundaries: str, unclean: bool
) -> None:
    """Whatever the damage, wherever the job splits the log, and whoever runs on it."""
    made = data.draw(logs())
    with on_disk(made, data.draw(damages(made))) as folder, ExitStack() as held:
        if unclean:
            (folder.parent / "abort").touch()
        places = st.sampled_from([0, *(end for _, end in made.pieces)])
        if data.draw(st.booleans()):
            verified, confirmed = data.draw(places), data.draw(places)
            offsets = Offsets(0, made.end, verified, verified, min(verified, confirmed))
            NodeState("id", offsets=offsets).write(folder.parent)
        if data.draw(st.booleans()):
            held.callback(LockFile(folder.parent / "lock").release)
        assert by_job(folder.parent, split_bytes, boundaries) == by_command(folder.parent)


@pytest.mark.long
@UNHURRIED
@given(st.data(), SPLITS)
def test_two_logs_differ_by_the_same_bytes(data: st.DataObject, split_bytes: str) -> None:
    made = data.draw(logs())
    start = data.draw(st.integers(0, made.end - 1))
    changed = bytearray(made.content)
    changed[start : start + 700] = data.draw(st.binary(min_size=1, max_size=700))
    changed = changed[: made.end].ljust(made.end, b"\0")
    with on_disk(made, made.content) as one, on_disk(made, bytes(changed)) as other:
        for folder in (one, other):  # both commands compare up to here, whatever is sound
            NodeState("id", offsets=Offsets(verified=made.end, confirmed=made.end)).write(folder.parent)
        options = parse_options(
            {"path": str(one.parent), "replica": str(other.parent), "splitBytes": split_bytes, "boundaries": "hop"}
        )
        ours, theirs = StoreReader(one.parent), StoreReader(other.parent)
        try:
            by_command: Comparison = ours.compare(made.end, theirs, made.end, lambda _: None)
        finally:
            ours.close()
            theirs.close()
        assert compare(options, LocalEngine()) == by_command
        fill: set[int] = set()
        for blank, blank_end in set(made.pieces) - set(made.messages):
            if changed[blank : blank + 8] == made.content[blank : blank + 8]:
                fill |= set(range(blank + 8, blank_end))
        different = [at for at in range(made.end) if changed[at] != made.content[at]]
        wanted = [at for at in different if at not in fill]
        assert by_command.different_fills == len({at // made.segment_size for at in different if at in fill})
        assert (by_command.differs_at, by_command.different_bytes) == (wanted[0] if wanted else None, len(wanted))


def nothing(store: Path) -> None:
    pass


def a_body(store: Path) -> None:
    overwrite(store, 20_100, b"\xff\x00\xff\x00")


def two_records_in_a_row(store: Path) -> None:
    overwrite(store, 20_100, b"\xff\x00\xff\x00" * 150)


def a_whole_segment(store: Path) -> None:
    overwrite(store, SEGMENT_SIZE, bytes(SEGMENT_SIZE))


def across_a_segments_end(store: Path) -> None:
    overwrite(store, 2 * SEGMENT_SIZE - 100, b"\xee" * 100)
    overwrite(store, 2 * SEGMENT_SIZE, b"\xee" * 100)


def the_last_bytes(store: Path) -> None:
    overwrite(store, by_command(store).end - 10, b"\xee" * 50)


def a_torn_end(store: Path) -> None:
    (store / "abort").touch()
    the_last_bytes(store)


def a_lost_end(store: Path) -> None:
    end = by_command(store).end + 1000
    NodeState("id", offsets=Offsets(0, end, end, end, end)).write(store)


DAMAGES = [
    nothing,
    a_body,
    two_records_in_a_row,
    a_whole_segment,
    across_a_segments_end,
    the_last_bytes,
    a_torn_end,
    a_lost_end,
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("damage", DAMAGES)
def test_both_commands_print_the_same(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = make_store(tmp_path / "store")
    damage(store)
    command, job = run("verify", store), run("job", "verify", store, "-o", "splitBytes=5000")
    assert job.exit_code == command.exit_code == (0 if damage in (nothing, a_torn_end) else 1)
    assert (job.stdout, job.stderr) == (command.stdout, command.stderr)
    as_json: list[dict[str, Any]] = [
        json.loads(run(*words, store, "--json").stdout) for words in (("verify",), ("job", "verify"))
    ]
    assert as_json[0] == as_json[1]


def a_wrong_unit(store: Path) -> None:
    (path, *_) = sorted(store.glob("consumequeue/*/*/*"))
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


def a_queue_of_another_length(store: Path) -> None:
    (path, *_) = sorted(store.glob("consumequeue/*/*/*"))
    path.write_bytes(path.read_bytes()[:-7])


def a_missing_queue(store: Path) -> None:
    shutil.rmtree(min(store.glob("consumequeue/*/*")))


def an_index_of_noise(store: Path) -> None:
    (path, *_) = sorted(store.glob("index/*"))
    path.write_bytes(b"\xff" * path.stat().st_size)


def no_index(store: Path) -> None:
    shutil.rmtree(store / "index")


def a_body_below_its_unit(store: Path) -> None:
    at = int.from_bytes(min(store.glob("consumequeue/*/*/*")).read_bytes()[:8], "big")
    size = min((store / "commitlog").iterdir()).stat().st_size
    with (store / "commitlog" / f"{at - at % size:020d}").open("r+b") as file:
        file.seek(at % size)
        file.write(b"\xff" * 20)


QUEUE_DAMAGES = [a_wrong_unit, a_queue_of_another_length, a_missing_queue, an_index_of_noise, no_index]


@pytest.mark.long
@pytest.mark.parametrize("damage", [nothing, *QUEUE_DAMAGES, a_body_below_its_unit])
def test_both_commands_find_the_same_in_queues_and_index(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = copy_of("slave", tmp_path / "store")
    damage(store)
    command, job = run("verify", store), run("job", "verify", store, "-o", "splitBytes=300k")
    assert command.exit_code == (0 if damage in (nothing, no_index) else 1), command.stderr
    assert (job.exit_code, job.stdout, job.stderr) == (command.exit_code, command.stdout, command.stderr)
    as_json = [json.loads(run(*words, store, "--json").stdout) for words in (("verify",), ("job", "verify"))]
    assert as_json[0] == as_json[1]
    assert damage is not no_index or as_json[0]["missingKeys"] > 0


def test_a_part_of_the_log_says_nothing_of_queues(tmp_path: Path) -> None:
    store = copy_of("slave", tmp_path / "store")
    a_wrong_unit(store)
    for part in (
        "startingOffset=1",
        "endingOffset=5000",
        "startingTimestamp=0",
        "endingTimestamp=2030-01-01T00:00:00Z",
    ):
        done = run("job", "verify", store, "-o", part, "--json")
        assert done.exit_code == 0, (part, done.stderr)
        assert json.loads(done.stdout)["queues"] is None


@pytest.mark.parametrize("damage", [nothing, a_body, across_a_segments_end])
@pytest.mark.parametrize("log_bytes", [40_000, 60_000, 80_000])
def test_both_commands_compare_in_the_same_words(
    tmp_path: Path, damage: Callable[[Path], None], log_bytes: int
) -> None:
    store = make_store(tmp_path / "store")
    other = Path(shutil.copytree(store, tmp_path / "other")) if log_bytes == 60_000 else tmp_path / "other"
    if log_bytes != 60_000:
        make_store(other, log_bytes)
    ends = [by_command(each).end for each in (store, other)]
    for each, end in zip((store, other), ends, strict=True):
        NodeState("id", offsets=Offsets(confirmed=end)).write(each)
    damage(other)
    for exact in ((), ("--exact",)):
        command = run("verify", store, "--against", other, *exact)
        job = run("job", "compare", store, "--against", other, *exact)
        if damage is nothing:
            assert (job.exit_code, job.stderr) == (command.exit_code, command.stderr)
            assert job.stdout == "" or job.stdout in command.stdout
        else:  # this command proves the other log too, and says first what is wrong with it
            assert job.exit_code == command.exit_code == 1
            assert command.stderr.strip().endswith(job.stderr.strip().removeprefix("rmqha: "))


def test_the_job_compares_a_range_and_says_who_has_more(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    longer = make_store(tmp_path / "longer", 80_000)
    found = json.loads(run("job", "compare", store, "--against", longer, "--json").stdout)
    assert (found["relation"], found["identical"], found["differentBytes"]) == ("prefix", False, 0)
    assert replace(by_command(store), end=found["otherEnd"]).end == by_command(longer).end


@pytest.mark.process
def test_the_local_engine_needs_no_extra(tmp_path: Path) -> None:
    """The jobs that the commands share run where only the dependencies of rmqha are installed."""
    script = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'pandas'): sys.modules[name] = None\n"
        "from rmqha.cli import main\n"
        "main(sys.argv[1:])"
    )
    store = copy_of("slave", tmp_path / "store")
    commands: list[list[str | Path]] = [
        ["job", "verify", store],
        ["job", "compare", store, "--against", unpacked("slave")],
        ["job", "rebuild", store],
        ["rebuild", store],
    ]
    for words in commands:
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("damage", [b"\x7f", b"\x00\x00\x10"])
def test_what_a_running_node_has_not_verified_changes_no_finding(tmp_path: Path, damage: bytes) -> None:
    """The last bytes of a bad record may be zeros, and it may claim bytes that are not judged."""
    store = tmp_path / "store"
    end = stores.end_of(stores.make_store(store, [replace(make_record(0, b"b" * 50), properties_stored="")]))
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        content = file.read(end)
        assert content.endswith(b"\0\0")
        file.write(content)
        file.seek(0)
        file.write(damage)
    NodeState("id", offsets=Offsets(0, 2 * end, end, end, end)).write(store)
    lock = LockFile(store / "lock")
    try:
        found = by_job(store, "1m")
        assert found == by_command(store)
    finally:
        lock.release()
    assert [(bad.start, bad.end) for bad in found.stretches] == [(0, end)]
