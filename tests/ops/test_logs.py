"""Log events as lines for people or for machines, in a file that other programs may move away."""

import json
import os
import subprocess
import sys
import syslog
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from twisted.logger import LogEvent, Logger, LogLevel
from twisted.python.failure import Failure
from twisted.python.syslog import SyslogObserver as TwistedSyslogObserver
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.events import Event
from rmqha.ops.logs import (
    LogFormat,
    NodeLogObserver,
    ReopenedFile,
    SyslogObserver,
    format_event_as_json,
    format_event_as_text,
)
from tests.fixtures import new_folder


def event(**fields: Any) -> LogEvent:
    return {
        "log_time": 1_795_000_000.25,
        "log_level": LogLevel.warn,
        "log_namespace": "rmqha.ha.slave.protocol",
        "log_format": "slave {peer} is at {offset}",
        "log_logger": object(),
        "peer": "10.0.0.1:5",
        "offset": 7,
        **fields,
    }


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("not today")

    __repr__ = __str__


class JsonTests(SynchronousTestCase):
    def line(self, **fields: Any) -> dict[str, Any]:
        text = format_event_as_json(event(**fields))
        self.assertTrue(text.endswith("\n"))
        self.assertEqual(text.count("\n"), 1)
        line: dict[str, Any] = orjson.loads(text)  # which takes no lone surrogates, as many readers do
        return line

    def test_an_event_is_one_line_with_its_own_fields(self) -> None:
        self.assertEqual(
            self.line(),
            {
                "time": 1_795_000_000.25,
                "level": "warn",
                "namespace": "rmqha.ha.slave.protocol",
                "message": "slave 10.0.0.1:5 is at 7",
                "peer": "10.0.0.1:5",
                "offset": 7,
            },
        )

    def test_its_name_is_printed(self) -> None:
        for value in (1, 2**70):  # with the second one, orjson does not accept the line at first
            self.assertEqual(self.line(event=Event.SLAVE_GONE, value=value)["event"], "slave_gone")

    def test_a_failure_brings_its_traceback(self) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            line = self.line(log_failure=Failure())
        self.assertIn("OSError: [Errno 28] No space left on device", line["traceback"])
        self.assertIn("test_logs.py", line["traceback"])

    def test_text_of_several_lines_stays_one_line(self) -> None:
        self.assertEqual(self.line(peer="a\nb")["message"], "slave a\nb is at 7")

    def test_no_value_loses_the_event(self) -> None:
        values = [
            "\udcff",
            2**70,
            -(2**64),
            b"\xff",
            {("a",): 1},
            {"a": ["\udcff"]},
            Unprintable(),
            object(),
            Path("x"),
        ]
        for value in values:
            with self.subTest(type(value).__name__):
                line = self.line(value=value)
                self.assertEqual((line["offset"], line["message"]), (7, "slave 10.0.0.1:5 is at 7"))
                self.assertIn("value", line)

    def test_a_file_name_that_is_no_utf8_is_told_with_escapes(self) -> None:
        self.assertEqual(self.line(peer="a\udcffb")["message"], "slave a\\udcffb is at 7")

    def test_a_terminal_obeys_nothing_of_it(self) -> None:
        hostile = "\x1b[2J\x9b31m\u202e\U000e0001"
        text = format_event_as_json(event(peer=hostile)).rstrip("\n")
        self.assertTrue(text.isprintable(), ascii(text))
        self.assertEqual(orjson.loads(text)["peer"], hostile)

    def test_what_a_format_lacks_is_told_too(self) -> None:
        self.assertIn("lacking", self.line(log_format="{lacking}")["message"])


class TextTests(SynchronousTestCase):
    """For people, on a terminal: strangers choose names, topics and what an error says."""

    def text(self, **fields: Any) -> str:
        text = format_event_as_text(event(**fields))
        assert text is not None
        self.assertTrue(text.endswith("\n"))
        return text

    def test_a_strangers_control_characters_are_escaped(self) -> None:
        text = self.text(peer="\x1b[2J\r\x07\x9b1m\u202e\udcff")
        self.assertTrue(
            text.endswith("[rmqha.ha.slave.protocol#warn] slave \\x1b[2J\\r\\x07\\x9b1m\\u202e\\udcff is at 7\n"), text
        )

    def test_a_stranger_starts_no_line(self) -> None:
        text = self.text(peer="x\n2026-11-21T00:00:00+0000 [rmqha.node.node#info] all is well")
        self.assertEqual(text.count("\n"), 1)
        self.assertIn("slave x\\n2026-11-21", text)

    def test_a_traceback_keeps_its_lines_and_is_escaped(self) -> None:
        try:
            raise ValueError("no topic: \x1b[31m")
        except ValueError:
            text = self.text(log_failure=Failure())
        self.assertIn("slave 10.0.0.1:5 is at 7\n\t", text)
        self.assertIn("ValueError: no topic: \\x1b[31m", text)
        self.assertTrue(text.replace("\n", "").replace("\t", "").isprintable(), ascii(text))

    def test_lines_of_twisteds_own_stay(self) -> None:
        text = self.text(log_namespace="twisted.python.log", peer="one\ntwo\x1b")
        self.assertIn("slave one\n\ttwo\\x1b is at 7\n", text)

    def test_an_event_without_text_is_no_line(self) -> None:
        self.assertIsNone(format_event_as_text({"log_namespace": "rmqha", "log_format": ""}))


class ObserverTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = new_folder(self) / "node.log"

    def log(self, observer: NodeLogObserver, text: str) -> None:
        Logger("rmqha.test", observer=observer).info("{text}", text=text)

    def test_json_lines_parse(self) -> None:
        observer = NodeLogObserver(LogFormat.JSON, self.path)
        for text in ("one", "two\nlines", "\udcff", "{"):
            self.log(observer, text)
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.assertEqual([line["text"] for line in lines], ["one", "two\nlines", "\\udcff", "{"])
        self.assertEqual({line["namespace"] for line in lines}, {"rmqha.test"})

    def test_text_is_for_people(self) -> None:
        self.log(NodeLogObserver(LogFormat.TEXT, self.path), "caf\xe9 \udcff")
        self.assertRegex(self.path.read_text("utf-8"), r"^\d{4}-\S+ \[rmqha.test#info\] caf\xe9 \\udcff\n$")

    def test_text_holds_nothing_that_a_terminal_obeys(self) -> None:
        self.log(NodeLogObserver(LogFormat.TEXT, self.path), "\x1b[2J\n")
        self.assertTrue(self.path.read_text("utf-8").endswith("[rmqha.test#info] \\x1b[2J\\n\n"))

    def test_without_a_path_it_is_standard_output(self) -> None:
        output = StringIO()
        self.patch(sys, "stdout", output)
        observer = NodeLogObserver(LogFormat.JSON, None)
        self.log(observer, "here")
        observer.reopen()
        self.log(observer, "still here")
        self.assertEqual([json.loads(line)["text"] for line in output.getvalue().splitlines()], ["here", "still here"])

    def test_a_file_that_was_moved_away_is_made_anew(self) -> None:
        observer = NodeLogObserver(LogFormat.JSON, self.path)
        self.log(observer, "before")
        moved = self.path.rename(self.path.with_suffix(".1"))
        self.log(observer, "meanwhile")
        observer.reopen()
        self.log(observer, "after")
        self.assertEqual([json.loads(line)["text"] for line in moved.read_text().splitlines()], ["before", "meanwhile"])
        self.assertEqual([json.loads(line)["text"] for line in self.path.read_text().splitlines()], ["after"])

    def test_reopening_a_file_that_stayed_appends(self) -> None:
        observer = NodeLogObserver(LogFormat.JSON, self.path)
        self.log(observer, "one")
        observer.reopen()
        self.log(observer, "two")
        self.assertEqual(len(self.path.read_text().splitlines()), 2)

    def test_it_goes_on_in_the_old_file_where_no_new_one_can_be_had(self) -> None:
        file = ReopenedFile(self.path)
        folder = self.path.parent.rename(self.path.parent.with_name("moved"))
        self.assertRaises(OSError, file.reopen)
        file.write("still written\n")
        file.flush()
        self.assertEqual((folder / "node.log").read_text(), "still written\n")

    def test_a_daemon_that_changed_its_folder_finds_the_file_again(self) -> None:
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(self.path.parent)
        file = ReopenedFile(Path("relative.log"))
        os.chdir("/")
        file.reopen()
        file.write("here\n")
        self.assertEqual((self.path.parent / "relative.log").read_text(), "here\n")

    def test_a_folder_that_is_not_there_is_an_os_error(self) -> None:
        self.assertRaises(OSError, NodeLogObserver, LogFormat.TEXT, self.path / "none" / "node.log")


class SyslogTests(SynchronousTestCase):
    """Twisted's observer for --syslog escapes nothing."""

    def test_what_strangers_chose_is_escaped(self) -> None:
        told: list[tuple[int, str]] = []
        sent = staticmethod(lambda priority, text: told.append((priority, text)))
        self.patch(TwistedSyslogObserver, "syslog", sent)
        log = Logger(namespace="rmqha.test", observer=SyslogObserver("rmqha"))
        log.info("a group named {name}", name="\x1b[31mred\nline 2")
        log.error("bad")
        info, error = told
        self.assertEqual(info[1], "[rmqha.test#info] a group named \\x1b[31mred\\nline 2")
        self.assertEqual(error[0] & 7, syslog.LOG_ALERT)


TAC = """
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.logger import Logger
from rmqha.namesrv_tap import Options, makeService

options = Options()
options.parseOptions(["--port=0", "--bind=127.0.0.1", "--folder=namesrv"])
application = Application("rmqha")
makeService(options).setServiceParent(application)
reactor.callWhenRunning(lambda: Logger(namespace="rmqha.evil").warn("{name}", name="\\x1b[31mred"))
reactor.callWhenRunning(lambda: reactor.callLater(0, reactor.stop))
"""


@pytest.mark.process
@pytest.mark.parametrize("options", [[], ["--logfile=node.log"]])
def test_a_tac_file_logs_no_control_characters(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "node.tac").write_text(TAC)
    twistd = Path(sys.executable).with_name("twistd")
    done = subprocess.run(
        [twistd, "-n", "--pidfile=", *options, "-y", "node.tac"], cwd=tmp_path, capture_output=True, check=False
    )
    written = (tmp_path / "node.log").read_bytes() if options else done.stdout
    assert b"\\x1b[31mred" in written, (written, done.stderr)
    assert b"\x1b" not in written
