"""A broker that is not on Maven Central is built from its tag and nothing else. A script stands for Maven."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.interop.build_release import main

pytestmark = pytest.mark.process

VERSION = "4.9.8"
MVN = """#!/bin/sh
pwd > {seen}/folder && cp pom.xml {seen}/ && echo "$@" > {seen}/words
if grep -q broken pom.xml; then echo "it does not compile"; exit 1; fi
"""


def git(clone: Path, *words: str) -> str:
    """What git prints in the clone."""
    names = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = subprocess.run(["git", *names, *words], cwd=clone, capture_output=True, text=True, check=True)
    return done.stdout


def add_version(clone: Path, version: str, pom: str) -> None:
    """A commit with this pom.xml, and its tag."""
    (clone / "pom.xml").write_text(pom)
    git(clone, "add", "pom.xml")
    git(clone, "commit", "-m", version)
    git(clone, "tag", f"rocketmq-all-{version}")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with two releases; what is checked out is neither."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "--quiet")
    add_version(folder, VERSION, "the release")
    add_version(folder, "4.9.9", "broken")
    (folder / "pom.xml").write_text("changed")
    return folder


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What mvn noted: its folder, its words, and the pom.xml there."""
    tools, folder = tmp_path / "tools", tmp_path / "seen"
    tools.mkdir()
    folder.mkdir()
    (tools / "mvn").write_text(MVN.format(seen=folder))
    (tools / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return folder


def test_maven_builds_the_tag_elsewhere_and_the_clone_stays_as_it_is(clone: Path, seen: Path) -> None:
    before = git(clone, "status", "--porcelain"), git(clone, "rev-parse", "HEAD")
    assert main([str(clone), VERSION]) == 0
    assert (seen / "pom.xml").read_text() == "the release"
    assert {"-pl", "filter,broker,namesrv", "install"} <= set((seen / "words").read_text().split())
    built_in = Path((seen / "folder").read_text().strip())
    assert clone not in (built_in, *built_in.parents)
    assert not built_in.exists()
    assert (git(clone, "status", "--porcelain"), git(clone, "rev-parse", "HEAD")) == before
    assert sorted(path.name for path in clone.iterdir()) == [".git", "pom.xml"]


def test_a_build_that_fails_says_what_maven_said(clone: Path, seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(clone), "4.9.9"]) == 1
    assert "it does not compile" in capsys.readouterr().err


def test_an_unknown_tag_a_folder_that_is_no_clone_and_none_at_all_are_named(
    clone: Path, seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))  # what is above belongs to no clone of the test
    for folder, version, problem in (
        (clone, "9.9.9", "has no tag rocketmq-all-9.9.9"),
        (tmp_path / "seen", VERSION, "is no clone of apache/rocketmq"),
        (tmp_path / "nothing", VERSION, "is no folder"),
    ):
        assert main([str(folder), version]) == 1
        assert problem in capsys.readouterr().err
    assert not (seen / "words").exists()


def test_without_maven_it_says_so(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_git = tmp_path / "only-git"
    only_git.mkdir()
    (only_git / "git").write_text("#!/bin/sh\n")
    (only_git / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(only_git))
    assert main([str(clone), VERSION]) == 1
    assert capsys.readouterr().err.strip() == "mvn is not on the PATH"
