"""The fuzzer of whole brokers as a developer runs it, and planted bugs that it must find."""

from pathlib import Path

import pytest

from tests.fuzz.broker import fuzz

CONNECTIONS, REQUESTS = 40, 25
"""``make fuzz-broker`` has more of both, and more seeds."""

PLANTED = {
    "answers go to another connection": """
        from rmqha.remoting.protocol import RemotingProtocol
        write, kept = RemotingProtocol._write_answers, []
        def spoilt(self, answers):
            kept.append(answers)
            write(self, kept.pop(0) if len(kept) > 1 else b"")
        RemotingProtocol._write_answers = spoilt
    """,
    "a body has a byte of its neighbour": """
        from rmqha.store.put import Appender
        append = Appender.append_run
        def spoilt(self, run):
            run.records = run.records[:-200] + run.records[-199:-198] + run.records[-199:]
            return append(self, run)
        Appender.append_run = spoilt
    """,
    "a queue offset is told that another message has": """
        from dataclasses import replace
        from rmqha.wire.sends.run import AnswerParts
        of = AnswerParts.of.__func__
        def spoilt(cls, *arguments):
            found = of(cls, *arguments)
            return found._replace(before_queue_offset=found.before_queue_offset + b"1")
        AnswerParts.of = classmethod(spoilt)
    """,
}
"""Each is Python that runs in the node before it starts."""


def test_many_connections_do_not_mix(tmp_path: Path) -> None:
    problems, messages = fuzz(1, tmp_path, CONNECTIONS, REQUESTS)
    assert problems == []
    assert messages > CONNECTIONS * REQUESTS / 2


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("if True:" + PLANTED[name])
    problems, _ = fuzz(1, tmp_path / "work", CONNECTIONS, REQUESTS, prefix=("env", f"PYTHONPATH={tmp_path}"))
    assert problems
    assert [problem for problem in problems if problem.startswith("the node says")] == [], "the planted code is broken"
