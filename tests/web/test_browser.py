"""The status page in a real browser: its style sheet is allowed, and nothing is blocked."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.testing.nodes import TwistdNode

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="chromium is missing (Debian's package)"),
]


def browse(work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the browser without a window. Its complaints about the page are on stderr."""
    assert CHROMIUM is not None, "CI installs Debian's package chromium"
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={work / 'profile'}", "--enable-logging=stderr", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The HTTP port of a master."""
    work = tmp_path_factory.mktemp("browser")
    with TwistdNode(work, ["--role=async-master", "--port=0", "--http-port=0"]) as node:
        node.wait_for_event("remoting port is ")
        yield node.port("http")


def test_the_browser_blocks_nothing_and_shows_the_state(tmp_path: Path, port: int) -> None:
    shown = browse(tmp_path, "--dump-dom", f"http://127.0.0.1:{port}/?refresh=0")
    assert "ASYNC_MASTER" in shown.stdout
    assert "Content Security Policy" not in shown.stderr
    assert "Refused" not in shown.stderr
