"""The commands that README and the pages of docs/ show: which a test types, and which no test can."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
SHELL = ("", "sh", "console")
"""The languages of blocks with commands. In ``console`` they begin with ``$``, and the rest is what they print."""
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
"""A comment in the line before a block says why no test can type its commands."""
NEVER_TYPED = ("pip install", "make ")
"""They would change the machine: the Makefile's targets and tests/check_wheel.py are about them."""


@dataclass(frozen=True, slots=True)
class Block:
    """A code block below a heading of a page. ``not_run`` is why no test can type it, None if one must."""

    page: str
    heading: str
    language: str
    lines: tuple[str, ...]
    not_run: str | None = None

    @property
    def section(self) -> str:
        """``page: heading``."""
        return f"{self.page}: {self.heading}"

    @property
    def commands(self) -> list[str]:
        """The commands, with their comments. A backslash at the end of a line continues it."""
        lines = "\n".join(self.lines).replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith((*NEVER_TYPED, "#"))]

    def shown(self) -> list[tuple[str, list[str]]]:
        """Each command of a block ``console`` with the lines that the page shows as its output."""
        found: list[tuple[str, list[str]]] = []
        for line in self.lines:
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            elif found:
                found[-1][1].append(line)
        return found


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """All code blocks of a page, in order, whatever their language."""
    heading, language, reason, lines = "", None, None, list[str]()
    for line in text.splitlines():
        if line.startswith("```"):
            if language is None:
                language, lines = line[3:].strip(), []
            else:
                yield Block(page, heading, language, tuple(lines), reason)
                language = reason = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading, reason = line.lstrip("# "), None
        elif line.strip():
            found = NOT_RUN.fullmatch(line.strip())
            reason = None if found is None else found[1]


def all_blocks() -> list[Block]:
    """The code blocks of README and of docs/."""
    return [block for path in PAGES for block in blocks_of(path.stem, path.read_text())]


def shell_blocks() -> list[Block]:
    """The blocks with commands. A block ``text`` is what a command prints, or a synopsis."""
    return [block for block in all_blocks() if block.language in SHELL and block.commands]


def commands_of(section: str) -> list[str]:
    """The commands of the section ``page: heading`` that a test can type, in order."""
    found = [
        each for block in shell_blocks() if block.section == section and not block.not_run for each in block.commands
    ]
    assert found, section
    return found


def python_of(section: str) -> str:
    """The Python of the section ``page: heading``, in order."""
    found = [block for block in all_blocks() if block.section == section and block.language == "python"]
    assert found, section
    return "\n".join(line for block in found for line in block.lines)


def shows(printed: str, expected: list[str]) -> bool:
    """Whether the lines that a page shows stand in what a command printed, in this order.

    ``…`` stands for any text. Blanks at the ends of lines do not count.
    """
    lines = iter(line.rstrip() for line in printed.splitlines())
    patterns = [
        ".*?".join(map(re.escape, line.rstrip().split("…"))) for line in expected if line.strip() not in ("", "…")
    ]
    return all(any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns)


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of each ``rmqha …`` and ``twistd … rmqha …`` in code of a page, in blocks and within text."""
    outside, code = "", ""
    for number, part in enumerate(re.split(r"^```.*$", text.replace("\\\n", " "), flags=re.MULTILINE)):
        if number % 2:
            code += part
        else:
            outside += part
    code += "\n".join(
        f" {span}" if "\n" in span else span for span in re.findall(r"`([^`]+)`", outside.replace("\n", " "))
    )
    for line in code.splitlines():
        line = line.removeprefix("$ ").strip()
        if re.match(r"(rmqha|twistd)( |$)", line):
            lexer = shlex.shlex(line.partition(" #")[0].partition(" | ")[0], posix=True, punctuation_chars="")
            lexer.whitespace_split, lexer.commenters = True, ""
            try:
                yield list(lexer)
            except ValueError:
                raise ValueError(f"these quotes do not end: {line}") from None
