"""The catalogue of metrics, docs/observability.md and the alerts of ops/ agree."""

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmqha.web.catalogue import COMMON_LABELS, NAME_SERVER, NODE
from rmqha.web.health import CHECKS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "observability.md"


class CatalogueTests(SynchronousTestCase):
    def test_the_page_has_all_metrics(self) -> None:
        for metric in (*NODE, *NAME_SERVER):
            self.assertIn(f"| `{metric.name}` |", PAGE.read_text())

    def test_the_page_has_all_checks_and_alerts(self) -> None:
        text = PAGE.read_text()
        for path in CHECKS:
            self.assertIn(f"| `{path}", text)
        for line in (ROOT / "ops" / "alerts.yml").read_text().splitlines():
            if "- alert: " in line:
                self.assertIn(line.partition("- alert: ")[2], text)

    def test_no_metric_has_a_common_label_of_its_own(self) -> None:
        for metric in (*NODE, *NAME_SERVER):
            self.assertEqual(set(metric.labels) & set(COMMON_LABELS), set())
            self.assertTrue(metric.help.endswith("."))
