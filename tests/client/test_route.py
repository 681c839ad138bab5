"""What a client believes of a route."""

from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.client.route import MAX_QUEUES, TopicRoute
from rmqha.store.metadata import TopicConfig


def route_with(read: Any, write: Any, brokers: int = 1) -> TopicRoute:
    names = [f"b{number}" for number in range(brokers)]
    return TopicRoute.from_json(
        {
            "brokerDatas": [{"brokerName": name, "brokerAddrs": {"0": "h:1"}} for name in names],
            "queueDatas": [
                {"brokerName": name, "readQueueNums": read, "writeQueueNums": write, "perm": 6} for name in names
            ],
        }
    )


class TopicRouteTests(SynchronousTestCase):
    def test_a_number_of_queues_that_no_topic_has_is_refused(self) -> None:
        """A client was busy for ever with a thousand million queues."""
        for read, write in ((10**9, 4), (4, 10**9), (2**31 - 1, 2**31 - 1), (-1, 4), (4, -1), (MAX_QUEUES + 1, 1)):
            with self.subTest(read=read, write=write):
                self.assertRaises(ValueError, route_with, read, write)
                self.assertRaises(ValueError, TopicRoute.of_broker, "h:1", TopicConfig("T", read, write))
        self.assertRaises(ValueError, route_with, MAX_QUEUES // 2 + 1, 1, brokers=2)

    @pytest.mark.long
    def test_large_topics_are_fine(self) -> None:
        self.assertEqual(len(route_with(1024, 512, brokers=64).queues_to_read("T")), 65_536)
        self.assertEqual(len(route_with(0, 8).queues_to_write("T")), 8)
