"""The catalogue of metrics."""

import inspect
import re
from collections.abc import Callable, Iterable
from types import ModuleType

from twisted.trial.unittest import SynchronousTestCase

from rmqha.store import nodestate
from rmqha.web import namesrvweb, nodemetrics
from rmqha.web.catalogue import COMMON_LABELS, NAME_SERVER, NODE, Metric

NAME = re.compile(r'"((?:rmqha|rocketmq)_\w+)"')


def names_in(*told: ModuleType | Callable[..., object]) -> set[str]:
    """The metrics that modules or functions make, by their source."""
    return {name for each in told for name in NAME.findall(inspect.getsource(each))}


def names_of(metrics: Iterable[Metric]) -> set[str]:
    return {metric.name for metric in metrics}


class CatalogueTests(SynchronousTestCase):
    def test_it_has_the_metrics_that_are_told_and_no_others(self) -> None:
        """Its two tables are those of docs/observability.md."""
        self.assertEqual(names_in(nodemetrics, nodestate), names_of(NODE))
        shared = names_in(nodemetrics.of_process, nodemetrics.build_info)
        self.assertEqual(names_in(namesrvweb._families) | shared, names_of(NAME_SERVER))

    def test_no_metric_has_a_common_label_of_its_own(self) -> None:
        for metric in (*NODE, *NAME_SERVER):
            self.assertEqual(set(metric.labels) & set(COMMON_LABELS), set())
            self.assertTrue(metric.help.endswith("."))
