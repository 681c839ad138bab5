"""The rows of rmqha top: lag of Java slaves, rates between looks, and brokers that do not answer."""

import orjson
from twisted.internet.defer import Deferred

from rmqha.ops.top import SILENT, Row, Top, with_lag
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS
from rmqha.wire.command import RemotingCommand, RequestCode
from tests.client.cluster import Server
from tests.ops.doctor.test_asking import AskingTestCase


class TopTests(AskingTestCase):
    def looks(self, top: Top, seconds: float = 0.0) -> list[Row]:
        """The rows of one look, during which so much time passes."""
        looking = Deferred.fromCoroutine(top.look())
        for _ in range(3):
            self.carry()
            self.clock.advance(seconds)
        self.carry()
        return self.successResultOf(looking)

    def growing(self, address: str, ends: list[int], **config: str) -> Server:
        """A Java broker whose log has these ends, one after another."""
        server = self.broker(address, **config)  # type: ignore[arg-type]

        def answer(*_: object) -> RemotingCommand:
            end = ends.pop(0) if len(ends) > 1 else ends[0]
            info = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(end), "putTps": "5.5 1 1"}
            return RemotingCommand(0, body=orjson.dumps({"table": info}))

        server._processors[RequestCode.GET_BROKER_RUNTIME_INFO] = server._noting(answer)
        return server

    def test_a_java_pair(self) -> None:
        self.growing("m:1", [100, 400])
        self.growing("s:1", [80, 400], brokerId="1", brokerRole="SLAVE")
        self.name_server("ns:1")
        self.brokers = {"a": {0: "m:1", 1: "s:1"}}
        top = Top(self, self.clock, [], ["ns:1"])
        first = self.looks(top)
        self.assertEqual([(row.role, row.lag_bytes) for row in first], [("ASYNC_MASTER", None), ("SLAVE", 20)])
        self.assertEqual([row.bytes_per_second for row in first], [None, None])
        self.assertEqual(first[0].puts_per_second, 5.5)
        self.clock.advance(3)
        second = self.looks(top)
        self.assertEqual([row.bytes_per_second for row in second], [100.0, 320 / 3])
        self.assertEqual([row.lag_bytes for row in second], [None, 0])

    def test_the_settings_are_asked_for_once(self) -> None:
        server = self.broker("m:1")
        top = Top(self, self.clock, ["m:1"])
        for _ in range(3):
            self.looks(top)
        asked = [request.code for request in server.asked]
        self.assertEqual(asked.count(RequestCode.GET_BROKER_CONFIG), 1)
        self.assertEqual(asked.count(RequestCode.GET_BROKER_RUNTIME_INFO), 3)

    def test_a_broker_that_goes_and_comes_back(self) -> None:
        server = self.broker("m:1")
        top = Top(self, self.clock, ["m:1"])
        self.assertEqual(self.looks(top)[0].log_end, 100)
        server.go_down()
        (row,) = self.looks(top)
        self.assertEqual((row.state, row.log_end, row.broker_name), (SILENT, None, "a"))
        self.assertIsNotNone(row.problem)
        server.is_up = True
        self.assertEqual(self.looks(top)[0].log_end, 100)

    def test_a_mute_name_server_keeps_what_it_listed(self) -> None:
        self.broker("m:1")
        name_server = self.name_server("ns:1")
        self.brokers = {"a": {0: "m:1"}}
        top = Top(self, self.clock, [], ["ns:1"])
        self.assertEqual(len(self.looks(top)), 1)
        name_server.is_mute = True
        self.assertEqual(len(self.looks(top, CALL_TIMEOUT_SECONDS)), 1)
        self.assertIn("ns:1 does not answer", top.problem or "")

    def test_masters_come_first(self) -> None:
        rows = [
            Row("x", "b", "SLAVE", log_end=5),
            Row("y", "b", "SYNC_MASTER", log_end=9),
            Row("z", "a", "SLAVE", log_end=5, confirmed=5, lag_bytes=7),
        ]
        self.assertEqual([(row.address, row.lag_bytes) for row in with_lag(rows)], [("z", 7), ("y", None), ("x", 4)])
