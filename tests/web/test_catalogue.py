"""The catalogue of metrics: its labels."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.web.catalogue import COMMON_LABELS, NAME_SERVER, NODE


class CatalogueTests(SynchronousTestCase):
    def test_no_metric_has_a_common_label_of_its_own(self) -> None:
        for metric in (*NODE, *NAME_SERVER):
            self.assertEqual(set(metric.labels) & set(COMMON_LABELS), set())
            self.assertTrue(metric.help.endswith("."))
