"""A producer of transactions: what it stores, how it ends them, and how it answers checks (spec/remoting.md 2.11)."""

from collections.abc import Callable

from twisted.internet.defer import Deferred

from rmqha.client import (
    Message,
    MQBrokerError,
    ReceivedMessage,
    SendStatus,
    TransactionOutcome,
    TransactionProducer,
    TransactionResult,
)
from rmqha.client.transaction import Outcome
from rmqha.wire.command import RequestCode
from rmqha.wire.properties import format_properties, parse_properties
from rmqha.wire.record import Record, encode_record
from tests.client.groups import TOPIC, GroupTestCase

GROUP = "PG"
COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN


class TransactionTests(GroupTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.checked: list[ReceivedMessage] = []
        self.answer: Outcome = COMMIT
        self.producer = TransactionProducer(self.client, GROUP, self.check)
        self.producer.start()

    def stop(self) -> None:
        stopping = self.producer.stop()
        self.carry()
        self.successResultOf(stopping)
        super().stop()

    def check(self, message: ReceivedMessage) -> Outcome:
        self.checked.append(message)
        return self.answer

    def send(self, execute: Callable[[Message], Outcome]) -> TransactionResult:
        sending = self.producer.send(Message(TOPIC, b"x"), execute)
        self.carry()
        return self.successResultOf(sending)

    def test_the_message_is_hidden_while_its_transaction_runs_and_then_committed(self) -> None:
        running: Deferred[TransactionOutcome] = Deferred()
        sending = self.producer.send(Message(TOPIC, b"x", tags="A"), lambda _: running)
        self.carry()
        self.assertNoResult(sending)
        (request,) = self.broker.sent
        properties = parse_properties(request.ext_fields["i"])
        self.assertEqual((properties["TRAN_MSG"], properties["PGROUP"]), ("true", GROUP))
        self.assertEqual((properties["TAGS"], request.ext_fields["f"]), ("A", "4"))
        self.assertEqual(self.broker.ended, [])
        running.callback(COMMIT)
        self.carry()
        result = self.successResultOf(sending)
        self.assertEqual((result.outcome, result.is_told, result.sent.status), (COMMIT, True, SendStatus.SEND_OK))
        expected = {
            "producerGroup": GROUP,
            "tranStateTableOffset": "7",
            "commitLogOffset": "4096",
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": result.sent.msg_id,
        }
        self.assertEqual(self.broker.ended, [expected])

    def test_it_is_rolled_back(self) -> None:
        self.send(lambda _: ROLLBACK)
        self.assertEqual(self.broker.ended[0]["commitOrRollback"], "12")

    def test_a_transaction_that_fails_or_does_not_know_is_left_to_checks(self) -> None:
        def fails(_: Message) -> TransactionOutcome:
            raise ZeroDivisionError

        self.assertEqual(self.send(fails).outcome, UNKNOWN)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.send(lambda _: UNKNOWN).outcome, UNKNOWN)
        self.assertEqual(self.broker.ended, [])

    def test_an_end_that_does_not_arrive_is_told_to_the_caller(self) -> None:
        self.broker.refuse[RequestCode.END_TRANSACTION] = 1
        result = self.send(lambda _: COMMIT)
        self.assertEqual((result.outcome, result.is_told), (COMMIT, False))

    def test_without_a_stored_message_no_transaction_runs(self) -> None:
        ran: list[Message] = []

        def execute(message: Message) -> TransactionOutcome:
            ran.append(message)
            return COMMIT

        self.broker.refuse[RequestCode.SEND_MESSAGE_V2] = 13
        sending = self.producer.send(Message(TOPIC, b""), execute)
        self.carry()
        self.failureResultOf(sending, MQBrokerError)
        self.failureResultOf(self.producer.send(Message(TOPIC, b"", delay_level=1), execute), ValueError)
        self.assertEqual(ran, [])

    def test_brokers_learn_the_group_from_heartbeats(self) -> None:
        self.send(lambda _: COMMIT)
        self.assertEqual(self.broker.heartbeats[0]["producerDataSet"], [{"groupName": GROUP}])

    def ask(self, group: str = GROUP) -> None:
        """The broker asks how a transaction has ended."""
        if not self.broker.known:
            self.send(lambda _: UNKNOWN)
        properties = format_properties({"PGROUP": group, "UNIQ_KEY": "K"})
        body = encode_record(Record(TOPIC, b"half", properties, queue_id=2, queue_offset=9))
        fields = {"tranStateTableOffset": "9", "commitLogOffset": "500", "transactionId": "K", "msgId": "K"}
        (connection,) = self.broker.known
        connection.push(RequestCode.CHECK_TRANSACTION_STATE, fields, body)
        self.carry()

    def test_a_check_is_answered_with_the_offsets_that_it_names(self) -> None:
        self.ask()
        self.assertEqual([message.body for message in self.checked], [b"half"])
        expected = {
            "producerGroup": GROUP,
            "tranStateTableOffset": "9",
            "commitLogOffset": "500",
            "commitOrRollback": "8",
            "fromTransactionCheck": "true",
            "msgId": "K",
            "transactionId": "K",
        }
        self.assertEqual(self.broker.ended, [expected])

    def test_a_check_may_take_its_time_and_a_failure_is_unknown(self) -> None:
        later: Deferred[TransactionOutcome] = Deferred()
        self.answer = later
        self.ask()
        self.assertEqual(self.broker.ended, [])
        later.errback(ZeroDivisionError())
        self.carry()
        self.assertEqual(self.broker.ended[0]["commitOrRollback"], "0")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_checks_for_other_groups_and_nonsense_harm_nothing(self) -> None:
        self.ask("another")
        (connection,) = self.broker.known
        connection.push(RequestCode.CHECK_TRANSACTION_STATE, {}, b"nonsense")
        self.carry()
        self.assertEqual((self.checked, self.broker.ended), ([], []))

    def test_a_client_has_one_such_producer_of_a_group(self) -> None:
        self.assertRaises(ValueError, TransactionProducer(self.client, GROUP, self.check).start)

    def test_a_message_that_only_the_master_has_is_rolled_back(self) -> None:
        self.broker.send_code = 12
        result = self.send(lambda _: COMMIT)
        self.assertEqual((result.sent.status, result.outcome), (SendStatus.FLUSH_SLAVE_TIMEOUT, ROLLBACK))
        self.assertEqual(self.broker.ended[0]["commitOrRollback"], "12")
