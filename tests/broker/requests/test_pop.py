"""POP consumption is refused in words."""

from rmqha.broker.requests.pop import POP_CODES, PopProcessor
from rmqha.wire.command import ResponseCode
from tests.broker.brokerstore import BrokerStoreTestCase
from tests.ha.doubles import log_lines


class PopTests(BrokerStoreTestCase):
    def test_each_request_is_refused_in_words_and_the_log_has_one_line(self) -> None:
        self.open()
        peer = self.client(PopProcessor().processors())
        with log_lines() as lines:
            for code in POP_CODES:
                answer = peer.ask(code, topic="T")
                self.assertEqual(answer.code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
                self.assertIn(
                    f"{code.name}) not supported: this broker (rmqha) has no POP consumption", answer.remark or ""
                )
        self.assertEqual(lines().count("this broker does not support POP consumption"), 1)
