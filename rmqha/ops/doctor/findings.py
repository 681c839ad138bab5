"""What a check says: a verdict on one thing, the reason, and what to do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from rmqha.ops.doctor.facts import Facts


class CheckResult(Enum):
    """The result of a check."""

    PASS = "it is as it should be"
    WARN = "it works, but may hurt later"
    FAIL = "it must be changed"
    SKIP = "it cannot be judged from here"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict on ``subject``: a broker, a store or a brokerName. ``advice`` says what to do."""

    verdict: CheckResult
    subject: str
    text: str
    advice: str = ""


def passed(subject: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(CheckResult.PASS, subject, text)


def warned(subject: str, text: str, advice: str) -> Finding:
    """It may hurt later."""
    return Finding(CheckResult.WARN, subject, text, advice)


def failed(subject: str, text: str, advice: str) -> Finding:
    """It must be changed."""
    return Finding(CheckResult.FAIL, subject, text, advice)


def skipped(subject: str, reason: str, advice: str = "") -> Finding:
    """It is not known, for this reason. An unknown fact never passes."""
    return Finding(CheckResult.SKIP, subject, reason, advice)


Look = Callable[[Facts], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check with a name. ``meaning`` completes "This check passes if …"."""

    name: str
    meaning: str
    look: Look

    def findings(self, facts: Facts) -> list[Finding]:
        """What it says; at least one finding."""
        return list(self.look(facts)) or [skipped("-", "there is nothing here that it could look at")]
