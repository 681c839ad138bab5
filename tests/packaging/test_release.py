"""``make release``: what it refuses, and what it leaves."""

import os
import runpy
import shutil
import subprocess
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqha import __version__
from tests.needs import need

ROOT = Path(__file__).parents[2]
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "packaging" / "make" / "release.py"))
GOOD = RELEASE["Facts"](
    version="1.2.3",
    installed="1.2.3",
    news="1.2.3",
    changelog="1.2.3",
    named=frozenset({"1.2.3"}),
    fragments=(),
    branch="main",
    changes=(),
    tags=("v1.2.2",),
)


def test_a_checkout_that_agrees_with_itself_can_be_a_release() -> None:
    assert RELEASE["problems"](GOOD) == []


@pytest.mark.parametrize(
    ("difference", "sentence"),
    [
        ({"changes": ("?? a.py",)}, "Not committed: a.py: commit or remove it first."),
        ({"changes": (" M a.py", "?? b.py")}, "Not committed: a.py and 1 more: commit or remove it first."),
        ({"branch": "mine"}, "The branch is mine: a release is made from main."),
        ({"branch": ""}, "The branch is a detached commit: a release is made from main."),
        ({"installed": "1.2.2"}, ".venv has rmqha 1.2.2, pyproject.toml says 1.2.3: make install."),
        (
            {"news": "1.2.2"},
            "NEWS.md begins with 1.2.2, pyproject.toml says 1.2.3: write the news of 1.2.3.",
        ),
        (
            {"changelog": "no version"},
            "packaging/debian/changelog begins with no version, pyproject.toml says 1.2.3: add an entry.",
        ),
        (
            {"named": frozenset({"1.2.3", "0.1.0"})},
            "Pages name rmqha 0.1.0, pyproject.toml says 1.2.3: correct the pages.",
        ),
        (
            {"fragments": ("9.bugfix", "9.feature")},
            "newsfragments/ still has 9.bugfix …: "
            "put it into NEWS.md (towncrier build --version 1.2.3), and remove it.",
        ),
        ({"tags": ("v1.2.3",)}, "The tag v1.2.3 is there already: choose another version in pyproject.toml."),
    ],
)
def test_what_disagrees_is_refused_in_one_sentence(difference: dict[str, Any], sentence: str) -> None:
    assert RELEASE["problems"](replace(GOOD, **difference)) == [sentence]


def test_the_package_has_the_version_of_pyproject() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert __version__ == content["project"]["version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of git with the files that name the version, as they are here."""
    need(None if shutil.which("git") else "git is missing")
    files = [
        ROOT / "pyproject.toml",
        ROOT / "packaging/debian/changelog",
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
    for path in files:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copytree(ROOT / "newsfragments", tmp_path / "newsfragments")
    for path in (tmp_path / "newsfragments").glob("[0-9+]*"):
        path.unlink()  # news of the next release
    for command in ("init --quiet --initial-branch=main", "add --all", "commit --quiet --message=all"):
        git(tmp_path, *command.split())
    return tmp_path


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    subprocess.run(("git", *who, *words), cwd=folder, check=True)


@pytest.mark.process
def test_what_names_the_version_here_agrees(checkout: Path) -> None:
    facts = replace(RELEASE["facts_of"](checkout), installed=RELEASE["facts_of"](checkout).version)
    assert RELEASE["problems"](facts) == []
    assert facts.named == {facts.version}


@pytest.mark.process
def test_facts_of_a_checkout_are_found(checkout: Path) -> None:
    version = RELEASE["facts_of"](checkout).version
    git(checkout, "tag", f"v{version}")
    (checkout / "newsfragments" / "9.feature").write_text("Something.")
    page = checkout / "docs" / "install.md"
    page.write_text(page.read_text().replace(f"rmqha-{version}-py3", "rmqha-0.0.9-py3"))
    for name, words in (("NEWS.md", "## rmqha "), ("packaging/debian/changelog", "rmqha (")):
        path = checkout / name
        path.write_text(path.read_text().replace(words + version, words + "0.0.8", 1))
    facts = RELEASE["facts_of"](checkout)
    assert (facts.news, facts.changelog, facts.fragments, facts.tags) == (
        "0.0.8",
        "0.0.8",
        ("9.feature",),
        (f"v{version}",),
    )
    assert facts.named == {version, "0.0.9"}
    assert len(facts.changes) == 4


def test_a_part_that_cannot_be_made_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    part = RELEASE["Part"]
    assert part("x", ("true",), ("no-such-tool", "nor-this")).missing() == "no-such-tool and nor-this are missing"
    assert part("x", ("true",), ("sh",)).missing() == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert part("x", ("true",), as_root=True).missing() == "only root can"
    steps = RELEASE["steps"](GOOD, "abcdef", {"image": "only root can", "signature": "gpg has no secret key"})
    assert "Make on a machine that can, and add to dist/SHA256SUMS: image. Here only root can." in steps
    assert "Sign where the key is: gpg --armor --detach-sign dist/SHA256SUMS" in steps


def test_an_archive_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    pages = tmp_path / "pages" / "man"
    pages.mkdir(parents=True)
    archive = tmp_path / "rmqha-1-pages.tar.gz"
    made = []
    for number in range(2):
        (pages / "rmqha.1").write_text("text")
        os.utime(pages / "rmqha.1", (number, number))
        RELEASE["pack"](pages.parent, archive, 1000 * 1000)
        made.append(archive.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["rmqha-1-pages/man", "rmqha-1-pages/man/rmqha.1"]
        assert {member.mtime for member in packed} == {1000 * 1000}


@pytest.mark.process
def test_checksums_are_signed_with_the_key_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(None if shutil.which("gpg") else "gpg is missing")
    home = Path("/tmp") / f"rmqha-gpg-{os.getpid()}"  # gpg's sockets need a short name
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    try:
        assert RELEASE["no_key"]() == "gpg has no secret key"
        words = ("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "releases@example.com")
        subprocess.run(words, check=True)
        assert RELEASE["no_key"]() == ""
        content = tmp_path / "rmqha-1.whl"
        content.write_bytes(b"a wheel")
        sums = tmp_path / "SHA256SUMS"
        RELEASE["write_sums"]([content], sums)
        RELEASE["sign"](sums)
        subprocess.run(("sha256sum", "--check", "--strict", sums.name), cwd=tmp_path, check=True)
        verify = ("gpg", "--verify", f"{sums}.asc", str(sums))
        subprocess.run(verify, check=True)
        sums.write_text(sums.read_text().replace("rmqha-1", "rmqha-2"))
        assert subprocess.run(verify, check=False).returncode != 0
    finally:
        subprocess.run(("gpgconf", "--kill", "all"), check=False)
        shutil.rmtree(home)
