"""The man pages and the completions of shells that the build makes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rmqha.cli import main
from tests.needs import need

pytestmark = pytest.mark.process

MAKE = Path(__file__).parents[2] / "packaging" / "make" / "pages.py"
BINARIES = Path(sys.executable).parent
SHELLS = {"bash": "rmqha.bash", "zsh": "_rmqha", "fish": "rmqha.fish"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run([sys.executable, MAKE, folder], check=True)  # click-man changes the commands of its own process
    return folder


def test_every_command_has_a_page(pages: Path) -> None:
    named = {path.name for path in (pages / "man").iterdir()}
    assert {f"rmqha-{name}.1" for name in main.list_commands(click.Context(main))} < named
    assert {"rmqha.1", "rmqha-node.1", "rmqha-namesrv.1"} <= named


def test_pages_say_what_exit_codes_mean(pages: Path) -> None:
    for name in ("rmqha", "rmqha-node", "rmqha-namesrv"):
        text = (pages / "man" / f"{name}.1").read_text()
        assert ".SH EXIT STATUS" in text
        assert "store or archive in use" in text


def test_man_shows_the_pages_without_warnings(pages: Path) -> None:
    need(None if shutil.which("groff") else "groff is missing: Debian's package groff-base has it")
    for path in sorted((pages / "man").iterdir()):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-Kutf8", str(path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), path.name


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_loads_its_completions(shell: str, pages: Path) -> None:
    need(None if shutil.which(shell) else f"{shell} is missing")
    subprocess.run([shell, "-n", str(pages / "completions" / SHELLS[shell])], check=True)


def test_bash_completes_a_command(pages: Path) -> None:
    script = f"""
    source {pages / "completions" / SHELLS["bash"]}
    COMP_WORDS=(rmqha veri) COMP_CWORD=1
    _rmqha_completion rmqha veri rmqha
    echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=with_our_command())
    assert (done.stdout, done.stderr) == ("verify\n", "")


def test_fish_completes_an_option(pages: Path, tmp_path: Path) -> None:
    need(None if shutil.which("fish") else "fish is missing")
    script = f"source {pages / 'completions' / SHELLS['fish']}; complete -C 'rmqha verify --agai'"
    environment = {**with_our_command(), "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert "--against" in done.stdout, done


@pytest.mark.parametrize(("shell", "words"), [("zsh", "rmqha veri"), ("fish", "rmqha veri")])
def test_the_command_answers_shells(shell: str, words: str) -> None:
    environment = {**with_our_command(), "_RMQHA_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": "1"}
    environment |= {"COMP_CWORD": "veri"} if shell == "fish" else {}
    done = subprocess.run([str(BINARIES / "rmqha")], capture_output=True, text=True, check=False, env=environment)
    assert "verify" in done.stdout, done


def with_our_command() -> dict[str, str]:
    return {**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}"}
