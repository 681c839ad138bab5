"""What a push consumer tells operators about itself, and what they let it handle (requests 307 and 309)."""

from typing import Any

from rmqha.client import ConsumerOptions, Edge, RetryLater
from rmqha.client.runninginfo import MAX_DIRECTLY, MAX_STACKS_CHARACTERS
from rmqha.remoting.calls import RemotingError
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record, encode_record
from tests.client.groups import TOPIC
from tests.client.test_push_consumer import FIRST, GROUP, NOW_MS, RETRY_TOPIC, PushConsumerTestCase


class RunningInfoTestCase(PushConsumerTestCase):
    """A consumer that a broker asks."""

    def tell(self, code: int, body: bytes = b"", **fields: Any) -> Any:
        """What becomes of a request of the broker."""
        (connection,) = self.broker.known
        asked = connection.call(code, {"consumerGroup": GROUP, "clientId": "c", **fields}, body, 1000)
        self.carry()
        return asked

    def info(self, **fields: Any) -> Any:
        """The consumer's description."""
        answer: RemotingCommand = self.successResultOf(self.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields))
        return loads_lenient(answer.body)

    def directly(self, tag: str = "", **fields: Any) -> Any:
        """What becomes of a message that is handled directly."""
        record = Record(topic=TOPIC, body=b"again", properties_stored=format_properties({"TAGS": tag} if tag else {}))
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return self.tell(code, encode_record(record), brokerName="a", msgId="1", **fields)

    def result(self, tag: str = "") -> Any:
        return loads_lenient(self.successResultOf(self.directly(tag)).body)


class RunningInfoTests(RunningInfoTestCase):
    """GET_CONSUMER_RUNNING_INFO."""

    def test_its_queues_settings_and_subscriptions(self) -> None:
        self.broker.put(1, "A", "B", "A", "A")
        self.handler.holds = True
        self.begin(ConsumerOptions(start=Edge.MIN, concurrency=3), expression="A || B")
        info = self.info()
        self.assertEqual(
            {key: info["properties"][key] for key in info["properties"] if key.startswith("PROP_")},
            {
                "PROP_CLIENT_VERSION": "V4_9_3",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_THREADPOOL_CORE_SIZE": "3",
            },
        )
        self.assertTrue(all(isinstance(value, str) for value in info["properties"].values()))
        self.assertEqual([each["topic"] for each in info["subscriptionSet"]], sorted((RETRY_TOPIC, TOPIC)))
        self.assertEqual(set(info["statusTable"]), {RETRY_TOPIC, TOPIC})
        self.assertNotIn("jstack", info)
        queues = {
            key: queue for key, queue in info["mqTable"].items() if TOPIC in str(key) and '"queueId":1' in str(key)
        }
        ((_, queue),) = queues.items()
        self.assertEqual(
            {
                name: queue[name]
                for name in ("commitOffset", "cachedMsgCount", "cachedMsgMinOffset", "cachedMsgMaxOffset")
            },
            {"commitOffset": 0, "cachedMsgCount": 4, "cachedMsgMinOffset": 0, "cachedMsgMaxOffset": 3},
        )
        self.assertEqual((queue["locked"], queue["droped"], queue["lastPullTimestamp"]), (False, False, NOW_MS))

    def test_rates_are_those_of_the_last_minute(self) -> None:
        self.broker.put(0, *["x"] * 5, "fail")
        self.begin()
        status = self.info()["statusTable"][TOPIC]
        self.assertEqual((status["consumeOKTPS"], status["consumeFailedTPS"]), (5 / 60, 1 / 60))
        self.assertEqual((status["consumeFailedMsgs"], status["pullTPS"]), (1, 6 / 60))
        self.pass_time(70)
        status = self.info()["statusTable"][TOPIC]
        self.assertEqual((status["consumeOKTPS"], status["consumeFailedMsgs"], status["pullTPS"]), (0, 1, 0))

    def test_the_time_of_handlers(self) -> None:
        self.broker.put(0, "x")
        self.handler.holds = True
        self.begin()
        self.pass_time(2)
        self.handler.release()
        self.assertEqual(self.info()["statusTable"][TOPIC]["consumeRT"], 2000)

    def test_locks_of_an_ordered_consumer(self) -> None:
        self.begin(ConsumerOptions(start=Edge.MIN, is_ordered=True))
        info = self.info()
        self.assertEqual(info["properties"]["PROP_CONSUMEORDERLY"], "true")
        self.assertEqual({queue["locked"] for queue in info["mqTable"].values()}, {True})

    def test_stacks_if_they_are_wanted(self) -> None:
        self.begin()
        text = self.info(jstackEnable="true")["jstack"]
        self.assertIn("MainThread", text)
        self.assertLessEqual(len(text), MAX_STACKS_CHARACTERS)

    def test_another_group(self) -> None:
        self.begin()
        for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            error = self.failureResultOf(self.tell(code, consumerGroup="GOther"), RemotingError).value
            self.assertIn("The Consumer Group <GOther> not exist in this consumer", str(error))


class DirectlyTests(RunningInfoTestCase):
    """CONSUME_MESSAGE_DIRECTLY."""

    def test_the_handler_gets_the_message_and_no_offset_changes(self) -> None:
        self.begin()
        kept = dict(self.broker.kept)
        result = self.result()
        self.assertEqual([message.body for message in self.handler.got], [b"again"])
        self.assertEqual(
            result, {"autoCommit": True, "consumeResult": "CR_SUCCESS", "order": False, "spentTimeMills": 0}
        )
        self.pass_time(10)
        self.assertEqual({queue: at for queue, at in self.broker.kept.items() if queue in kept}, kept)

    def test_what_its_failure_says(self) -> None:
        self.begin()
        self.handler.failure = RetryLater("not now")
        result = self.result("fail")
        self.assertEqual((result["consumeResult"], result["remark"]), ("CR_LATER", "not now"))
        self.handler.failure = KeyError("x")
        result = self.result("fail")
        self.assertEqual((result["consumeResult"], result["remark"]), ("CR_THROW_EXCEPTION", "KeyError: 'x'"))

    def test_few_at_the_same_time(self) -> None:
        self.begin(FIRST)
        self.handler.holds = True
        waiting = [self.directly() for _ in range(MAX_DIRECTLY)]
        self.assertEqual(self.result()["consumeResult"], "CR_LATER")
        self.assertEqual(len(self.handler.got), MAX_DIRECTLY)
        self.handler.release()
        self.carry()
        for asked in waiting:
            self.assertEqual(loads_lenient(self.successResultOf(asked).body)["consumeResult"], "CR_SUCCESS")

    def test_what_is_no_message_is_refused(self) -> None:
        self.begin()
        for body in (b"", b"x" * 200):
            asked = self.tell(RequestCode.CONSUME_MESSAGE_DIRECTLY, body)
            self.assertIn("cannot be read", str(self.failureResultOf(asked, RemotingError).value))
