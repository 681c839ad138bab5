"""The programs of docs/client.md run, print what the page says, and are what the page shows."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, TwistdNode
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
PROGRAMS = sorted(path.name for path in (ROOT / "examples").glob("client_*.py"))
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name server that knows a master."""
    work = tmp_path_factory.mktemp("examples")
    with NameServerNode(work) as node:
        options = ["--role=async-master", "--port=0", f"--namesrv={node.address}"]
        with TwistdNode(work, options, name="master") as master:
            master.wait_for_event(Event.REGISTERED)
            yield node.address


def run(program: str, *arguments: str) -> list[str]:
    """What the program prints, and it must end well."""
    command = [sys.executable, str(ROOT / "examples" / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_hello(name_server: str) -> None:
    lines = run("client_hello.py", name_server)
    assert sum(line.startswith("SEND_OK queue ") for line in lines) == 10
    assert {f"greeting hello {number}" for number in range(10)} <= set(lines)


def test_retry(name_server: str) -> None:
    assert run("client_retry.py", name_server) == ["try 0", "try 1"]


def test_ordered(name_server: str) -> None:
    assert run("client_ordered.py", name_server) == [f"{name} [0, 1, 2, 3, 4]" for name in ("anna", "bert", "carl")]


def test_transaction(name_server: str) -> None:
    expected = ["order-1 COMMIT", "order-2 ROLLBACK", "order-3 COMMIT", "delivered ['order-1', 'order-3']"]
    assert run("client_transaction.py", name_server) == expected


def test_batch_and_delay(name_server: str) -> None:
    assert run("client_batch_delay.py", name_server) == ["SEND_OK 0", *"01234", "a second later"]


def test_deferred(name_server: str) -> None:
    assert run("client_deferred.py", name_server) == ["SEND_OK", "hello"]


def test_each_program_has_a_test_and_is_named_by_the_page() -> None:
    assert [f"client_{name}.py" for name in sorted(NAMES)] == PROGRAMS
    assert [name for name in PROGRAMS if f"examples/{name}" not in PAGE] == []


NAMES = ("hello", "retry", "ordered", "transaction", "batch_delay", "deferred")


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_block_of_the_page_is_part_of_a_program(number: int) -> None:
    programs = [(ROOT / "examples" / name).read_text() for name in PROGRAMS]
    lines = [line.strip() for line in BLOCKS[number].splitlines() if line.strip()]
    assert lines
    assert any(is_part(lines, [line.strip() for line in text.splitlines() if line.strip()]) for text in programs)


def is_part(part: list[str], whole: list[str]) -> bool:
    """Whether these lines follow each other in the other ones."""
    return any(whole[at : at + len(part)] == part for at in range(len(whole)))
