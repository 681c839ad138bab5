"""An archive outlives its replica: it goes on from another store, if that one's log is proved to be the same."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.pipeline.jobs.archive import Archived, archive, archive_split, commit_proved, merge_archived
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import MANIFEST_FOLDER, Archive, ArchiveError, WrongArchive
from rmqha.pipeline.jobs.overlap import Proof
from rmqha.pipeline.plan import open_log
from rmqha.store.log.mappedfile import file_name
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.wire.record import Record, check_record, encode_record
from tests import examples
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, make_store, options_of, overwrite
from tests.pipeline.test_jobs_archive import offsets_of

LOG_BYTES = 60_000


def confirm(store: Path, store_id: str | None, end: int | None = None) -> int:
    """Let a node of this id have confirmed the log up to ``end``; gives that. None takes the node's state away."""
    state_path = store / "rmqha" / "state.json"
    state_path.unlink(missing_ok=True)
    end = open_log(options_of(store)).end if end is None else end
    if store_id is not None:
        least = min(int(path.name) for path in (store / "commitlog").iterdir())
        NodeState(store_id, offsets=Offsets(least, end, end, end, end)).write(store)
    return end


def run(store: Path, lake: Path, **texts: object) -> Archived:
    return archive(options_of(store, output=lake, **texts), LocalEngine(), commit_bytes=2 * SEGMENT_SIZE)


def forget_hashes(lake: Path) -> None:
    """Manifests as they were before they had hashes."""
    for path in (lake / MANIFEST_FOLDER).glob("*.json"):
        content = json.loads(path.read_text())
        del content["hashes"]
        path.write_text(json.dumps(content))


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A store of which the first 90 messages are confirmed."""
    store = make_store(tmp_path / "one", LOG_BYTES)
    confirm(store, "one", offsets_of(store)[90])
    return store


@pytest.fixture
def other(one: Path, tmp_path: Path) -> Path:
    """A replica of it, byte for byte, that has confirmed all of the log."""
    store = tmp_path / "other"
    shutil.copytree(one, store)
    confirm(store, "other")
    return store


@pytest.fixture
def lake(one: Path, tmp_path: Path) -> Path:
    """The archive of the first store."""
    run(one, tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture(params=["hashes", "rows"])
def either(lake: Path, request: pytest.FixtureRequest) -> Path:
    """The same, with hashes and as an older manifest is."""
    if request.param == "rows":
        forget_hashes(lake)
    return lake


def drop_before(store: Path, offset: int) -> None:
    """Delete the segments that end before ``offset``."""
    for path in (store / "commitlog").iterdir():
        if int(path.name) + SEGMENT_SIZE <= offset:
            path.unlink()


def test_it_goes_on_from_a_replica(either: Path, one: Path, other: Path) -> None:
    done = run(other, either)
    assert done.proved == (0, offsets_of(one)[90])
    assert archived_offsets(either) == offsets_of(other)
    assert {manifest.store_id for manifest in Archive(either).manifests()} == {"one", "other"}
    assert run(other, either).proved is None, "its own archive now"


def test_it_goes_back_to_the_first_store(either: Path, one: Path, other: Path) -> None:
    run(other, either, endingOffset=offsets_of(one)[110])
    confirm(one, "one")
    done = run(one, either)
    assert done.proved == (offsets_of(one)[90], offsets_of(one)[110]), "what the other has added"
    assert archived_offsets(either) == offsets_of(one)


def test_a_plain_store_without_a_node_goes_on_too(either: Path, other: Path) -> None:
    confirm(other, None)
    run(other, either)
    assert archived_offsets(either) == offsets_of(other)
    confirm(other, "third")
    run(other, either)


def test_a_plain_store_does_not_take_another_for_itself(tmp_path: Path) -> None:
    """Neither has an id: all that can tell them apart is the log."""
    for seed in (1, 2):
        make_store(tmp_path / str(seed), LOG_BYTES, seed)
    run(tmp_path / "1", tmp_path / "lake", endingOffset=offsets_of(tmp_path / "1")[90])
    with pytest.raises(WrongArchive, match="differs"):
        run(tmp_path / "2", tmp_path / "lake")


def test_another_log_is_refused_and_the_archive_stays(either: Path, tmp_path: Path) -> None:
    before = archived_offsets(either)
    stranger = make_store(tmp_path / "stranger", LOG_BYTES, seed=2)
    confirm(stranger, "stranger")
    with pytest.raises(WrongArchive, match=r"store one up to \d+; the log of store stranger differs from it at 0 \("):
        run(stranger, either)
    assert archived_offsets(either) == before


def test_the_first_message_that_differs_is_named(either: Path, other: Path) -> None:
    """The record is sound, and has another time."""
    at = offsets_of(other)[70]
    path = other / "commitlog" / file_name(at - at % SEGMENT_SIZE)
    content = path.read_bytes()
    record = check_record(content, at % SEGMENT_SIZE, at, SEGMENT_SIZE - at % SEGMENT_SIZE)
    assert isinstance(record, Record)
    overwrite(other, at, encode_record(replace(record, store_timestamp=record.store_timestamp + 1)))
    with pytest.raises(WrongArchive, match=rf"differs from it at {at} \(in storeTimestamp\)"):
        run(other, either)


def test_what_the_log_has_more_or_less_is_named(either: Path, other: Path) -> None:
    """The same range with a message more: the archived file has lost a row."""
    at = offsets_of(other)[70]
    overwrite(other, at + 4, b"\0\0\0\0")
    with pytest.raises(WrongArchive, match=rf"differs from it at {at} "):
        run(other, either)


def test_a_log_that_begins_later_is_proved_from_there(either: Path, one: Path, other: Path) -> None:
    """Where the log begins lies within an archived range: its messages are compared."""
    drop_before(other, offsets_of(one)[90])
    confirm(other, "other")
    done = run(other, either)
    base = offsets_of(one)[90] - offsets_of(one)[90] % SEGMENT_SIZE
    assert done.proved == (base, offsets_of(one)[90])
    assert archived_offsets(either) == offsets_of(one)


def test_a_log_that_begins_behind_the_archive_is_refused(either: Path, one: Path, other: Path) -> None:
    drop_before(other, 3 * SEGMENT_SIZE)
    assert offsets_of(one)[90] < 3 * SEGMENT_SIZE
    confirm(other, "other")
    for loss in ("true", "false"):
        with pytest.raises(WrongArchive, match=f"starts at {3 * SEGMENT_SIZE}: the messages between would be missing"):
            run(other, either, failOnDataLoss=loss)


def test_a_log_that_begins_where_the_archive_ends_proves_nothing(tmp_path: Path) -> None:
    store, lake = make_store(tmp_path / "store", LOG_BYTES), tmp_path / "lake"
    confirm(store, "one")
    run(store, lake, endingOffset=SEGMENT_SIZE)
    drop_before(store, SEGMENT_SIZE)
    confirm(store, "other")
    with pytest.raises(WrongArchive, match="has no bytes of that range"):
        run(store, lake)


def test_a_log_that_ends_before_the_archive_has_nothing_to_add(either: Path, one: Path, other: Path) -> None:
    end = confirm(other, "other", offsets_of(one)[50])
    done = run(other, either)
    assert (done.messages, done.log_end, done.end) == (0, end, offsets_of(one)[90])
    assert {manifest.store_id for manifest in Archive(either).manifests()} == {"one"}


def test_an_older_archive_of_few_columns_cannot_be_proved(one: Path, other: Path, tmp_path: Path) -> None:
    """Its hashes are enough, where it has them."""
    lake = tmp_path / "lake"
    run(one, lake, columns="topic,keys")
    shutil.copytree(lake, tmp_path / "older")
    run(other, lake, columns="topic,keys")
    forget_hashes(tmp_path / "older")
    with pytest.raises(WrongArchive, match="neither a hash of the log nor the columns physicalOffset and bodyCRC"):
        run(other, tmp_path / "older", columns="topic,keys")


def test_bytes_that_the_new_store_takes_back_are_still_noticed(either: Path, other: Path) -> None:
    end = run(other, either).end
    lost = Offsets(0, end, end, end, end)
    NodeState("other", epoch=2, epoch_start=end - 1, offsets=lost).write(other)
    with pytest.raises(ArchiveError, match="took back messages after"):
        run(other, either)


def test_what_others_archive_after_the_proof_is_proved_before_the_commit(lake: Path, one: Path, other: Path) -> None:
    """The first store's stream goes on beside us, with another log."""
    folder = Archive(lake)
    state = NodeState.read(other)
    proof = Proof(folder, state, lambda: open_log(options_of(other)), LocalEngine())
    proof.prove()
    at = confirm(one, "one", offsets_of(one)[110])
    overwrite(one, offsets_of(one)[100] + 100, b"\xff\xff")
    run(one, lake)
    options = options_of(other, output=lake)
    split = open_log(options).splits(at, offsets_of(other)[118])[0]
    part = archive_split(split, str(lake), options)
    with pytest.raises(WrongArchive, match=rf"differs from it at {3 * SEGMENT_SIZE} \(or after it, before {at}\)"):
        commit_proved(folder, proof, lambda: folder.commit(merge_archived(split.start, split.end, [part], state)))


@pytest.mark.long
@settings(max_examples=examples(30))
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_no_flipped_bit_passes(seed: int, with_hashes: bool, begins_later: bool) -> None:
    """Of any message of the overlap, whatever the splits and wherever the replica begins."""
    draw = random.Random(seed)
    with TemporaryDirectory() as folder:
        one, other, lake = (Path(folder) / name for name in ("one", "other", "lake"))
        make_store(one, LOG_BYTES, seed)
        offsets = offsets_of(one)
        reached = draw.randrange(60, len(offsets) - 1)
        confirm(one, "one", offsets[reached])
        texts = {"splitBytes": draw.randrange(1000, 40_000), "batchBytes": draw.randrange(500, 20_000)}
        run(one, lake, **texts)
        if not with_hashes:
            forget_hashes(lake)
        shutil.copytree(one, other)
        if begins_later:
            drop_before(other, draw.randrange(offsets[reached]))
        confirm(other, "other")
        low = min(int(path.name) for path in (other / "commitlog").iterdir())
        overlap = [number for number in range(reached) if offsets[number] >= low]
        number = draw.choice(overlap)
        at = draw.randrange(offsets[number], min(offsets[number] + 300, offsets[number + 1]))
        path = other / "commitlog" / file_name(at - at % SEGMENT_SIZE)
        sound = path.read_bytes()[at % SEGMENT_SIZE]
        overwrite(other, at, bytes([sound ^ 1 << draw.randrange(8)]))
        with pytest.raises(ArchiveError):
            run(other, lake)
        overwrite(other, at, bytes([sound]))
        run(other, lake)
        assert archived_offsets(lake) == offsets
