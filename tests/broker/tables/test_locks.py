"""Locks of queues for consumers in order, over the wire."""

import json
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables import locks
from rmqha.broker.tables.locks import LOCK_MAX_LIVE_SECONDS, RebalanceLockManager
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from tests.broker.brokerstore import Client
from tests.ha.doubles import log_lines


def queue(queue_id: int, broker_name: str = "broker-a") -> dict[str, Any]:
    """A queue as Java names it."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": "T"}


class LockTests(SynchronousTestCase):
    """Clients c1 and c2, on connections of their own."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.locks = RebalanceLockManager(self.clock)
        self.client = Client(self.locks.processors(), self.clock)
        self.addCleanup(self.client.line.lose)

    def ask(self, code: int, client_id: str, queues: Any, group: str = "G") -> RemotingCommand:
        """Lock or unlock."""
        body = {"clientId": client_id, "consumerGroup": group, "mqSet": queues}
        return self.client.ask(code, json.dumps(body).encode())

    def lock(self, client_id: str, *queues: dict[str, Any], group: str = "G") -> list[dict[str, Any]]:
        """The queues that are the client's then."""
        answer = self.ask(RequestCode.LOCK_BATCH_MQ, client_id, queues, group)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        found: list[dict[str, Any]] = json.loads(answer.body)["lockOKMQSet"]
        return found

    def unlock(self, client_id: str, *queues: dict[str, Any]) -> None:
        """There is no body in the answer."""
        answer = self.ask(RequestCode.UNLOCK_BATCH_MQ, client_id, queues)
        self.assertEqual((answer.code, answer.body), (ResponseCode.SUCCESS, b""))

    def test_a_queue_is_one_clients_and_the_others_get_what_is_left(self) -> None:
        self.assertEqual(self.lock("c1", queue(0), queue(1)), [queue(0), queue(1)])
        self.assertEqual(self.lock("c2", queue(1), queue(2)), [queue(2)])

    def test_a_lock_is_of_a_group_and_of_a_brokers_queue(self) -> None:
        self.lock("c1", queue(0))
        self.assertEqual(self.lock("c2", queue(0), group="H"), [queue(0)])
        self.assertEqual(self.lock("c2", queue(0, "broker-b")), [queue(0, "broker-b")])

    def test_no_group_locks_all_that_can_be_locked(self) -> None:
        self.patch(locks, "MAX_LOCKS", 16)
        self.locks = RebalanceLockManager(self.clock)
        self.client = Client(self.locks.processors(), self.clock)
        self.addCleanup(self.client.line.lose)
        self.assertEqual(len(self.lock("c1", *map(queue, range(8)))), 8)
        answer = self.ask(RequestCode.LOCK_BATCH_MQ, "c1", [queue(8)])
        self.assertEqual(answer.code, ResponseCode.SYSTEM_BUSY)
        self.assertEqual(len(self.lock("c2", *map(queue, range(4)), group="H")), 4)
        self.unlock("c1", *map(queue, range(8)))
        self.assertEqual(self.lock("c1", queue(8)), [queue(8)])

    def test_a_lock_that_is_not_renewed_ends_after_a_minute(self) -> None:
        self.lock("c1", queue(0), queue(1))
        self.clock.advance(LOCK_MAX_LIVE_SECONDS)
        self.assertEqual(self.lock("c2", queue(0)), [], "not before")
        self.assertEqual(self.lock("c1", queue(0)), [queue(0)])
        self.clock.advance(1)
        with log_lines() as lines:
            self.assertEqual(self.lock("c2", queue(0), queue(1)), [queue(1)], "queue 0 was renewed")
        self.assertIn("c1 of group G loses queue 1 of T at broker-a", lines())

    def test_a_released_queue_is_anybodys_at_once(self) -> None:
        self.lock("c1", queue(0), queue(1))
        self.unlock("c1", queue(0))
        self.assertEqual(self.lock("c2", queue(0), queue(1)), [queue(0)])

    def test_nobody_releases_another_clients_queue(self) -> None:
        self.lock("c1", queue(0))
        self.unlock("c2", queue(0), queue(7))
        self.assertEqual(self.lock("c2", queue(0)), [])

    def test_no_queues_may_be_null(self) -> None:
        answer = self.ask(RequestCode.LOCK_BATCH_MQ, "c1", None)
        self.assertEqual((answer.code, answer.body), (ResponseCode.SUCCESS, b'{"lockOKMQSet":[]}'))

    def test_a_body_that_is_no_batch_is_refused(self) -> None:
        for body in (
            b"",
            b"[]",
            b'{"clientId":"c"}',
            b'{"clientId":"c","consumerGroup":"G","mqSet":[{"topic":"T"}]}',
            b'{"clientId":"c","consumerGroup":"G","mqSet":[7]}',
        ):
            for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                answer = self.client.ask(code, body)
                self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
                self.assertIn("the batch of queues is invalid", answer.remark or "")
