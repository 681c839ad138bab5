"""What a test does with a master that puts messages (``PutNode``), and how it reads the answers."""

from collections import Counter
from typing import Any

from rmqha.testing.nodes import PutNode, TwistdNode
from tests.freezing import freeze, thaw
from tests.waiting import wait_until

OK, TIMED_OUT, NOT_AVAILABLE = "PUT_OK", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"


def put(master: PutNode, count: int = 1, **load: Any) -> dict[str, int]:
    """The statuses of so many puts, one after the other unless ``load`` says otherwise."""
    statuses: dict[str, int] = master.put(count, **load)["statuses"]
    return statuses


def put_until_ok(master: PutNode) -> int:
    """Put messages until a slave has confirmed one; gives where that one ends."""
    end = 0

    def is_replicated() -> bool:
        nonlocal end
        result = master.put(1)
        end = result["end"]
        return bool(result["statuses"] == {OK: 1})

    wait_until(is_replicated, "a put to be replicated")
    return end


def answers(master: PutNode, at_most: int | None = None) -> list[dict[str, Any]]:
    """The answers to the puts of a command with ``each``, in the order they came; as many as came before its end."""
    seen: list[dict[str, Any]] = []
    while len(seen) != at_most and (answer := master.answer()) is not None and "statuses" not in answer:
        seen.append(answer)
    return seen


def statuses_of(answered: list[dict[str, Any]]) -> dict[str, int]:
    """How many answers of each status."""
    return dict(Counter(answer["status"] for answer in answered))


def promised_end(answered: list[dict[str, Any]]) -> int:
    """Where the last message ends that was answered PUT_OK."""
    end: int = max(answer["offset"] + answer["size"] for answer in answered if answer["status"] == OK)
    return end


def assert_waited(seconds: float, slave_timeout_seconds: float) -> None:
    """A put did not end before its deadline. How late it may end is tested with a clock of the test's own."""
    assert seconds >= slave_timeout_seconds * 0.99


def assert_all(result: dict[str, Any], status: str) -> None:
    """All puts of a command were answered so. A put that waits is answered otherwise, after its deadline."""
    assert set(result["statuses"]) == {status}


def pause(node: TwistdNode) -> None:
    """Freeze it (SIGSTOP)."""
    freeze(node.pid)


def resume(node: TwistdNode) -> None:
    """Let it go on after ``pause``."""
    thaw(node.pid)
