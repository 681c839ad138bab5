"""Finds single messages on brokers: by key, by message id, by offset (spec/remoting.md 2.6)."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rmqha.client.errors import MQBrokerError, MQClientError
from rmqha.client.instance import MQClient
from rmqha.client.pull import read_records
from rmqha.client.together import together
from rmqha.wire.brokerinfo import read_brokers
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.record import Record, RecordError, keys_of, parse_msg_id

Found = TypeVar("Found")

MAX_TIME = 2**63 - 1
UNIQUE_KEY_FLAG = "_UNIQUE_KEY_QUERY"


@dataclass(frozen=True, slots=True)
class Place:
    """A brokerName and its addresses by brokerId."""

    broker_name: str
    addresses: Mapping[int, str]

    def ordered(self, client: MQClient) -> list[str]:
        """The addresses in the order to try them: those that answer first, then the master, then slaves by id."""
        return [self.addresses[key] for key in sorted(self.addresses, key=lambda key: (self._rests(client, key), key))]

    def _rests(self, client: MQClient, key: int) -> bool:
        return client.is_resting(self.addresses[key])


@dataclass(frozen=True, slots=True)
class Period:
    """Only messages stored from ``begin`` to ``end``, in milliseconds since 1970."""

    begin: int = 0
    end: int = MAX_TIME

    def has(self, record: Record) -> bool:
        """Whether the message was stored in it."""
        return self.begin <= record.store_timestamp <= self.end


ALWAYS = Period()


class Brokers:
    """All brokers of a cluster, or one broker; it asks each brokerName, at its master or else at a slave."""

    def __init__(self, client: MQClient, name_servers: Sequence[str] = (), broker: str | None = None) -> None:
        """Either ``name_servers`` or ``broker`` is given."""
        self.client = client
        self._name_servers = list(name_servers)
        self._broker = broker
        self.problems: list[str] = []
        """What brokers did not answer, and why, if others did."""

    async def places(self) -> list[Place]:
        """All brokerNames. Raises MQClientError, MQBrokerError."""
        if self._broker is not None:
            return [Place(self._broker, {0: self._broker})]
        failure = MQClientError("no name server is configured")
        for address in self._name_servers:
            try:
                answer = await self.client.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)
                brokers = read_brokers(loads_lenient(answer.body))
            except MQClientError as error:
                failure = error
            except ValueError as error:
                failure = MQClientError(f"the answer of {address} cannot be read: {error}")
            else:
                return [Place(name, addresses) for name, addresses in sorted(brokers.items()) if addresses]
        raise failure

    async def places_of(self, topic: str) -> list[Place]:
        """The brokerNames that have a topic. Raises TopicNotFound, MQClientError, MQBrokerError."""
        route = await self.client.route(topic)
        if route is None:
            raise await self.client.without_route(topic)
        return [Place(name, addresses) for name, addresses in sorted(route.addresses.items()) if addresses]

    async def ask(self, place: Place, code: int, fields: Mapping[str, str]) -> RemotingCommand:
        """The answer of the first address that answers. Raises MQClientError."""
        failure = MQClientError(f"broker {place.broker_name} has no address")
        for address in place.ordered(self.client):
            try:
                return await self.client.ask(address, code, fields)
            except MQClientError as error:
                failure = error
        raise failure

    async def from_each(
        self, places: Sequence[Place], ask: Callable[[Place], Coroutine[Any, Any, list[Found]]]
    ) -> list[Found]:
        """What all places answer, asked at the same time. If only some fail, ``problems`` says so.

        Raises MQClientError if all of them fail, MQBrokerError if one refuses.
        """
        failures: list[MQClientError] = []

        async def attempt(place: Place) -> list[Found]:
            try:
                return await ask(place)
            except MQClientError as error:
                failures.append(error)
                return []

        answers = await together(attempt(place) for place in places)
        if failures and len(failures) == len(places):
            raise failures[0]
        self.problems += [str(failure) for failure in failures]
        return [found for answer in answers for found in answer]

    async def by_key(
        self, topic: str, key: str, most: int, period: Period = ALWAYS, unique: bool = False
    ) -> list[Record]:
        """The messages of a topic with this key, oldest first; with ``unique`` the producer's message id is the key.

        Raises TopicNotFound, MQClientError, MQBrokerError.
        """
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(most),
            "beginTimestamp": str(period.begin),
            "endTimestamp": str(period.end),
            UNIQUE_KEY_FLAG: "true" if unique else "false",
        }

        async def query(place: Place) -> list[Record]:
            answer = await self.ask(place, RequestCode.QUERY_MESSAGE, fields)
            return [] if answer.code == ResponseCode.QUERY_NOT_FOUND else records_of(answer)

        found = await self.from_each(await self.places_of(topic), query)
        wanted = [each for each in found if each.topic == topic and key in keys_of(each) and period.has(each)]
        return sorted(wanted, key=lambda each: each.store_timestamp)[:most]

    async def by_id(self, msg_id: str) -> list[Record]:
        """The message with this offset message id, if a broker has it. Raises ValueError, MQClientError."""
        host, offset = parse_msg_id(msg_id)
        found = await self.from_each(await self.places(), lambda place: self.at(place, offset))
        return [record for record in found if record.store_host == host][:1]

    async def at(self, place: Place, offset: int) -> list[Record]:
        """The message that starts at an offset of the log, or nothing. Raises MQClientError."""
        answer = await self.ask(place, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        if answer.code != ResponseCode.SUCCESS:
            return []
        return [record for record in records_of(answer) if record.physical_offset == offset]


def records_of(answer: RemotingCommand) -> list[Record]:
    """The messages in an answer. Raises MQBrokerError, MQClientError."""
    if answer.code != ResponseCode.SUCCESS:
        raise MQBrokerError.of(answer)
    try:
        return read_records(answer.body)
    except RecordError as error:
        raise MQClientError(f"the messages of an answer cannot be read: {error}") from error
