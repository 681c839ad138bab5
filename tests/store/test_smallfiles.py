"""Our small files in a store: each damage is one clear error, and an absent file is none."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rmqha.failover.knownfile import known_path, read_known
from rmqha.store.epochs import epochs_path, promoted_path, promoted_role, read_epochs
from rmqha.store.errors import StoreError
from rmqha.store.keptsettings import kept_settings_path, read_kept_settings
from rmqha.store.nodestate import NodeState, state_path
from rmqha.store.restarts import read_restarts, restarts_path
from rmqha.store.smallfiles import write_or_remove, write_small
from rmqha.testing.sim.disk import SimDisk

READERS: dict[Callable[[Path], Path], Callable[[Path], object]] = {
    state_path: NodeState.read,
    epochs_path: read_epochs,
    promoted_path: promoted_role,
    kept_settings_path: read_kept_settings,
    restarts_path: read_restarts,
    known_path: read_known,
}
DAMAGES = (b"", b"\0\0", b"7", b'"text"', b"[7]", b'{"a": 7}', b'{"epoch": {}, "role"', b"[[]]", b"null")


@pytest.mark.parametrize("path_of", READERS, ids=[path_of.__name__ for path_of in READERS])
def test_a_damaged_file_is_named_with_the_reason(path_of: Callable[[Path], Path], tmp_path: Path) -> None:
    path, read = path_of(tmp_path), READERS[path_of]
    read(tmp_path)  # without a file nothing is wrong
    path.parent.mkdir()
    for damage in DAMAGES:
        path.write_bytes(damage)
        with pytest.raises(StoreError) as caught:
            read(tmp_path)
        assert str(caught.value).startswith(f"{path} "), damage
        assert path.read_bytes() == damage


def test_a_file_is_written_for_people_and_without_content_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rmqha" / "some.json"
    write_small(path, {"a": [1]})
    assert path.read_text() == '{\n  "a": [\n    1\n  ]\n}\n'
    write_or_remove(path, {})
    assert not path.exists()


def test_a_file_that_was_removed_does_not_come_back() -> None:
    """Each note was obeyed, or its log is gone."""
    path = Path("/store/some.json")
    for seed in range(20):
        disk = SimDisk(Random(seed))
        write_small(path, {"a": [1]}, disk)
        write_or_remove(path, {}, disk)
        disk.lose_power()
        assert not disk.exists(path), seed
