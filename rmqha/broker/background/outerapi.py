"""BrokerOuterAPI: a broker's registration with its name servers (spec/remoting.md 2.22, spec/ha.md 8.2).

The broker keeps one connection to each name server. A registration lasts as long as its connection, so each new
connection registers at once. Periodically the broker also asks who is registered under its name and id, because another
broker with the same name and id replaces our registration without an error.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from zlib import crc32

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface, implementer

from rmqha.broker.addresses import MasterAddresses, OwnAddresses
from rmqha.broker.interfaces import FindMachines, find_no_machines
from rmqha.broker.tables.configmanager import ITableObserver
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.remoting.client import RemotingClient
from rmqha.remoting.protocol import IConnectionObserver, RemotingProtocol
from rmqha.remoting.registration import body_crc32, encoding_body
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import Settings
from rmqha.store.metadata import PERM_READ, PERM_WRITE
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.fastjson import Document, Rows, dumps_compact, loads_lenient

MASTER_ID = 0
READ_WRITE = PERM_READ | PERM_WRITE
CHECKSUM_BITS = 32
LONG_MAX = 2**63 - 1
STATE_VERSION = "stateVersion"
"""The field of 5.x in a version of topics: the master's epoch. 4.x ignores it."""
FIRST_REGISTER_SECONDS = 10.0
"""The first repetition comes early, for a slave that started before its master."""
PROMOTED_SECONDS = 60
PROMOTED_OFTEN_SECONDS = 5
"""A broker that has just become the master registers each second at first, then every ``PROMOTED_OFTEN_SECONDS``."""
REGISTER_TIMEOUT_SECONDS = 6.0
QUERY_DATA_VERSION_TIMEOUT_SECONDS = 3.0
UNREGISTER_TIMEOUT_SECONDS = 3.0
LOOK_TIMEOUT_SECONDS = 3.0
ABSENT_LOOKUPS = 3
"""A machine behind a name server's name is left after this many lookups in a row without it."""
LOOKS_THAT_CLEAR_A_RIVAL = 3
"""A rival counts as gone after this many looks in a row that find our own address."""
MAX_CLUSTER_BYTES = 1024 * 1024
"""A larger answer is ignored, because parsing it would block the reactor."""
MANY_TOPICS = 2000
"""With more topics a registration is large, so changes are collected for ``MANY_TOPICS_SECONDS``."""
MANY_TOPICS_SECONDS = 1.0


@dataclass(slots=True)
class Registrant:
    """The broker that registers, with its own addresses and its topics.

    Its ``settings`` may be replaced, and its ``broker_id``. ``epoch`` is that of a failover cluster's leader: name
    servers of 5.x, and ours, take no older master's registration after it.
    """

    settings: Settings
    broker_id: int
    own: OwnAddresses
    topics: TopicConfigManager
    epoch: int | None = None

    def identity(self) -> dict[str, str]:
        """The header fields that identify the broker."""
        return {
            "brokerName": self.settings.broker_name,
            "brokerAddr": self.own.broker_addr,
            "clusterName": self.settings.broker_cluster_name,
            "brokerId": str(self.broker_id),
        }

    async def registration(self, turns: Turns) -> tuple[dict[str, str], bytes]:
        """Header and body of REGISTER_BROKER."""
        fields = self._counted_fields()
        body = await turns.run(encoding_body(self._permitted_topics()))
        return {**fields, "compressed": "false", "bodyCrc32": str(body_crc32(body))}, body

    def _counted_fields(self) -> dict[str, str]:
        return {**self.identity(), "haServerAddr": self.own.ha_server_addr}

    def _permitted_topics(self) -> Document:
        """The topics, without the permissions to read and write that are not in brokerPermission."""
        table, missing = self.topics.table, READ_WRITE & ~self.settings.broker_permission
        document = {**table.document(), "dataVersion": self.data_version()}
        if not missing:
            return document
        rows = Rows(table.topic_config_table, lambda topic: replace(topic, perm=topic.perm & ~missing).to_json())
        return {**document, "topicConfigTable": rows}

    def data_version(self) -> dict[str, Any]:
        """The version of a registration, in Java's form, with the epoch.

        Name servers take nothing from a registration whose version they have. So the version depends on each input: the
        lower bits of its counter are a checksum of all that is not in the table of topics.
        """
        version = self.topics.table.data_version
        rest = dumps_compact([self._counted_fields(), self.settings.broker_permission & READ_WRITE])
        counter = (version.counter << CHECKSUM_BITS | crc32(rest)) & LONG_MAX
        content = replace(version, counter=counter).to_json()
        return content if self.epoch is None else {**content, STATE_VERSION: self.epoch}


def _addresses_of(body: bytes, broker_name: str) -> dict[int, str]:
    """The addresses registered under a name, by broker id, from ClusterInfo; empty if it is invalid."""
    try:
        brokers = loads_lenient(body).get("brokerAddrTable") or {}
        addresses = (brokers.get(broker_name) or {}).get("brokerAddrs") or {}
        return {int(broker_id): str(address) for broker_id, address in addresses.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


class LinkState(Enum):
    """How far the registration with one name server is."""

    STOPPED = "not running"
    WAITING = "the name server has not answered a registration yet"
    REGISTERED = "the name server has the registration"
    MISSED = "the last registration failed, and the log says so"
    WITHDRAWN = "not registered on purpose"


LINK_TRANSITIONS: dict[LinkState, frozenset[LinkState]] = {
    LinkState.STOPPED: frozenset({LinkState.WAITING, LinkState.WITHDRAWN}),
    LinkState.WAITING: frozenset(
        {LinkState.REGISTERED, LinkState.MISSED, LinkState.WITHDRAWN, LinkState.STOPPED},
    ),
    LinkState.REGISTERED: frozenset({LinkState.MISSED, LinkState.WITHDRAWN, LinkState.STOPPED}),
    LinkState.MISSED: frozenset({LinkState.REGISTERED, LinkState.WITHDRAWN, LinkState.STOPPED}),
    LinkState.WITHDRAWN: frozenset({LinkState.WAITING, LinkState.STOPPED}),
}
"""The allowed moves."""


@implementer(IConnectionObserver)
class NameServerLink(Service):
    """The connection to one name server, and the registration on it. Changes during a registration go into the next.

    ``api`` gets each registration. Then ``master`` has the name server's answer.
    """

    _log = Logger()

    def __init__(
        self,
        name: str,
        endpoint: IStreamClientEndpoint,
        broker: Registrant,
        clock: IReactorTime,
        api: "BrokerOuterAPI",
    ) -> None:
        self._name = name
        self._broker = broker
        self._api = api
        self._client = RemotingClient(endpoint, clock, connected=self._connected)
        self._connection: RemotingProtocol | None = None
        self._registering: RemotingProtocol | None = None
        self._turns = Turns(clock)
        self._again = False
        self.state = LinkState.STOPPED
        self._clean_looks = 0
        self.rival: str | None = None
        """The address of another broker that is registered under our name and id; None if there is none."""
        self.master = MasterAddresses()

    def startService(self) -> None:
        """Connect, and register after each connect."""
        Service.startService(self)
        self._move(LinkState.WAITING if self._api.withdrawn is None else LinkState.WITHDRAWN)
        self._client.start()
        self._client.when_connected().addErrback(self._not_registered)

    def _move(self, new: LinkState) -> None:
        """Go to another state. Raises ValueError for a move that is not allowed."""
        if new not in LINK_TRANSITIONS[self.state]:
            raise ValueError(f"a registration cannot go from {self.state.name} to {new.name}")
        self.state = new

    def _connected(self, connection: RemotingProtocol) -> None:
        self._connection = connection
        connection.on_closed(self)
        self.look()
        self.register()

    def connection_closed(self, connection: RemotingProtocol) -> None:
        if self._connection is connection:
            self._connection = None
            self.master = MasterAddresses()
            self._miss("the connection is gone")

    def register(self, only_changes: bool = False) -> None:
        """Register, if connected. With ``only_changes`` ask first whether the name server needs it."""
        connection = self._connection
        if connection is None or self.state in (LinkState.STOPPED, LinkState.WITHDRAWN):
            return
        if self._registering is connection:
            self._again = self._again or not only_changes
            return
        self._registering, self._again = connection, False
        done = Deferred.fromCoroutine(self._register(connection, only_changes))
        done.addErrback(self._not_registered).addCallback(lambda _: self._done(connection))

    async def _register(self, connection: RemotingProtocol, only_changes: bool) -> None:
        if only_changes and not await self._needs_registration(connection):
            return
        fields, body = await self._broker.registration(self._turns)
        answer = await connection.call(RequestCode.REGISTER_BROKER, fields, body, REGISTER_TIMEOUT_SECONDS)
        if self.state is LinkState.WITHDRAWN:
            self._unregister(connection)
            return
        if self.state in (LinkState.WAITING, LinkState.MISSED):
            self._move(LinkState.REGISTERED)
            self._log.info("registered with name server {name}", event=Event.REGISTERED, name=self._name)
        self._take_master(answer)

    def withdraw(self, reason: str) -> None:
        """Unregister until ``come_back``."""
        if self.state in (LinkState.STOPPED, LinkState.WITHDRAWN):
            return
        self._move(LinkState.WITHDRAWN)
        if self._connection is not None:
            self._log.warn(
                "leaving name server {name}: {reason}",
                event=Event.REGISTRATION_WITHDRAWN,
                name=self._name,
                reason=reason,
            )
            self._unregister(self._connection)

    def come_back(self) -> None:
        """Register again after ``withdraw``."""
        if self.state is LinkState.WITHDRAWN:
            self._move(LinkState.WAITING)
            self.register()

    def _unregister(self, connection: RemotingProtocol) -> None:
        goodbye = connection.call(
            RequestCode.UNREGISTER_BROKER, self._broker.identity(), timeout=UNREGISTER_TIMEOUT_SECONDS
        )
        goodbye.addErrback(lambda _: None)  # the next look shows whether it worked

    def look(self) -> None:
        """Ask who is registered under our name. Nothing waits for the answer."""
        connection = self._connection
        if connection is None or self.state is LinkState.STOPPED:
            return
        answer = connection.call(RequestCode.GET_BROKER_CLUSTER_INFO, timeout=LOOK_TIMEOUT_SECONDS)
        answer.addCallback(self._looked, connection).addErrback(lambda _: None)  # it may not support this request

    def _looked(self, answer: RemotingCommand, connection: RemotingProtocol) -> None:
        if len(answer.body) > MAX_CLUSTER_BYTES or self.state is LinkState.STOPPED:
            return
        addresses = _addresses_of(answer.body, self._broker.settings.broker_name)
        ours, there = self._broker.own.broker_addr, addresses.get(self._broker.broker_id)
        if self.state is LinkState.WITHDRAWN:
            self._looked_while_withdrawn(there == ours, addresses.get(MASTER_ID), connection)
        elif there is not None and there != ours:
            self._clean_looks = 0
            if there != self.rival:
                self.rival = there
                self._log.warn("{warning}", event=Event.RIVAL_BROKER, warning=self.warning)
        elif self.rival is not None:
            self._clean_looks += 1
            if self._clean_looks >= LOOKS_THAT_CLEAR_A_RIVAL:
                self._log.info("{rival} is no longer registered in our place", event=Event.RIVAL_GONE, rival=self.rival)
                self.rival = None

    def _looked_while_withdrawn(self, is_there: bool, master: str | None, connection: RemotingProtocol) -> None:
        """Check that we are not registered. If the master has moved, register briefly to get both of its addresses."""
        if master is not None and master != self.master.master_addr and self._registering is not connection:
            self._registering = connection
            done = Deferred.fromCoroutine(self._ask_for_master(connection)).addErrback(lambda _: None)
            done.addCallback(lambda _: self._done(connection))
        elif is_there:
            self._unregister(connection)

    async def _ask_for_master(self, connection: RemotingProtocol) -> None:
        fields, body = await self._broker.registration(self._turns)
        answer = await connection.call(RequestCode.REGISTER_BROKER, fields, body, REGISTER_TIMEOUT_SECONDS)
        self._unregister(connection)
        self._take_master(answer)

    def _take_master(self, answer: RemotingCommand) -> None:
        fields = answer.ext_fields
        self.master = MasterAddresses(fields.get("masterAddr") or None, fields.get("haServerAddr") or None)
        self._api.answered(self)

    @property
    def warning(self) -> str | None:
        """What an operator should know about this registration, if anything."""
        if self._api.withdrawn is not None:
            return f"not registered with name server {self._name}: {self._api.withdrawn}"
        if self.rival is None:
            return None
        who = self._broker.identity()
        return (
            f"name server {self._name} has another broker in our place: {who['brokerName']} with brokerId "
            f"{who['brokerId']} of cluster {who['clusterName']} is {self.rival} there, not us at {who['brokerAddr']}. "
            "Each registration takes it from the other, and clients go to both: stop one of the two, or give it a "
            "brokerName or brokerId of its own"
        )

    async def _needs_registration(self, connection: RemotingProtocol) -> bool:
        body = dumps_compact(self._broker.data_version())
        answer = await connection.call(
            RequestCode.QUERY_DATA_VERSION, self._broker.identity(), body, QUERY_DATA_VERSION_TIMEOUT_SECONDS
        )
        return answer.ext_fields.get("changed") != "false"

    def _done(self, connection: RemotingProtocol) -> None:
        if self._registering is connection:
            self._registering = None
            if self._again:
                self.register()

    def _not_registered(self, failure: Failure) -> None:
        self._miss(reason_of(failure.value))

    def _miss(self, reason: str) -> None:
        """Log once, until the next registration, that the name server does not have us."""
        if self.state in (LinkState.WAITING, LinkState.REGISTERED):
            self._move(LinkState.MISSED)
            self._log.warn(
                "not registered with name server {name}: {reason}",
                event=Event.NOT_REGISTERED,
                name=self._name,
                reason=reason,
            )

    def stopService(self) -> Deferred[None]:
        """Unregister if there is a connection, and disconnect."""
        Service.stopService(self)
        if self.state is not LinkState.STOPPED:
            self._move(LinkState.STOPPED)
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        connection = self._connection
        if connection is not None:
            goodbye = connection.call(
                RequestCode.UNREGISTER_BROKER, self._broker.identity(), timeout=UNREGISTER_TIMEOUT_SECONDS
            )
            await goodbye.addErrback(lambda _: None)  # the closed connection ends the registration too
        stopped = self._client.stop()
        if connection is not None:
            connection.hang_up()
        await stopped


class NameServerGroup(Service):
    """The registrations with all machines behind the name of a name server. They follow the name's addresses.

    A machine that is missing in ABSENT_LOOKUPS lookups in a row is left.
    """

    def __init__(
        self,
        name: str,
        endpoint: IStreamClientEndpoint,
        api: "BrokerOuterAPI",
        find_machines: FindMachines,
    ) -> None:
        """``endpoint`` connects to the name itself, and so to one of its machines."""
        self._name = name
        self._endpoint = endpoint
        self._api = api
        self._find_machines = find_machines
        self._links: dict[str, NameServerLink] = {name: api.make_link(name, endpoint)}
        self._absent: Counter[str] = Counter()
        self._looking: Deferred[None] | None = None

    @property
    def links(self) -> list[NameServerLink]:
        """The present registrations."""
        return list(self._links.values())

    def startService(self) -> None:
        """Look the name up, and register."""
        Service.startService(self)
        self.look_up()

    def look_up(self) -> None:
        """Look the name up again, unless that is still going on."""
        if self._looking is None and self.running:
            self._looking = Deferred.fromCoroutine(self._follow())
            self._looking.addBoth(self._looked_up)

    def _looked_up(self, result: object) -> object:
        self._looking = None
        for link in self.links if self.running else ():
            if not link.running:
                link.startService()
        is_expected = not isinstance(result, Failure) or result.check(DNSLookupError, CancelledError) is not None
        return None if is_expected else result

    async def _follow(self) -> None:
        """Raises what a lookup raises: then all stay as they are. A connection to the name says why it fails."""
        found = dict(await self._find_machines(self._name))
        if not found and self._name in self._links:
            return
        for name in list(self._links):
            self._absent[name] = 0 if name in found else self._absent[name] + 1
            if name not in found and (name == self._name or self._absent[name] >= ABSENT_LOOKUPS):
                await self._leave(name)
        if not self._links and not found:
            found = {self._name: self._endpoint}
        for name, endpoint in found.items():
            if name not in self._links:
                self._links[name] = self._api.make_link(name, endpoint)

    async def _leave(self, name: str) -> None:
        """Unregister before another link to the same machine registers."""
        link = self._links.pop(name)
        del self._absent[name]
        if link.running:
            await link.stopService()

    def stopService(self) -> Deferred[None]:
        """Unregister from all of them."""
        Service.stopService(self)
        stopped = [link.stopService() for link in self.links]
        if self._looking is not None:
            self._looking.cancel()
        return gatherResults(stopped, consumeErrors=True).addCallback(lambda _: None)


class IMasterObserver(Interface):
    """Learns where a slave's master is."""

    def master_found(addresses: MasterAddresses) -> None:
        """A name server says where it is, or that there is none. It may say the same again."""


@implementer(ITableObserver)
class BrokerOuterAPI(Service):
    """Keeps a broker registered. ``observer`` gets a slave's master, as name servers know it."""

    _log = Logger()

    def __init__(
        self,
        broker: Registrant,
        endpoints: Sequence[tuple[str, IStreamClientEndpoint]],
        clock: IReactorTime,
        observer: IMasterObserver | None = None,
        find_machines: FindMachines = find_no_machines,
    ) -> None:
        """``endpoints`` are the name servers with their names. ``find_machines`` looks a name up."""
        self._settings = settings = broker.settings
        self._clock = clock
        self._observer = observer
        self._broker = broker
        self._is_slave = broker.broker_id > 0
        self._last_told: MasterAddresses | None = None
        self.withdrawn: str | None = None
        """Why it is not registered anywhere, on purpose. It may be withdrawn before it starts, too."""

        self._groups = [NameServerGroup(name, endpoint, self, find_machines) for name, endpoint in endpoints]
        self._soon: IDelayedCall | None = None
        self._rounds = PeriodicService(
            "registering with the name servers",
            settings.register_name_server_period_ms / 1000,
            self._register_periodically,
            clock,
            first_after=FIRST_REGISTER_SECONDS,
        )
        self._promoted_for = 0
        self._soon_again = PeriodicService(
            "registering after the promotion", 1.0, self._register_promoted, clock, first_after=1.0
        )

    def make_link(self, name: str, endpoint: IStreamClientEndpoint) -> NameServerLink:
        """The registration with one machine."""
        return NameServerLink(name, endpoint, self._broker, self._clock, self)

    @property
    def _links(self) -> list[NameServerLink]:
        return [link for group in self._groups for link in group.links]

    def startService(self) -> None:
        """Connect and register, again soon after, then each registerNameServerPeriod."""
        Service.startService(self)
        for group in self._groups:
            group.startService()
        if self._groups:
            self._rounds.startService()

    def promoted(self) -> None:
        """Register again and again for a minute, although name servers may already have us.

        The old master's last registration may arrive late and replace ours. And a name server of 5.x removes what was
        registered on a connection that has ended a while later: we had one as a slave, and it removes our new
        registration, because the address is the same.
        """
        if self._groups and self.running and not self._soon_again.running:
            self._promoted_for = 0
            self._soon_again.startService()

    def _register_promoted(self) -> None:
        self._promoted_for += 1
        if self._promoted_for <= PROMOTED_OFTEN_SECONDS or self._promoted_for % PROMOTED_OFTEN_SECONDS == 0:
            for link in self._links:
                link.look()
            self.register_all()
        if self._promoted_for >= PROMOTED_SECONDS:
            self._clock.callLater(0, self._soon_again.stopService)

    def _register_periodically(self) -> None:
        for group in self._groups:
            group.look_up()
        for link in self._links:
            link.look()
            link.register(only_changes=not self._settings.force_register)

    def register_all(self) -> None:
        """Register with each connected name server. Others follow when they are connected."""
        for link in self._links:
            link.register()

    def withdraw(self, reason: str) -> None:
        """Unregister from all name servers until ``come_back``."""
        self.withdrawn = self.withdrawn or reason
        for link in self._links:
            link.withdraw(reason)

    def come_back(self) -> None:
        """Register again after ``withdraw``."""
        self.withdrawn = None
        for link in self._links:
            link.come_back()

    def warnings(self) -> list[str]:
        """What an operator should know about the registrations."""
        return [link.warning for link in self._links if link.warning is not None]

    def table_changed(self, row: object | None) -> None:
        """Register a topic that was added or changed: at once, unless there are many topics."""
        if len(self._broker.topics.table.topic_config_table) <= MANY_TOPICS:
            self.register_all()
        elif self.running and self._soon is None:
            self._soon = self._clock.callLater(MANY_TOPICS_SECONDS, self._register_soon)

    def _register_soon(self) -> None:
        self._soon = None
        self.register_all()

    def answered(self, link: NameServerLink) -> None:
        """A name server has answered a registration. The first one that knows a master counts."""
        if not self._is_slave:
            return
        found = next((other.master for other in self._links if other.master.master_addr is not None), link.master)
        if found != self._last_told:
            self._last_told = found
            if found.master_addr is None:
                self._log.info("no name server knows a live master", event=Event.MASTER_NOT_FOUND)
            else:
                self._log.info(
                    "name servers say that the master is at {master}, its HA port at {ha}",
                    event=Event.MASTER_FOUND,
                    master=found.master_addr,
                    ha=found.ha_server_addr,
                )
        if self._observer is not None:
            self._observer.master_found(found)

    def stopService(self) -> Deferred[None]:
        """Unregister from the name servers that are connected, and disconnect."""
        Service.stopService(self)
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        stopped = [
            self._rounds.stopService(),
            self._soon_again.stopService(),
            *(group.stopService() for group in self._groups if group.running),
        ]
        return gatherResults(stopped, consumeErrors=True).addCallback(lambda _: None)
