"""The catalogue of metrics, and the dashboard that is made from it."""

import runpy
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmqha.web.catalogue import COMMON_LABELS, NAME_SERVER, NODE

ROOT = Path(__file__).parents[2]


class CatalogueTests(SynchronousTestCase):
    def test_the_dashboard_is_the_generated_one(self) -> None:
        """``python ops/dashboard.py`` writes it again."""
        made = runpy.run_path(str(ROOT / "ops" / "dashboard.py"))
        self.assertEqual(made["FILE"].read_text(), made["text"]())

    def test_no_metric_has_a_common_label_of_its_own(self) -> None:
        for metric in (*NODE, *NAME_SERVER):
            self.assertEqual(set(metric.labels) & set(COMMON_LABELS), set())
            self.assertTrue(metric.help.endswith("."))
