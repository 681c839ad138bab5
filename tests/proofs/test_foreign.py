"""Good histories are accepted by our checker and by Porcupine; lost, doubled, reordered and invented ones are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqha.testing.sim.walk import Story, run_seed
from tests.chaos.history import History, Seen
from tests.interop.goclient import go_compiler
from tests.needs import need
from tests.proofs.foreign import check, recorded

pytestmark = [pytest.mark.process, pytest.mark.story]

SEED = 8
"""Its history has puts that were answered and others that were not, transactions that were refused, and leases."""
Lines = list[dict[str, Any]]


def line(lines: Lines, f: str, kind: str = "ok", nth: int = 0) -> dict[str, Any]:
    """The nth line of this operation."""
    value: dict[str, Any] = [each for each in lines if each["f"] == f and each["type"] == kind][nth]["value"]
    return value


@pytest.fixture(scope="module")
def checker() -> Callable[[Path], str]:
    """Says ok or illegal of a file: without a compiler tests are skipped, but on CI they fail."""
    need(None if go_compiler() else "no Go compiler")
    return lambda path: check([path]).stdout.splitlines()[0].rpartition(" ")[2]


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with those of a seed."""
    folder = tmp_path_factory.mktemp("histories")
    assert run_seed(SEED, Story.CLUSTER, folder).violation is None
    return folder


@pytest.mark.parametrize("what", ["queues", "keys"])
def test_what_a_seed_of_the_simulator_does_is_accepted(
    what: str, histories: Path, checker: Callable[[Path], str]
) -> None:
    assert checker(histories / f"seed-{SEED}-{what}.jsonl") == "Ok"


def lose(lines: Lines) -> None:
    """A promised message is in no queue at the end."""
    line(lines, "read-all")["keys"].pop()


def double(lines: Lines) -> None:
    value = line(lines, "read-all")
    value["keys"].append(value["keys"][-1])


def reorder(lines: Lines) -> None:
    line(lines, "read-all")["keys"].reverse()


def invent(lines: Lines) -> None:
    """A consumer has read what nobody has sent."""
    line(lines, "read")["keys"][0] = "nobody's"


def read_before_it_was_sent(lines: Lines) -> None:
    at = next(number for number, each in enumerate(lines) if each["f"] == "read")
    for each in (lines.pop(at + 1), lines.pop(at)):
        lines.insert(0, each)


@pytest.mark.parametrize("plant", [lose, double, reorder, invent, read_before_it_was_sent])
def test_a_planted_bug_of_queues_is_refused(
    plant: Callable[[Lines], None], histories: Path, tmp_path: Path, checker: Callable[[Path], str]
) -> None:
    assert planted(plant, histories / f"seed-{SEED}-queues.jsonl", tmp_path, checker) == "Illegal"


def win_twice(lines: Lines) -> None:
    """A transaction says that it was done, and it was refused."""
    value = next(
        each["value"]
        for each in lines
        if each["f"] == "transact" and each["type"] == "ok" and each["value"]["succeeded"] is False
    )
    value["succeeded"] = True


def read_what_is_old(lines: Lines) -> None:
    """A read shows the keys as they were long ago."""
    first, last = line(lines, "range"), line(lines, "range", nth=-1)
    assert first != last
    last.update(first)


def forget_a_write(lines: Lines) -> None:
    line(lines, "transact")["revision"] -= 1


def keep_a_lease_that_has_ended(lines: Lines) -> None:
    """The keys of a lease are gone, and it is still kept alive."""
    granted = [each for each in lines if each["f"] == "grant" and each["type"] == "ok"]
    revoked = [each for each in lines if each["f"] == "revoke" and each["type"] == "ok"]
    assert granted
    lease = (revoked or granted)[0]["value"]["lease"]
    process = 1 + max(each["process"] for each in lines)
    for number, f in enumerate(("revoke", "keep-alive")):
        for kind in ("invoke", "ok"):
            lines.append({"process": process + number, "type": kind, "f": f, "value": {"lease": lease}})


@pytest.mark.parametrize("plant", [win_twice, read_what_is_old, forget_a_write, keep_a_lease_that_has_ended])
def test_a_planted_bug_of_a_coordinator_is_refused(
    plant: Callable[[Lines], None], histories: Path, tmp_path: Path, checker: Callable[[Path], str]
) -> None:
    assert planted(plant, histories / f"seed-{SEED}-keys.jsonl", tmp_path, checker) == "Illegal"


def planted(plant: Callable[[Lines], None], path: Path, tmp_path: Path, checker: Callable[[Path], str]) -> str:
    """What the checker says of this history with this bug."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    plant(lines)
    changed = tmp_path / "history.jsonl"
    changed.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return checker(changed)


def test_a_history_in_which_all_copies_were_lost_is_not_judged(
    histories: Path, tmp_path: Path, checker: Callable[[Path], str]
) -> None:
    def forgive(lines: Lines) -> None:
        lose(lines)
        lines.append({"process": 10**6, "type": "ok", "f": "forgiven", "value": {}})

    assert planted(forgive, histories / f"seed-{SEED}-queues.jsonl", tmp_path, checker) == "Forgiven"


# Histories of chaos, which our own checker judges too


def sound() -> History:
    """Messages k0, k1 … in turn to each queue, one each second; the last one was not answered."""
    seen = [Seen(f"k{number}", number % 2, number // 2, float(number)) for number in range(20)]
    return History(seen[:-1], {"C": seen[:]})


def lose_one(history: History) -> History:
    return replace(history, read={"C": [each for each in history.read["C"] if each.key != "k18"]})


def double_one(history: History) -> History:
    return replace(history, read={"C": [*history.read["C"], Seen("k0", 0, 10, 99.0)]})


def reorder_some(history: History) -> History:
    """Two messages have changed their places."""
    places = {"k4": 6, "k12": 2}
    return replace(
        history,
        read={"C": [replace(each, offset=places.get(each.key, each.offset)) for each in history.read["C"]]},
    )


def replace_one(history: History) -> History:
    """Another message was read at a promised place before."""
    return replace(history, read={"C": [Seen("invented", 0, 3, 1.0), *history.read["C"]]})


def test_a_sound_history_of_chaos_is_accepted_by_both(tmp_path: Path, checker: Callable[[Path], str]) -> None:
    assert judged(sound(), tmp_path, checker) == ([], "Ok")


@pytest.mark.parametrize("plant", [lose_one, double_one, reorder_some, replace_one])
def test_a_planted_bug_is_refused_by_both(
    plant: Callable[[History], History], tmp_path: Path, checker: Callable[[Path], str]
) -> None:
    ours, theirs = judged(plant(sound()), tmp_path, checker)
    assert ours
    assert theirs == "Illegal"


def judged(history: History, tmp_path: Path, checker: Callable[[Path], str]) -> tuple[list[str], str]:
    """What our checker finds, and what the other one says."""
    path = tmp_path / "history.jsonl"
    recorded(history, "T").write(path)
    return [each.promise for each in history.violations()], checker(path)
