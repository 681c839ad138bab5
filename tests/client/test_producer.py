"""A producer: which queue, which broker next, and how an answer is read (spec/remoting.md 2.1, 4.2, 6.4)."""

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from twisted.internet.defer import CancelledError, Deferred

from rmqha.client import (
    BrokerBusy,
    ClientStopped,
    Message,
    MessageQueue,
    MessageRefused,
    MessageTooLarge,
    MQBrokerError,
    MQClient,
    MQClientError,
    NoAnswer,
    NoMaster,
    NoPermission,
    Producer,
    Retries,
    SendLimits,
    SendResult,
    SendStatus,
    TooManyWaiting,
    TopicMissing,
    TopicNotFound,
    Unreachable,
    by_key,
)
from rmqha.client.instance import POLL_NAME_SERVER_SECONDS, REST_SECONDS
from rmqha.client.producer import LEADER_TIMEOUT_SECONDS, SEND_TIMEOUT_SECONDS
from rmqha.remoting.protocol import Processors, RemotingProtocol
from rmqha.testing.records import make_record
from rmqha.wire.batch import decode_batch
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.fastjson import dumps_compact
from rmqha.wire.properties import format_properties, parse_properties
from rmqha.wire.record import COMPRESSED_FLAG, TRANSACTION_PREPARED_TYPE, Record, encode_record, keys_of
from rmqha.wire.requestfields import V2_FIELDS
from tests.client.cluster import ROUTE, ClusterTestCase, broker_data, queue_data

NOW_MS = 1_795_000_000_000
MESSAGE = Message("T", b"hello", tags="A", keys="k1 k2", properties={"mine": "x"}, flag=5)
TWO_MASTERS = [broker_data("a", master="a:1", slave="a:2"), broker_data("b", master="b:1")]


class ProducerTestCase(ClusterTestCase):
    """Two masters that answer with ``codes``, one after the other, then SUCCESS."""

    def setUp(self) -> None:
        super().setUp()
        self.codes: list[int] = []
        self.a, self.b = self.serve("a:1", self.sends()), self.serve("b:1", self.sends())
        self.routes["T"] = TWO_MASTERS, [queue_data("a", 4, 2), queue_data("b", 4, 2)]
        self.producer = Producer(self.client, "PG", now_ms=lambda: NOW_MS)

    def sends(self) -> Processors:
        return {RequestCode.SEND_MESSAGE_V2: self.take, RequestCode.SEND_BATCH_MESSAGE: self.take}

    def take(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        fields = {"msgId": "ABC", "queueId": request.ext_fields[V2_FIELDS.queue_id], "queueOffset": "7"}
        return RemotingCommand(self.codes.pop(0) if self.codes else 0, remark="said", ext_fields=fields)

    def send(self, message: Message = MESSAGE, queue: MessageQueue | None = None) -> Deferred[SendResult]:
        sending = self.producer.send(message, queue)
        self.carry()
        return sending

    def send_in_time(self, message: Message = MESSAGE) -> SendResult:
        """What became of it after two seconds: by then it has been tried to connect again to whoever is gone."""
        sending = self.producer.send(message)
        for _ in range(8):
            self.carry()
            self.clock.advance(0.25)
        return self.successResultOf(sending)

    def pass_time(self, seconds: float = 5.0) -> None:
        for _ in range(int(4 * seconds)):
            self.clock.advance(0.25)
            self.carry()

    def tried(self) -> list[str]:
        """The brokers that were asked, sorted."""
        return sorted([*("a" for _ in self.a.asked), *("b" for _ in self.b.asked)])


class SendTests(ProducerTestCase):
    def test_a_message_travels_with_all_that_it_has(self) -> None:
        result = self.successResultOf(self.send())
        (request,) = self.a.asked
        fields = dict(request.ext_fields)
        properties = parse_properties(fields.pop("i"))
        self.assertEqual(
            fields,
            {
                "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(NOW_MS), "h": "5",
                "j": "0", "k": "false", "m": "false",
            },
        )  # fmt: skip
        self.assertEqual(len(properties["UNIQ_KEY"]), 32)
        expected = {"mine": "x", "KEYS": "k1 k2", "UNIQ_KEY": result.msg_id, "WAIT": "true", "TAGS": "A"}
        self.assertEqual(properties, expected)
        self.assertEqual((request.code, request.body), (RequestCode.SEND_MESSAGE_V2, b"hello"))
        self.assertEqual(result, SendResult(SendStatus.SEND_OK, result.msg_id, "ABC", MessageQueue("T", "a", 0), 7))

    def test_delay_and_not_waiting_are_properties(self) -> None:
        self.send(Message("T", b"x", delay_level=3, wait_store_msg_ok=False))
        properties = parse_properties(self.a.asked[0].ext_fields["i"])
        self.assertEqual((properties["DELAY"], properties["WAIT"]), ("3", "false"))

    def test_all_queues_of_all_masters_have_their_turn(self) -> None:
        queues = Counter(self.successResultOf(self.send()).queue for _ in range(8))
        self.assertEqual(queues, {MessageQueue("T", name, number): 2 for name in "ab" for number in (0, 1)})

    def test_masters_are_sent_to_in_turn(self) -> None:
        brokers = [self.successResultOf(self.send()).queue.broker_name for _ in range(6)]
        self.assertEqual(brokers, ["a", "b"] * 3)

    def test_a_broker_that_may_not_be_written_or_has_no_master_has_none(self) -> None:
        brokers = [*TWO_MASTERS, broker_data("c", slave="c:2")]
        self.routes["T"] = brokers, [queue_data("a", 4, 2, perm=4), queue_data("b", 4, 1), queue_data("c", 4, 4)]
        queues = {self.successResultOf(self.send()).queue for _ in range(4)}
        self.assertEqual(queues, {MessageQueue("T", "b", 0)})

    def test_a_message_for_a_queue_goes_there_and_nowhere_else(self) -> None:
        queue = MessageQueue("T", "b", 1)
        self.assertEqual(self.successResultOf(self.send(queue=queue)).queue, queue)
        self.codes = [1]
        self.failureResultOf(self.send(queue=queue), MQBrokerError)
        self.assertEqual(self.tried(), ["b", "b"])

    def test_each_status_with_which_it_is_stored_is_a_result(self) -> None:
        for code, status in (
            (0, SendStatus.SEND_OK),
            (10, SendStatus.FLUSH_DISK_TIMEOUT),
            (11, SendStatus.SLAVE_NOT_AVAILABLE),
            (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
        ):
            self.codes = [code]
            self.assertIs(self.successResultOf(self.send()).status, status)

    def test_properties_that_cannot_travel_are_refused(self) -> None:
        self.failureResultOf(self.send(Message("T", b"", keys="a\x02b")), ValueError)

    def test_a_given_up_send_is_forgotten(self) -> None:
        self.a.is_mute = True
        sending = self.send()
        sending.cancel()
        self.failureResultOf(sending, CancelledError)


class RetryTests(ProducerTestCase):
    def test_what_another_broker_may_take_is_tried_there(self) -> None:
        for code in (1, 14, 16, 17, 204, 205):
            self.codes = [code]
            before = self.tried()
            self.successResultOf(self.send())
            self.assertEqual(sorted([*before, "a", "b"]), self.tried(), code)

    def test_what_none_would_take_is_not_tried_again(self) -> None:
        for code in (2, 13, 99):
            self.codes = [code]
            before = len(self.tried())
            error = self.failureResultOf(self.send(), MQBrokerError).value
            self.assertEqual((error.code, str(error)), (code, f"code {code}: said"))
            self.assertEqual(len(self.tried()), before + 1)

    def test_after_three_tries_it_is_over(self) -> None:
        self.codes = [1, 16, 1, 0]
        self.assertEqual(self.failureResultOf(self.send(), MQBrokerError).value.code, 1)
        self.assertEqual(len(self.tried()), 3)

    def test_a_broker_that_is_gone_is_passed_over_and_its_route_asked_for_anew(self) -> None:
        self.send()
        self.a.go_down()
        self.routes["T"] = [TWO_MASTERS[1]], [queue_data("b", 4, 2)]
        self.assertEqual([self.send_in_time().queue.broker_name for _ in range(4)], ["b"] * 4)

    def test_one_that_did_not_answer_is_left_alone_for_a_while(self) -> None:
        self.a.is_mute = True
        sending = self.send()
        self.a.go_down()
        self.carry()
        self.successResultOf(sending)
        for _ in range(4):
            self.assertEqual(self.successResultOf(self.send()).queue.broker_name, "b")
        self.a.is_mute, self.a.is_up = False, True
        self.clock.pump([0.5] * int(2 * REST_SECONDS))
        names = {self.successResultOf(self.send()).queue.broker_name for _ in range(4)}
        self.assertEqual(names, {"a", "b"})

    def test_a_connection_that_breaks_is_a_failure_that_another_broker_mends(self) -> None:
        self.a.is_mute = True
        sending = self.send()
        self.assertNoResult(sending)
        self.a.go_down()
        self.carry()
        self.assertEqual(self.successResultOf(sending).queue.broker_name, "b")

    def test_it_ends_in_time_where_nobody_answers(self) -> None:
        self.a.is_mute = self.b.is_mute = True
        sending = self.send()
        self.clock.advance(SEND_TIMEOUT_SECONDS - 0.1)
        self.assertNoResult(sending)
        self.clock.advance(0.1)
        self.carry()
        self.assertIn("does not answer", str(self.failureResultOf(sending, MQClientError).value))


class RouteTests(ProducerTestCase):
    def test_a_topic_that_nobody_knows_is_made_where_its_template_is(self) -> None:
        self.routes["TBW102"] = TWO_MASTERS, [queue_data("a", 8, 8, 7), queue_data("b", 2, 8, 7)]
        queues = {self.successResultOf(self.send(Message("New", b""))).queue for _ in range(12)}
        self.assertEqual(Counter(queue.broker_name for queue in queues), {"a": 4, "b": 2})

    def test_a_new_topic_is_made_at_all_masters_though_the_first_has_it_already(self) -> None:
        self.routes["TBW102"] = TWO_MASTERS, [queue_data("a", 4, 4, 7), queue_data("b", 4, 4, 7)]
        self.send(Message("New", b""))
        self.routes["New"] = [TWO_MASTERS[0]], [queue_data("a", 4, 4)]
        self.send(Message("New", b""))
        self.assertEqual(self.tried(), ["a", "b"])
        self.clock.advance(POLL_NAME_SERVER_SECONDS)
        for _ in range(2):
            self.send(Message("New", b""))
        self.assertEqual(self.tried(), ["a", "a", "a", "b"])

    def test_a_new_topic_is_looked_up_again_where_one_of_the_masters_fails(self) -> None:
        self.routes["TBW102"] = TWO_MASTERS, [queue_data("a", 4, 4, 7), queue_data("b", 4, 4, 7)]
        self.send(Message("New", b""))
        self.a.go_down()
        brokers = [TWO_MASTERS[1], broker_data("c", master="c:1")]
        self.routes["New"] = brokers, [queue_data("b", 4, 4), queue_data("c", 4, 4)]
        self.serve("c:1", self.sends())
        queues = [self.send_in_time(Message("New", b"")).queue for _ in range(4)]
        self.assertEqual({queue.broker_name for queue in queues}, {"b", "c"})

    def test_a_topic_that_nobody_would_make_is_an_error(self) -> None:
        error = self.failureResultOf(self.send(Message("New", b"")), MQClientError).value
        self.assertIn("no broker carries topic New", str(error))

    def test_a_topic_without_a_master_is_an_error(self) -> None:
        self.routes["T"] = [broker_data("a", slave="a:2")], [queue_data("a", 4, 4)]
        sending = self.send()
        self.pass_time(LEADER_TIMEOUT_SECONDS)
        self.assertIn("no queue on a master", str(self.failureResultOf(sending, NoMaster).value))

    def routes_asked(self) -> int:
        return sum(len(server.asked) for server in self.name_servers)

    def test_a_route_is_believed_for_half_a_minute(self) -> None:
        for _ in range(3):
            self.send()
        self.assertEqual(self.routes_asked(), 1)
        self.clock.advance(POLL_NAME_SERVER_SECONDS)
        self.send()
        self.assertEqual(self.routes_asked(), 2)

    def test_the_next_name_server_is_asked_where_one_is_gone_and_it_stays_with_that(self) -> None:
        self.name_servers[0].go_down()
        for topic in ("T", "TBW102"):
            self.routes[topic] = self.routes["T"]
            self.successResultOf(self.send(Message(topic, b"")))
        self.assertEqual(len(self.name_servers[1].asked), 2)

    def test_nobody_there_is_an_error(self) -> None:
        for server in self.name_servers:
            server.go_down()
        self.assertIn("ns2:1 does not answer", str(self.failureResultOf(self.send(), MQClientError).value))

    def test_a_route_that_makes_no_sense_is_an_error(self) -> None:
        self.routes["T"] = [{"brokerName": "a"}], []
        self.assertIn("cannot be read", str(self.failureResultOf(self.send(), MQClientError).value))


class LeaderTests(ProducerTestCase):
    """One broker, whose leader goes away and comes back."""

    def setUp(self) -> None:
        super().setUp()
        self.route = [broker_data("a", master="a:1")], [queue_data("a", 4, 2)]
        self.routes["T"] = self.route
        self.successResultOf(self.send())

    def leave(self, how: str) -> None:
        match how:
            case "only a slave":
                self.routes["T"] = [broker_data("a", slave="a:2")], [queue_data("a", 4, 2)]
            case "no broker":
                del self.routes["T"]
            case "does not lead":
                self.codes = [14] * 10_000
            case "dead":
                self.a.go_down()
        self.clock.advance(POLL_NAME_SERVER_SECONDS)

    def come_back(self) -> None:
        self.routes["T"], self.a.is_up = self.route, True
        self.codes.clear()

    def test_a_send_waits_for_a_leader(self) -> None:
        """Also one that may go to one queue only: the message is stored nowhere yet."""
        sends: list[Callable[[], Deferred[SendResult]]] = [
            lambda: self.producer.send(MESSAGE),
            lambda: self.producer.send(MESSAGE, MessageQueue("T", "a", 1)),
            lambda: self.producer.send_ordered(MESSAGE, by_key("k")),
        ]
        for how in ("only a slave", "no broker", "does not lead", "dead"):
            self.leave(how)
            sendings = [send() for send in sends]
            self.pass_time(LEADER_TIMEOUT_SECONDS / 2)
            for sending in sendings:
                self.assertNoResult(sending)
            self.come_back()
            self.pass_time()
            for sending in sendings:
                self.assertIs(self.successResultOf(sending).status, SendStatus.SEND_OK, how)

    def test_one_that_waited_in_vain_says_that_nobody_leads(self) -> None:
        for how in ("only a slave", "no broker", "does not lead"):
            self.leave(how)
            asked = len(self.a.asked) + sum(len(server.asked) for server in self.name_servers)
            sending = self.send()
            self.pass_time(LEADER_TIMEOUT_SECONDS - 1.5)
            self.assertNoResult(sending)
            self.pass_time(2)
            self.failureResultOf(sending, NoMaster)
            asked = len(self.a.asked) + sum(len(server.asked) for server in self.name_servers) - asked
            self.assertLess(asked, 4 * LEADER_TIMEOUT_SECONDS, "it pauses")
            self.come_back()
            self.pass_time()

    def test_many_sends_that_wait_do_not_crowd_the_name_server(self) -> None:
        self.leave("no broker")
        sendings = [self.send() for _ in range(50)]
        asked = sum(len(server.asked) for server in self.name_servers)
        self.pass_time(10)
        self.assertLess(sum(len(server.asked) for server in self.name_servers) - asked, 50)
        self.come_back()
        self.pass_time()
        for sending in sendings:
            self.successResultOf(sending)

    def test_a_new_client_is_told_that_nobody_leads(self) -> None:
        """It has never seen the topic; a name server knows it no more."""
        cases: list[tuple[dict[str, str], type[MQClientError]]]
        cases = [({"slave": "a:2"}, NoMaster), ({"master": "a:1"}, TopicNotFound)]
        for addresses, kind in cases:
            brokers = {"a": broker_data("a", **addresses)}
            code = RequestCode.GET_BROKER_CLUSTER_INFO
            body = dumps_compact({"brokerAddrTable": brokers, "clusterAddrTable": {}})
            self.serve("ns3:1", {ROUTE: self.tell_route, code: partial(self.tell, body)})
            client = MQClient(self.ways("ns3:1", tells_masters=True), self.clock)
            sending = Producer(client, "PG", retries=Retries(leader_timeout=0)).send(Message("Other", b""))
            self.carry()
            self.failureResultOf(sending, kind)
            stopped = client.stop()
            self.carry()
            self.successResultOf(stopped)
            self.servers.pop("ns3:1").go_down()

    @staticmethod
    def tell(body: bytes, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(0, body=body)


class IdempotentTests(ProducerTestCase):
    """A broker takes a message, and stands still before it answers."""

    def setUp(self) -> None:
        super().setUp()
        self.stored: list[Record] = []
        self.routes["T"] = [broker_data("a", master="a:1"), broker_data("b", master="b:1")], [queue_data("a", 4, 2)]
        self.new = self.serve("a:3", {**self.sends(), RequestCode.QUERY_MESSAGE: self.query})
        self.producer = Producer(self.client, "PG", retries=Retries(is_idempotent=True))

    def query(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        self.assertEqual(request.ext_fields["_UNIQUE_KEY_QUERY"], "true")
        found = [one for one in self.stored if request.ext_fields["key"] in keys_of(one)]
        return RemotingCommand(0 if found else 22, body=b"".join(map(encode_record, found)))

    def frozen(self) -> tuple[Deferred[SendResult], str]:
        """A send that was not answered, and its id. Another node leads then."""
        self.a.is_mute = True
        sending = self.send()
        self.routes["T"] = (
            [broker_data("a", master="a:3"), broker_data("b", master="b:1")],
            [
                queue_data("a", 4, 2),
                queue_data("b", 4, 2),
            ],
        )
        return sending, parse_properties(self.a.asked[0].ext_fields["i"])["UNIQ_KEY"]

    def test_what_is_stored_is_not_sent_again(self) -> None:
        sending, key = self.frozen()
        self.stored = [replace(make_record(3, b"", topic="T"), properties_stored=format_properties({"UNIQ_KEY": key}))]
        self.pass_time(10)
        result = self.successResultOf(sending)
        (record,) = self.stored
        queue = MessageQueue("T", "a", record.queue_id)
        expected = (SendStatus.FLUSH_SLAVE_TIMEOUT, key, record.msg_id, queue, record.queue_offset)
        self.assertEqual(result, expected)
        self.assertEqual([request.code for request in self.new.asked], [RequestCode.QUERY_MESSAGE])

    def test_what_is_not_stored_is_sent_again_with_its_id_and_nowhere_else(self) -> None:
        sending, key = self.frozen()
        self.pass_time(10)
        self.assertIs(self.successResultOf(sending).status, SendStatus.SEND_OK)
        query, again = self.new.asked
        self.assertEqual((query.code, again.code), (RequestCode.QUERY_MESSAGE, RequestCode.SEND_MESSAGE_V2))
        self.assertEqual(parse_properties(again.ext_fields["i"])["UNIQ_KEY"], key)
        self.assertEqual(self.b.asked, [])

    def test_what_cannot_be_found_out_is_an_error_in_the_end(self) -> None:
        sending, _ = self.frozen()
        self.new.is_mute = True
        self.pass_time(LEADER_TIMEOUT_SECONDS + 5)
        self.failureResultOf(sending, NoAnswer)
        self.assertEqual({request.code for request in self.new.asked}, {RequestCode.QUERY_MESSAGE})

    def test_what_could_not_be_looked_up_is_refused(self) -> None:
        for message in (
            Message("T", b"", delay_level=1),
            Message("T", b"", properties={"TIMER_DELAY_SEC": "9"}),
            Message("T", b"", sys_flag=TRANSACTION_PREPARED_TYPE),
        ):
            self.failureResultOf(self.send(message), ValueError)
        self.assertEqual(self.tried(), [])


class BatchTests(ProducerTestCase):
    def batch(self, *messages: Message) -> Deferred[SendResult]:
        sending = self.producer.send_batch(messages)
        self.carry()
        return sending

    def test_a_batch_goes_to_one_queue_in_one_request(self) -> None:
        messages = [Message("T", body, keys=f"k{number}") for number, body in enumerate((b"a", b"", b"ccc"))]
        result = self.successResultOf(self.batch(*messages))
        (request,) = self.a.asked
        self.assertEqual(request.code, RequestCode.SEND_BATCH_MESSAGE)
        self.assertEqual((request.ext_fields["m"], request.ext_fields["i"]), ("true", "WAIT\x01true"))
        entries = decode_batch(request.body)
        self.assertEqual([entry.body for entry in entries], [b"a", b"", b"ccc"])
        properties = [parse_properties(entry.properties) for entry in entries]
        self.assertEqual([own["KEYS"] for own in properties], ["k0", "k1", "k2"])
        self.assertEqual(",".join(own["UNIQ_KEY"] for own in properties), result.msg_id)

    def test_what_is_no_batch_is_refused(self) -> None:
        one = Message("T", b"")
        for messages in (
            (),
            (one, Message("U", b"")),
            (one, Message("T", b"", wait_store_msg_ok=False)),
            (one, Message("T", b"", delay_level=1)),
            (one, Message("T", b"x" * 5000).compressed()),
        ):
            self.failureResultOf(self.batch(*messages), ValueError)
        self.assertEqual(self.tried(), [])


class CompressedTests(ProducerTestCase):
    def test_a_body_is_compressed_if_it_is_long_and_becomes_smaller(self) -> None:
        body = b"x" * 5000
        message = Message("T", body, keys="k").compressed()
        self.assertEqual((message.keys, message.sys_flag), ("k", COMPRESSED_FLAG))
        self.assertEqual(zlib.decompress(message.body), body)
        self.producer.send(message)
        self.carry()
        (request,) = [*self.a.asked, *self.b.asked]
        self.assertEqual((request.body, request.ext_fields[V2_FIELDS.sys_flag]), (message.body, "1"))
        self.assertIs(message.compressed(over=10), message, "it is compressed already")
        for other in (Message("T", body[:4096]), Message("T", random.Random(1).randbytes(5000))):
            self.assertIs(other.compressed(), other)


class OrderedTests(ProducerTestCase):
    def test_messages_of_one_key_go_to_one_queue_and_keys_are_spread(self) -> None:
        queues: dict[str, MessageQueue] = {}
        for number in range(20):
            key = f"order-{number % 5}"
            sending = self.producer.send_ordered(MESSAGE, by_key(key))
            self.carry()
            queue = self.successResultOf(sending).queue
            self.assertEqual(queues.setdefault(key, queue), queue)
        self.assertGreater(len(set(queues.values())), 1)

    def test_the_queue_is_the_one_that_java_chooses(self) -> None:
        """Java's hash of "abc" is 96354, and that of "polygenelubricants" the smallest integer."""
        queues = [MessageQueue("T", "a", number) for number in range(5)]
        self.assertEqual(by_key("abc")(queues).queue_id, 96354 % 5)
        self.assertEqual(by_key("polygenelubricants")(queues).queue_id, 2**31 % 5)

    def test_it_is_not_tried_elsewhere(self) -> None:
        self.codes = [1]
        sending = self.producer.send_ordered(MESSAGE, lambda queues: queues[0])
        self.carry()
        self.failureResultOf(sending, MQBrokerError)
        self.assertEqual(self.tried(), ["a"])

    def test_without_a_master_it_fails(self) -> None:
        self.routes["T"] = [broker_data("a", slave="a:2")], [queue_data("a", 4, 4)]
        sending = self.producer.send_ordered(MESSAGE, by_key("k"))
        self.pass_time(LEADER_TIMEOUT_SECONDS)
        self.failureResultOf(sending, NoMaster)


class ErrorTests(ProducerTestCase):
    def test_each_cause_has_its_type(self) -> None:
        kinds: dict[int, type[MQBrokerError]] = {
            2: BrokerBusy,
            13: MessageRefused,
            16: NoPermission,
            17: TopicMissing,
            99: MQBrokerError,
        }
        for code, kind in kinds.items():
            self.codes = [code] * 3
            self.failureResultOf(self.send(), kind)
            self.codes.clear()
        self.failureResultOf(self.send(Message("New", b"")), TopicNotFound)
        self.a.go_down()
        self.b.go_down()
        sending = self.send()
        self.pass_time(LEADER_TIMEOUT_SECONDS + 2 * SEND_TIMEOUT_SECONDS)  # the last try may have just begun
        self.failureResultOf(sending, Unreachable)

    def test_what_does_not_fit_a_request_is_refused_here(self) -> None:
        self.failureResultOf(self.send(Message("T", bytes(1 << 24))), MessageTooLarge)
        self.assertEqual(self.tried(), [])
        self.successResultOf(self.send())

    def test_sends_that_wait_have_a_bound(self) -> None:
        self.a.is_mute = self.b.is_mute = True
        for limits, message in (
            (SendLimits(waiting=2), MESSAGE),
            (SendLimits(waiting_bytes=10), MESSAGE),
        ):
            producer = Producer(self.client, "PG", limits=limits)
            first = [producer.send(message) for _ in range(2)]
            self.failureResultOf(producer.send(message), TooManyWaiting)
            for sending in first:
                sending.cancel()
                self.failureResultOf(sending)
            again = producer.send(message)
            self.assertNoResult(again)
            again.cancel()
            self.failureResultOf(again)

    def test_a_stopped_client_says_so(self) -> None:
        self.client.stop()
        self.failureResultOf(self.send(), ClientStopped)
        self.client.is_stopped = False


class OldRouteTests(ProducerTestCase):
    def test_a_known_route_is_used_while_no_name_server_answers(self) -> None:
        self.send()
        for server in self.name_servers:
            server.go_down()
        self.clock.advance(POLL_NAME_SERVER_SECONDS)
        sending = Producer(self.client, "PG", timeout=60).send(MESSAGE)
        for _ in range(4):
            self.pass_time()
        self.assertEqual(self.successResultOf(sending).status, SendStatus.SEND_OK)
