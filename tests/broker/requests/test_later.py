"""What RocketMQ 5's tools ask for and this broker does not have is refused in words."""

from rmqha.broker.requests.later import LATER, later_processors
from rmqha.wire.command import ResponseCode
from tests.broker.brokerstore import BrokerStoreTestCase


class LaterTests(BrokerStoreTestCase):
    def test_each_request_is_refused_in_words(self) -> None:
        self.open()
        peer = self.client(later_processors())
        for code, reason in LATER.items():
            answer = peer.ask(code)
            self.assertEqual(answer.code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            self.assertEqual(
                answer.remark, f"request type {code} ({code.name}) not supported: this broker (rmqha) {reason}"
            )
