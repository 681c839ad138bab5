"""The bar below the lines of a node's log: when it is shown, and that lines stay whole."""

import io
import os
import re

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from rmqha.ops.places import LOOK_SECONDS, IWorker, Place, ProgressBarService
from rmqha.ops.terminalbar import TerminalBar

MIB = 1 << 20


class Terminal(io.StringIO):
    """What a terminal gets."""

    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    """Without what moves the cursor and sets colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


class TerminalBarTests(SynchronousTestCase):
    def setUp(self) -> None:
        for name in ("TERM", "COLUMNS", "NO_COLOR", "TTY_COMPATIBLE"):
            self.patch_environment(name)
        self.terminal = Terminal()
        bar = TerminalBar.on(self.terminal)
        assert bar is not None
        self.bar = bar

    def patch_environment(self, name: str) -> None:
        kept = os.environ.pop(name, None)
        if name == "TERM":
            os.environ[name] = "xterm"
        if name == "COLUMNS":
            os.environ[name] = "120"

        def restore() -> None:
            os.environ.pop(name, None)
            if kept is not None:
                os.environ[name] = kept

        self.addCleanup(restore)

    def written(self) -> str:
        """What was written since the last call."""
        text = self.terminal.getvalue()
        self.terminal.seek(0)
        self.terminal.truncate()
        return text

    def test_without_a_bar_lines_are_written_as_they_are(self) -> None:
        self.bar.write("a line [bold]with brackets[/bold]\n\tand more\n")
        self.assertEqual(self.written(), "a line [bold]with brackets[/bold]\n\tand more\n")

    def test_lines_are_above_the_bar(self) -> None:
        self.bar.show("copying [from] the master", 3 * MIB, 4 * MIB)
        shown = plain(self.written())
        self.assertIn("copying [from] the master", shown)
        self.assertIn("3.0/4.0 MiB", shown)
        line = "2026 [rmqha#info] [bold]" + "x" * 300 + "\n"
        self.bar.write(line)
        above, _, below = plain(self.written()).partition("copying [from]")
        self.assertIn(line.strip(), above.replace("\n", "").replace("\r", ""))
        self.assertIn("3.0/4.0 MiB", below)

    def test_the_bar_goes_and_the_cursor_comes_back(self) -> None:
        self.bar.show("a", 1, 2)
        self.assertIn("\x1b[?25l", self.written())
        self.bar.hide()
        self.assertIn("\x1b[?25h", self.written())
        self.bar.hide()
        self.bar.write("after\n")
        self.assertEqual(self.written(), "after\n")

    def test_only_a_terminal_has_a_bar(self) -> None:
        self.assertIsNone(TerminalBar.on(io.StringIO()))
        self.assertIsNone(TerminalBar.on(None))
        os.environ["TERM"] = "dumb"
        self.assertIsNone(TerminalBar.on(self.terminal))


class SpiedBar(TerminalBar):
    """Notes what is shown."""

    def __init__(self) -> None:
        TerminalBar.__init__(self, io.StringIO())
        self.shown: list[tuple[str, int, int] | None] = []

    def show(self, title: str, done: int, total: int) -> None:
        self.shown.append((title, done, total))

    def hide(self) -> None:
        if self.shown and self.shown[-1] is not None:
            self.shown.append(None)


@implementer(IWorker)
class ProgressBarServiceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.bar = SpiedBar()
        self.place: Place | None = None
        self.service = ProgressBarService(self.bar, self, self.clock)
        self.service.startService()

    def how_far(self) -> Place | None:
        return self.place

    def test_it_asks_what_this_test_has(self) -> None:
        verifyObject(IWorker, self)

    def look(self, place: Place | None) -> None:
        self.place = place
        self.clock.advance(LOOK_SECONDS)

    def test_what_is_over_at_once_shows_nothing(self) -> None:
        for _ in range(3):
            self.look(Place("a", 1, 2))
            self.look(None)
        self.assertEqual(self.bar.shown, [])

    def test_a_copy_is_counted_from_where_it_was_first_seen(self) -> None:
        for at in (100, 120, 150):
            self.look(Place("a", at, 200))
        self.look(None)
        self.assertEqual(self.bar.shown, [("a", 20, 100), ("a", 50, 100), None])

    def test_an_opening_is_counted_from_its_start(self) -> None:
        for at in (100, 120):
            self.look(Place("a", at, 200, start=0))
        self.look(Place("b", 5, 9, start=0))
        self.look(Place("b", 6, 9, start=0))
        self.assertEqual(self.bar.shown, [("a", 120, 200), ("b", 6, 9)])

    def test_a_stop_takes_the_bar_away(self) -> None:
        self.look(Place("a", 1, 2))
        self.look(Place("a", 1, 2))
        self.successResultOf(self.service.stopService())
        self.assertEqual(self.bar.shown[-1], None)
        self.assertEqual(self.clock.getDelayedCalls(), [])
