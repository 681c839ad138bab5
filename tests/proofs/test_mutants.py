"""The bugs that ``mutants`` plants still fit the tree, and what finds nothing, or hangs, is told from what finds."""

import sys
from pathlib import Path

import pytest

from tests.proofs import mutants
from tests.proofs.mutant import ROOT, Mutant
from tests.proofs.mutantlist import MUTANTS
from tests.proofs.mutants import SEEDS, read, table, try_mutant, write

FEW = 60


def test_each_bug_still_fits_the_tree() -> None:
    """Its text is there once. Otherwise aim it anew: the bug matters, not the text."""
    assert [problem for mutant in MUTANTS if (problem := mutant.problem()) is not None] == []


def test_each_bug_has_a_name_an_edit_and_tests_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len({mutant.edit for mutant in MUTANTS}) == len(MUTANTS) >= FEW
    for mutant in MUTANTS:
        assert mutant.old != mutant.new
        assert mutant.finders
        assert [finder for finder in mutant.finders if finder not in SEEDS and not (ROOT / finder).exists()] == []


def a_bug(new: str) -> Mutant:
    """One that is found, or not, by a test of a line."""
    return Mutant("name", "rmqha/product.py", "right", new, ("tests/test_it.py",))


@pytest.mark.parametrize(
    ("new", "outcome"), [("wrong", "found"), ("right ", "missed"), ("import time; time.sleep(99)", "hung")]
)
@pytest.mark.process
def test_what_comes_of_a_bug(new: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rmqha").mkdir()
    (tmp_path / "rmqha/product.py").write_text("right")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "COPIED", ("rmqha",))
    check = "import sys; text = open('rmqha/product.py').read(); exec(text) if 'time' in text else 0; "
    check += "print('FAILED it' if 'wrong' in text else 'fine'); sys.exit('wrong' in text)"
    monkeypatch.setattr(mutants, "command_of", lambda finder: [sys.executable, "-c", check])
    result = try_mutant(a_bug(new), seconds=1.0 if outcome == "hung" else 60.0)
    assert result.outcome == outcome
    assert (result.words == "FAILED it") is (outcome == "found")


def test_a_text_that_is_not_there_or_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rmqha").mkdir()
    for text in ("", "right right"):
        (tmp_path / "rmqha/product.py").write_text(text)
        with pytest.raises(ValueError, match="has its text"):
            a_bug("wrong").apply(tmp_path)


def test_the_last_line_of_a_bug_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read(path) == {}
    line = '{"name": "a bug", "outcome": "%s", "finder": "", "seconds": 1, "words": ""}\n'
    path.write_text(line % "missed" + line % "found")
    assert "found" in table(read(path).values())
    assert "missed" not in table(read(path).values())


def test_the_file_has_a_line_of_each_present_bug_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, second = MUTANTS[0].name, MUTANTS[1].name
    known = {name: {"name": name} for name in (second, "one that is gone", first)}
    write(path, known)
    assert list(read(path)) == [first, second]
    assert list(tmp_path.iterdir()) == [path]
