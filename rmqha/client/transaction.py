"""Messages that are delivered only if a local transaction succeeds (spec/remoting.md 2.11).

The message is first stored where no consumer sees it. Then the local transaction runs, and its outcome is sent. If the
broker does not get it, because the producer crashed or did not know yet, the broker asks a producer of the group: the
``check`` callback answers.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger
from zope.interface import implementer

from rmqha.client.errors import ClientError, InvalidAnswer, NoMaster
from rmqha.client.instance import MQClient
from rmqha.client.membership import ITransactionMember
from rmqha.client.message import Message, MessageQueue, SendResult, SendStatus
from rmqha.client.producer import Producer
from rmqha.client.received import ReceivedMessage
from rmqha.kit.events import Event
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.record import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    parse_msg_id,
)

MAX_CHECKS = 1000
"""Checks at the same time. A broker repeats those that are not answered."""


class TransactionOutcome(Enum):
    """How a local transaction has ended, with the code of END_TRANSACTION."""

    COMMIT = TRANSACTION_COMMIT_TYPE
    ROLLBACK = TRANSACTION_ROLLBACK_TYPE
    UNKNOWN = 0


class TransactionResult(NamedTuple):
    """Where the hidden message is stored, and how its transaction has ended.

    ``is_told`` says whether the broker knows it; if not, it will ask.
    """

    sent: SendResult
    outcome: TransactionOutcome
    is_told: bool


Outcome = TransactionOutcome | Deferred[TransactionOutcome] | Coroutine[Any, Any, TransactionOutcome]
Execute = Callable[[Message], Outcome]
"""The local transaction. A failure counts as UNKNOWN: the broker will ask."""
Check = Callable[[ReceivedMessage], Outcome]
"""Answers how the transaction of a message has ended, also for earlier processes. A failure counts as UNKNOWN."""


@implementer(ITransactionMember)
class TransactionProducer:
    """Sends messages with local transactions. ``start`` it before, so that brokers can ask it, and ``stop`` it."""

    _log = Logger()

    def __init__(self, client: MQClient, group: str, check: Check) -> None:
        self._client = client
        self._group = group
        self._check = check
        self._producer = Producer(client, group)
        self._checks: set[Deferred[None]] = set()

    def start(self) -> None:
        """Take checks from now on. Raises ValueError if this client has such a producer in the group already."""
        self._client.membership.join_producer(self._group, self)

    def stop(self) -> Deferred[None]:
        """Take no more checks, and leave the group. Never fails."""
        for check in list(self._checks):
            check.cancel()
        return self._client.membership.leave_producer(self._group)

    def send(self, message: Message, execute: Execute) -> Deferred[TransactionResult]:
        """Store a message that no consumer sees yet, run ``execute(message)``, and commit it or roll it back.

        If the message is not stored as the broker is configured (its status is not SEND_OK), the transaction does not
        run, and the message is rolled back. Fails like ``Producer.send``, with ValueError for a delayed message, and
        then the transaction did not run.
        """
        return Deferred.fromCoroutine(self._send(message, execute))

    async def _send(self, message: Message, execute: Execute) -> TransactionResult:
        if message.delay_level:
            raise ValueError("a message of a transaction cannot be delayed")
        half = replace(
            message,
            properties={**message.properties, "TRAN_MSG": "true", "PGROUP": self._group},
            sys_flag=message.sys_flag | TRANSACTION_PREPARED_TYPE,
        )
        sent = await self._producer.send(half)
        outcome = TransactionOutcome.ROLLBACK
        if sent.status is SendStatus.SEND_OK:
            outcome = await self._outcome(maybeDeferred(execute, message), f"the transaction of {sent.msg_id}")
        try:
            await self._end(sent, outcome)
        except ClientError as error:
            self._log.warn(
                "the broker will ask how {id} has ended: {error}",
                event=Event.TRANSACTION_END_NOT_SENT,
                id=sent.msg_id,
                error=str(error),
            )
            return TransactionResult(sent, outcome, False)
        return TransactionResult(sent, outcome, True)

    async def _outcome(self, deciding: Deferred[Any], what: str) -> TransactionOutcome:
        try:
            found = await deciding
            if not isinstance(found, TransactionOutcome):
                raise TypeError(f"{found!r} is not a TransactionOutcome")
        except CancelledError:
            raise
        except Exception:  # of any kind: the user's function has not decided
            self._log.failure("{what} has failed: the broker will ask", event=Event.LOCAL_TRANSACTION_FAILED, what=what)
            return TransactionOutcome.UNKNOWN
        return found

    async def _end(self, sent: SendResult, outcome: TransactionOutcome) -> None:
        address = await self._master_of(sent.queue)
        try:
            _, physical_offset = parse_msg_id(sent.offset_msg_id)
        except ValueError as error:
            raise InvalidAnswer(f"{sent.offset_msg_id!r} is not the id of a message") from error
        fields = {
            "producerGroup": self._group,
            "tranStateTableOffset": str(sent.queue_offset),
            "commitLogOffset": str(physical_offset),
            "commitOrRollback": str(outcome.value),
            "fromTransactionCheck": "false",
            "msgId": sent.msg_id,
        }
        if outcome is TransactionOutcome.UNKNOWN:  # Java's brokers do not answer then
            return
        await self._client.call(address, RequestCode.END_TRANSACTION, fields)

    async def _master_of(self, queue: MessageQueue) -> str:
        await self._client.route(queue.topic)
        address = self._client.master_of(queue.broker_name)
        if address is None:
            raise NoMaster(f"broker {queue.broker_name} has no master now")
        return address

    def check_transaction(
        self, connection: RemotingProtocol, request: RemotingCommand, message: ReceivedMessage
    ) -> None:
        """See ``ITransactionMember``."""
        if len(self._checks) >= MAX_CHECKS:
            return
        checking = Deferred.fromCoroutine(self._answer_check(connection, request, message))
        self._checks.add(checking)

        def over(_: object) -> None:
            self._checks.discard(checking)

        checking.addErrback(lambda _: None).addBoth(over)

    async def _answer_check(
        self, connection: RemotingProtocol, request: RemotingCommand, message: ReceivedMessage
    ) -> None:
        outcome = await self._outcome(maybeDeferred(self._check, message), f"the check of {message.msg_id}")
        fields = request.ext_fields
        connection.push(
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": self._group,
                "tranStateTableOffset": fields.get("tranStateTableOffset", ""),
                "commitLogOffset": fields.get("commitLogOffset", ""),
                "commitOrRollback": str(outcome.value),
                "fromTransactionCheck": "true",
                "msgId": message.msg_id,
                "transactionId": fields.get("transactionId", message.msg_id),
            },
        )
