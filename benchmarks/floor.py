"""The least that a broker on Twisted costs: it takes the producer's frames, stores nothing, and answers SEND_OK.

``python -m benchmarks.floor`` prints its port, and serves until it is killed. No request is decoded: the answer takes
over the request's opaque. ``make bench-broker`` puts the same loads to it as to our master.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

from twisted.internet import reactor as installed_reactor
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.interfaces import ITransport
from twisted.internet.protocol import Factory, Protocol

from rmqha.remoting.registration import body_crc32, encode_body
from rmqha.store.metadata import TopicConfig, TopicConfigTable
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from tests.interop.requests import connected

HEAD = Struct(">ii")
OPAQUE = re.compile(rb'"opaque":(-?\d+)')
ANSWER = (
    b'{"code":0,"extFields":{"queueId":"0","msgId":"7F00000100002A9F0000000000000000","queueOffset":"0"},"flag":1,'
    b'"language":"JAVA","opaque":%s,"serializeTypeCurrentRPC":"JSON","version":399}'
)


class Echo(Protocol):
    """Answers each frame of a read, all in one write."""

    def __init__(self) -> None:
        self._rest = b""

    def dataReceived(self, data: bytes) -> None:
        data, place, answers = self._rest + data, 0, []
        while len(data) - place >= HEAD.size:
            length, head_length = HEAD.unpack_from(data, place)
            if len(data) - place < 4 + length:
                break
            opaque = OPAQUE.search(data, place + HEAD.size, place + HEAD.size + head_length)
            assert opaque is not None, "each request has one"
            answer = ANSWER % opaque[1]
            answers.append(HEAD.pack(4 + len(answer), len(answer)) + answer)
            place += 4 + length
        self._rest = data[place:]
        assert ITransport.providedBy(self.transport)
        self.transport.write(b"".join(answers))


@contextmanager
def registered(namesrv: str, port: int, name: str, queues: int) -> Iterator[None]:
    """Meanwhile the name server knows the broker ``name`` with the topic ``bench-NAME``. For less than two minutes.

    It forgets a broker when the connection ends that registered it. Raises SystemExit if it refuses.
    """
    topics = {topic.topic_name: topic for topic in [TopicConfig(f"bench-{name}", queues, queues)]}
    body = encode_body(TopicConfigTable(topic_config_table=topics))
    address = f"127.0.0.1:{port}"
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": name, "brokerId": "0", "haServerAddr": address}
    fields |= {"compressed": "false", "bodyCrc32": str(body_crc32(body))}
    with connected(namesrv) as exchange:
        answer = exchange(RemotingCommand(RequestCode.REGISTER_BROKER, opaque=1, ext_fields=fields, body=body))
        if answer.code != ResponseCode.SUCCESS:
            raise SystemExit(f"the name server refuses the registration of {name}: {answer.remark}")
        yield


def main() -> None:
    """Serve."""
    listening = TCP4ServerEndpoint(installed_reactor, 0, interface="127.0.0.1").listen(Factory.forProtocol(Echo))
    listening.addCallback(lambda port: print(port.getHost().port, flush=True))
    installed_reactor.run()


if __name__ == "__main__":
    main()
