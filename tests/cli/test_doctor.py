"""``rmqha doctor`` on stores and on nodes of ours: what it prints, and with which status it ends."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmqha import __version__
from rmqha.cli import main
from rmqha.kit.events import Event
from rmqha.ops.doctor.checks import CHECKS
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from tests.cli.test_cli import CommandTestCase
from tests.commands import rmqha

SECONDS = 300


def findings(stdout: str) -> dict[str, list[tuple[str, str]]]:
    """Verdict and subject of each finding, by check."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(stdout)["findings"]:
        found.setdefault(each["check"], []).append((each["verdict"], each["subject"]))
    return found


def content_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and content of all files."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


class DoctorTests(CommandTestCase):
    """Without a network."""

    def test_the_list(self) -> None:
        lines = self.output_of("doctor", "--list").splitlines()
        self.assertEqual([line.split()[0] for line in lines], [check.name for check in CHECKS])
        self.assertEqual(
            [each["check"] for each in self.json_of("doctor", "--list")["checks"]], [c.name for c in CHECKS]
        )

    def test_wrong_usage(self) -> None:
        self.assertIn("give brokers", self.complaint(2, "doctor"))
        self.assertIn("port", self.complaint(2, "doctor", "host:99999999"))

    def test_a_store_is_not_changed(self) -> None:
        store = self.store()
        before = content_of(store)
        found = self.run_command("doctor", store, "--json")
        self.assertEqual(content_of(store), before)
        self.assertEqual(findings(found.stdout)["answers"], [("PASS", str(store))])
        self.assertEqual(findings(found.stdout)["state"], [("SKIP", str(store))])

    def test_what_is_not_a_store_fails(self) -> None:
        result = self.run_command("doctor", "/nope/nothing")
        self.assertEqual(result.exit_code, 1)
        self.assertIn("FAIL  answers: /nope/nothing", result.stdout)
        self.assertIn("→ give the storePathRootDir", result.stdout)
        self.assertEqual(result.stderr, "rmqha: failed: answers\n")

    def test_settings_of_a_store(self) -> None:
        store = self.store()
        settings = "--set=brokerRole=SYNC_MASTER", "--set=inSyncReplicas=1"
        result = self.run_command("doctor", store, *settings, "--json")
        self.assertEqual(result.exit_code, 1)
        self.assertEqual(findings(result.stdout)["sync-waits"], [("FAIL", str(store))])

    def test_a_narrow_terminal(self) -> None:
        result = CliRunner(env={"COLUMNS": "50"}).invoke(main, ["doctor", "/nope/nothing"])
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 50)

    def test_names_of_strangers_are_escaped(self) -> None:
        result = self.run_command("doctor", "/nope/\x1b[31mred\u202e")
        self.assertNotIn("\x1b", result.stdout + result.stderr)
        self.assertNotIn("\u202e", result.stdout + result.stderr)


def doctor(*arguments: str) -> tuple[int, Any, str]:
    done = rmqha("doctor", *arguments, "--json")
    return done.returncode, findings(done.stdout), done.stdout


@pytest.mark.process
def test_a_pair_and_its_name_server(tmp_path: Path) -> None:
    port, slave_port = free_port(), free_port()
    small = ("--set=mappedFileSizeCommitLog=1048576", "--set=maxHashSlotNum=1000")
    with NameServerNode(tmp_path) as name_server:
        way = f"--namesrv={name_server.address}"
        master_options = ["--role=async-master", f"--port={port}", way, *small]
        slave_options = ["--role=slave", f"--master=127.0.0.1:{port + 1}", f"--port={slave_port}", way, *small]
        with (
            TwistdNode(tmp_path, master_options, name="master") as master,
            TwistdNode(tmp_path, slave_options, name="slave") as slave,
        ):
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            slave.wait_for_tables()
            for node in (master, slave):
                node.wait_for_event(Event.REGISTERED)
            hosts = [f"127.0.0.1:{number}" for number in (port, slave_port)]
            code, found, text = doctor(hosts[0], str(slave.store))
            disk_and_files = [verdict for name in ("disk", "open-files") for verdict, _ in found[name]]
            assert code == ("FAIL" in disk_and_files), text  # this machine's disk may be full
            assert found["state"] == [*(("PASS", host) for host in hosts), ("PASS", str(slave.store))], text
            for name in ("answers", "one-master", "mode", "addresses", "registered", "versions", "clock"):
                assert {verdict for verdict, _ in found[name]} == {"PASS"}, text
            assert found["role"] == [*(("PASS", host) for host in hosts), ("SKIP", str(slave.store))], text
            assert [verdict for verdict, _ in found["segment-size"]] in (["PASS"], ["SKIP"]), text  # it may be empty
            assert __version__ in text
            if os.geteuid() == 0 or found["open-files"][-1][0] != "SKIP":
                assert found["open-files"][-1] in (("PASS", str(slave.store)), ("WARN", str(slave.store)))
            master.kill()
            code, found, text = doctor(*hosts)
            assert code == 1
            assert found["answers"] == [("FAIL", hosts[0]), ("PASS", hosts[1])]


@pytest.mark.process
def test_two_masters_of_a_name_fail(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    nodes = [
        TwistdNode(tmp_path, ["--role=async-master", f"--port={port}"], name=f"master-{port}").start() for port in ports
    ]
    try:
        for node in nodes:
            node.port("remoting")
        code, found, text = doctor(*(f"127.0.0.1:{port}" for port in ports))
        assert (code, found["one-master"]) == (1, [("FAIL", "broker-a")]), text
    finally:
        for node in nodes:
            node.kill()
