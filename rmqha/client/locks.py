"""The locks of an ordered consumer: a broker gives each queue to one client of a group (spec/remoting.md 2.10)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from twisted.logger import Logger

from rmqha.client.errors import ClientError, InvalidAnswer, NoMaster
from rmqha.client.instance import MQClient
from rmqha.client.message import MessageQueue
from rmqha.client.route import MASTER_ID
from rmqha.client.together import together
from rmqha.kit.events import Event
from rmqha.wire.beans import read_objects
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_strict, loads_lenient

RENEW_SECONDS = 20.0
VALID_SECONDS = 30.0
"""No message is handled if the lock was not renewed for this time. A broker takes a lock away after 60 s."""
LOCK_TIMEOUT_SECONDS = 3.0


class QueueLocks:
    """The locks that a client holds for a group."""

    _log = Logger()

    def __init__(self, client: MQClient, group: str) -> None:
        self._client = client
        self._group = group
        self._renewed_at: dict[MessageQueue, float] = {}

    def is_held(self, queue: MessageQueue) -> bool:
        """Whether no other client can have this queue now."""
        renewed_at = self._renewed_at.get(queue)
        return renewed_at is not None and self._client.clock.seconds() - renewed_at < VALID_SECONDS

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock these queues, or renew their locks. Returns those that another client has. Never raises.

        If a broker does not answer, its locks are as before.
        """
        refused = await together(self._lock_at(name, own) for name, own in _by_broker(queues).items())
        return set().union(*refused)

    async def _lock_at(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        asked_at = self._client.clock.seconds()
        try:
            locked = await self._ask(RequestCode.LOCK_BATCH_MQ, broker_name, queues)
        except ClientError as error:
            self._log.warn(
                "{broker} did not lock {count} queues: {error}",
                event=Event.QUEUES_NOT_LOCKED,
                broker=broker_name,
                count=len(queues),
                error=str(error),
            )
            return set()
        self._renewed_at.update(dict.fromkeys(locked, asked_at))
        for queue in set(queues) - locked:
            self._renewed_at.pop(queue, None)
        return set(queues) - locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Let other clients have these queues. Never raises: a lock that cannot be released ends by itself."""
        for broker_name, own in _by_broker(queues).items():
            for queue in own:
                self._renewed_at.pop(queue, None)
            try:
                await self._ask(RequestCode.UNLOCK_BATCH_MQ, broker_name, own)
            except ClientError as error:
                self._log.warn(
                    "{broker} did not unlock queues: {error}",
                    event=Event.QUEUES_NOT_UNLOCKED,
                    broker=broker_name,
                    error=str(error),
                )

    async def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        address = (await self._client.addresses_of(broker_name, queues[0].topic)).get(MASTER_ID)
        if address is None:
            self._client.forget_route(queues[0].topic)
            raise NoMaster(f"broker {broker_name} has no master now")
        body = {
            "clientId": self._client.client_id,
            "consumerGroup": self._group,
            "mqSet": [queue.to_json() for queue in queues],
        }
        answer = await self._client.call(address, code, body=dumps_strict(body), timeout=LOCK_TIMEOUT_SECONDS)
        if code == RequestCode.UNLOCK_BATCH_MQ:
            return set()
        try:
            return _locked(loads_lenient(answer.body)).intersection(queues)
        except ValueError as error:
            raise InvalidAnswer(f"the answer to a lock cannot be read: {error}") from error


def _by_broker(queues: Iterable[MessageQueue]) -> Mapping[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found


def _locked(content: Any) -> set[MessageQueue]:
    return {MessageQueue.from_json(item) for item in read_objects(content, "lockOKMQSet")}
