"""The file of results, and its tables."""

from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.chaos.results import Line, append, read, tables
from tests.interop.rocketmq import PROJECT_ROOT

RESULTS = PROJECT_ROOT / "benchmarks" / "results" / "chaos.jsonl"
LINE = Line("2026-11-23T12:00:00+00:00", "abc", "rmqha", 2, "etcd", ["ours"], "kill-leader", 0, 14.0, 0.1, 15.0, [], 3)


class ResultsTests(SynchronousTestCase):
    def test_what_was_appended_is_read(self) -> None:
        path = Path(self.mktemp())
        lines = [LINE, replace(LINE, violations=["lost: k1"]), replace(LINE, leader_seconds=None, gap_seconds=None)]
        for line in lines:
            append(path, line)
        self.assertEqual(read(path), lines)

    def test_rounds_are_counted_by_fault_and_by_kind_of_cluster(self) -> None:
        worse = replace(LINE, leader_seconds=20.0, names_seconds=0.5, violations=["lost: k1", "gap"], nodes=3)
        frozen = replace(LINE, fault="freeze-leader", seconds=60.0, leader_seconds=None, names_seconds=None)
        java = replace(LINE, cluster="java", load=7.0)
        ours, theirs = tables([LINE, worse, frozen, java]).split("\n\n")
        self.assertEqual(ours.splitlines()[0], "rmqha: 3 rounds (2 with 2 nodes, 1 with 3 nodes; 3 with etcd)")
        self.assertEqual(ours.splitlines()[1], "name servers: 3 ours; load: median 3, highest 3")
        self.assertEqual(
            [line.split() for line in ours.splitlines()[3:]],
            [
                ["freeze-leader", "1", "60", "-", "-", "-", "15.00", "15.00", "0"],
                ["kill-leader", "2", "-", "17.00", "20.00", "0.50", "15.00", "15.00", "1"],
            ],
        )
        self.assertEqual(len(theirs.splitlines()), 4)

    def test_the_page_has_the_tables_of_the_file(self) -> None:
        """``python -m tests.chaos --table FILE --page docs/benchmarks.md`` puts them there."""
        page = (PROJECT_ROOT / "docs" / "benchmarks.md").read_text()
        self.assertIn(f"\n```text\n{tables(read(RESULTS))}\n```\n", page)
