"""Pulls that filter by SQL92 (spec/remoting.md 2.3.3)."""

import json
from itertools import pairwise

from rmqha.broker.tables import filters
from rmqha.broker.tables.clients import ClientManageProcessor, ProducerManager
from rmqha.broker.tables.filters import SqlFilters
from rmqha.kit.steps import at_once
from rmqha.settings.settings import make_settings
from rmqha.store import reading
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.subscription import SubscriptionData
from tests.broker.brokerstore import bodies_in
from tests.broker.requests.test_pull import LITE_PULL, PullTestCase
from tests.remoting.test_protocol import frame


class SqlPullTestCase(PullTestCase):
    """Ten messages with the property ``number``, in queue 0."""

    def setUp(self) -> None:
        super().setUp()
        for number in range(10):
            self.put(b"%d" % number, number=str(number))

    def serve(self) -> None:
        self.settings = self.store.settings = make_settings(
            {"storePathRootDir": str(self.store.root), "enablePropertyFilter": "true"}
        )
        super().serve()

    def ask(self, expression: str, **fields: object) -> RemotingCommand:
        """The answer to a pull with an expression, after as many turns as it takes."""
        fields = {"subscription": expression, "expressionType": "SQL92", **fields}
        self.peer.send(RequestCode.PULL_MESSAGE, self.fields(**fields))
        return self.next_answer()

    def next_answer(self) -> RemotingCommand:
        for _ in range(100):
            answers = self.peer.answers()
            if answers:
                (answer,) = answers
                return answer
            self.clock.advance(0)
        raise AssertionError("no answer")

    def wanted(self, expression: str) -> list[int]:
        """The numbers of the messages that it wants, by one pull."""
        answer = self.ask(expression)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        self.assertEqual(answer.ext_fields["nextBeginOffset"], "10")
        return list(map(int, bodies_in(answer.body)))


class SqlPullTests(SqlPullTestCase):
    """What comes."""

    def test_an_expression_in_the_pull(self) -> None:
        self.assertEqual(self.wanted("number BETWEEN 3 AND 5 OR number = 9"), [3, 4, 5, 9])
        self.assertEqual(self.wanted("number IN ('1', '7')"), [1, 7])
        self.assertEqual(self.wanted("missing IS NULL"), list(range(10)))

    def test_an_expression_of_the_heartbeat(self) -> None:
        self.heartbeat(SubscriptionData("T", "number > 7", 5, expression_type="SQL92"))
        answer = self.ask("", sysFlag=0, subVersion=5)
        self.assertEqual(bodies_in(answer.body), [b"8", b"9"])
        answer = self.ask("", sysFlag=0, subVersion=6)
        self.assertEqual(answer.code, ResponseCode.SUBSCRIPTION_NOT_LATEST)

    def test_nothing_that_is_wanted(self) -> None:
        answer = self.ask("number = 99")
        self.assert_nothing(answer, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 10, 0, 10)

    def test_a_read_ends_after_some_effort_and_the_next_one_goes_on(self) -> None:
        self.patch(reading, "MAX_EFFORT", 250)
        found: list[bytes] = []
        begins = [0]
        while begins[-1] < 10:
            answer = self.ask("number IN ('0', '4', '9')", queueOffset=begins[-1])
            found += bodies_in(answer.body)
            begins.append(int(answer.ext_fields["nextBeginOffset"]))
        self.assertEqual(found, [b"0", b"4", b"9"])
        self.assertGreater(len(begins), 3)
        self.assertTrue(all(later > earlier for earlier, later in pairwise(begins)))

    def test_a_slave_filters_too(self) -> None:
        self.copy_to_slave(enablePropertyFilter="true", slaveReadEnable="true")
        super().serve()
        self.assertEqual(self.wanted("number < 2"), [0, 1])


class RefusalTests(SqlPullTestCase):
    """Wrong expressions, and brokers that do not filter."""

    def test_a_wrong_expression(self) -> None:
        answer = self.ask("number >")
        self.assert_refused([answer], 23, "the SQL92 expression is invalid: the expression ends too early")
        self.heartbeat(SubscriptionData("T", "number >", 5, expression_type="SQL92"))
        answer = self.ask("", sysFlag=0, subVersion=5)
        self.assert_refused([answer], 27, "the SQL92 expression is invalid: the expression ends too early")

    def test_the_setting(self) -> None:
        self.consumers.filters.settings = make_settings({})
        answer = self.ask("number = 1")
        self.assert_refused([answer], 1, "does not support consumer to filter message by SQL92")
        self.assertIn("enablePropertyFilter=false", answer.remark or "")

    def test_another_type(self) -> None:
        answer = self.pull(subscription="x", expressionType="XPATH")
        self.assert_refused([answer], 1, "does not support consumer to filter message by XPATH")

    def test_a_client_asks_whether_its_expression_is_taken(self) -> None:
        processor = ClientManageProcessor(ProducerManager(), self.consumers, self.topics, self.groups, self.clock)
        self.peer = self.client(processor.processors())
        for expression, code, remark in (
            ("number > 1", 0, ""),
            ("number > 'x'", 23, "cannot be compared"),
            ("a = 1 OR " * 300 + "a = 1", 0, ""),
        ):
            body = {"subscriptionData": {"topic": "T", "subString": expression, "expressionType": "SQL92"}}
            self.peer.line.deliver(
                frame(RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, 1, body=json.dumps(body).encode()))
            )
            answer = self.next_answer()
            self.assertEqual(answer.code, code)
            self.assertIn(remark, answer.remark or "")


class HeldSqlPullTests(SqlPullTestCase):
    """Pulls that wait."""

    def hold_sql(self, expression: str, offset: int = 10) -> None:
        fields = {"subscription": expression, "expressionType": "SQL92", "sysFlag": LITE_PULL, "queueOffset": offset}
        self.peer.send(RequestCode.PULL_MESSAGE, self.fields(**fields))
        self.clock.pump([0] * 5)
        self.assertEqual(self.peer.answers(), [])
        self.assertEqual(self.held.count, 1)

    def test_it_is_answered_when_a_wanted_message_comes(self) -> None:
        self.hold_sql("number = 12")
        for number in (10, 11):
            self.put(b"%d" % number, number=str(number))
            self.clock.pump([0] * 5)
            self.assertEqual(self.peer.answers(), [])
        self.put(b"12", number="12")
        answer = self.next_answer()
        self.assertEqual(bodies_in(answer.body), [b"12"])
        self.assertEqual(answer.ext_fields["nextBeginOffset"], "13")

    def test_its_time_is_up(self) -> None:
        self.hold_sql("number = 99")
        self.put(b"10", number="10")
        self.clock.pump([0] * 5)
        self.clock.advance(60)
        answer = self.next_answer()
        self.assert_nothing(answer, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 11, 0, 11)
        self.assertEqual(self.held.count, 0)

    def test_a_client_that_goes_leaves_nothing(self) -> None:
        self.hold_sql("number = 99")
        self.peer.line.lose()
        self.put(b"10", number="10")
        self.clock.pump([0] * 5)
        self.assertEqual(self.held.count, 0)


class KeptFiltersTests(PullTestCase):
    """Expressions are parsed once."""

    def test_few_are_kept(self) -> None:
        self.patch(filters, "MAX_KEPT_CHARACTERS", 2000)
        kept = SqlFilters(self.settings)
        for number in range(100):
            at_once(kept.parsing(f"a = {number}"))
            at_once(kept.parsing(f"a ? {number}"))
        self.assertLess(len(kept._kept), 20)
        self.assertIsInstance(kept.get("a ? 99"), str)
        self.assertIsNone(kept.get("a = 1"))
        self.assertIs(at_once(kept.parsing("a = 99")), kept.get("a = 99"))
