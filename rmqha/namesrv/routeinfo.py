"""What a name server knows about brokers and topics: RocketMQ's RouteInfoManager (spec/remoting.md 2.22).

A broker's registration belongs to the connection that it came on. It ends with that connection, or after the broker has
been silent for ``BROKER_CHANNEL_EXPIRED_SECONDS``.

Java sends a registration with one topic when that topic is created or changed, and later one with all topics. Nothing
in the request tells them apart, and they may arrive in any order. So each topic of a registration counts, also if
its version is known. A registration is a whole one only if it has the topics that each broker has from its start.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.kit.steps import Steps, at_once
from rmqha.namesrv.peers import Peer
from rmqha.remoting.protocol import RequestRefused
from rmqha.remoting.turns import Turns
from rmqha.store.metadata import PERM_WRITE, DataVersion, TopicConfig
from rmqha.wire.command import ResponseCode
from rmqha.wire.fastjson import dumps_compact, dumps_strict
from rmqha.wire.topics import SELF_TEST_TOPIC

BROKER_CHANNEL_EXPIRED_SECONDS = 120.0
MASTER_ID = 0
MAX_BROKERS = 10_000
MAX_ROUTES = 1_000_000
"""The maximum number of topics, counted for each broker that has them."""
TOPICS_BATCH = 1000
"""The topics that are added, examined or removed in one turn."""
BROKERS_BATCH = 32
"""The brokers that are written in one turn."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker registers. ``topics`` are used only if it is a master (brokerId 0)."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    data_version: DataVersion = DataVersion()
    topics: tuple[TopicConfig, ...] = ()
    software: str = ""
    """The language and the version number that the broker sent, for people."""

    def is_whole(self, named: Set[str]) -> bool:
        """Whether these are all topics of the broker: those that each broker has from its start are among them.

        A 5.x broker with enableSplitRegistration sends its topics in several requests. One of them is whole by this.
        """
        return {self.broker_name, self.cluster_name, SELF_TEST_TOPIC} <= named


@dataclass(slots=True)
class _LiveBroker:
    """A registered address: the time of its last sign of life (seconds), its data, and the connection it used."""

    last_update: float
    whole_version: DataVersion | None
    """The version of its last registration whose topics are all known; None before the first."""
    peer: Peer
    """Who has registered it last."""
    registration: Registration
    """The latest one, without its topics."""

    @property
    def ha_server_addr(self) -> str:
        return self.registration.ha_server_addr

    def is_of_same(self, new: Registration) -> bool:
        """Whether the new registration is of the same broker: a slave's topics were not taken, for example."""
        known = self.registration
        return (known.broker_name, known.broker_id) == (new.broker_name, new.broker_id)


class LiveBroker(NamedTuple):
    """What people are shown of a registered address. ``age`` is in seconds since its last sign of life.

    ``is_routed`` says whether clients are sent there. It is false for a master whose name and brokerId another address
    has registered later: both believe that they are the master.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    software: str
    age: float
    is_routed: bool


class _Queues(NamedTuple):
    """What a route says of a broker's queues of a topic."""

    read: int
    write: int
    perm: int
    sys_flag: int

    @classmethod
    def of(cls, topic: TopicConfig) -> "_Queues":
        return cls(topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)


@dataclass(slots=True)
class _Broker:
    """One brokerName: its addresses by brokerId, and the queues of its master's topics."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    topics: dict[str, _Queues] = field(default_factory=dict)
    young: set[str] = field(default_factory=set)
    """The topics that were registered since the last whole registration."""
    is_write_wiped: bool = False
    """Whether clients may write to none of its topics: an operator takes it out of service."""

    def queue_data(self, topic: str) -> dict[str, Any]:
        """A QueueData in Java's form and order."""
        queues = self.topics[topic]
        return {
            "brokerName": self.name,
            "perm": queues.perm & ~PERM_WRITE if self.is_write_wiped else queues.perm,
            "readQueueNums": queues.read,
            "topicSysFlag": queues.sys_flag,
            "writeQueueNums": queues.write,
        }

    def to_json(self) -> dict[str, Any]:
        addresses = {str(broker_id): address for broker_id, address in sorted(self.addresses.items())}
        return {"brokerAddrs": addresses, "brokerName": self.name, "cluster": self.cluster}


class RouteInfoManager:
    """Brokers and topics. Methods that return dicts return the JSON for clients."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, turns: Turns | None = None) -> None:
        """Without ``turns``, long work is done at once."""
        self._seconds = clock.seconds
        self._turns = turns
        self._brokers: dict[str, _Broker] = {}
        self._live: dict[str, _LiveBroker] = {}
        self._topics: dict[str, set[str]] = {}
        """The names of the brokers that have a topic."""
        self._routes = 0
        self._topic_list: bytes | None = None

    def _run(self, work: Steps[None]) -> None:
        """Do work in turns. No answer waits for it."""
        if self._turns is None:
            at_once(work)
            return
        Deferred.fromCoroutine(self._turns.run(work)).addErrback(
            lambda failure: self._log.failure(
                "forgetting a broker's topics failed", failure, event=Event.TOPICS_NOT_FORGOTTEN
            )
        )

    def register_broker(self, registration: Registration, peer: Peer) -> tuple[str, str] | None:
        """As ``registering``, without steps."""
        return at_once(self.registering(registration, peer))

    def taken_from(self, new: Registration, peer: Peer) -> list[Peer]:
        """The other peers that would lose something by this registration: each has registered the address, or the
        brokerName and brokerId.

        The next leader of a failover cluster takes nothing from the one before.
        """
        at_address = self._live.get(new.broker_addr)
        found = [] if at_address is None or at_address.peer.is_same(peer) else [at_address.peer]
        broker = self._brokers.get(new.broker_name)
        held = None if broker is None else self._live.get(broker.addresses.get(new.broker_id, ""))
        if held is not None and held is not at_address and not held.peer.is_same(peer):
            assert broker is not None, "it holds the place"
            if not self._leads_next(broker, new, held, peer):
                found.append(held.peer)
        return found

    def _leads_next(self, broker: _Broker, new: Registration, held: _LiveBroker, peer: Peer) -> bool:
        """Whether a registered member of a failover cluster leads in a later epoch than the leader that is registered.

        A master without an epoch is in no such cluster. Anybody can register as one more slave of it.
        """
        epoch = held.registration.data_version.state_version
        is_later = new.broker_id == MASTER_ID and 0 < epoch < new.data_version.state_version
        return is_later and any(self._is_of(address, peer) for address in broker.addresses.values())

    def _is_of(self, address: str, peer: Peer) -> bool:
        """Whether this peer has registered the address."""
        return address in self._live and self._live[address].peer.is_same(peer)

    def has_master(self, broker_name: str, peer: Peer) -> bool:
        """Whether this peer has registered the master of the brokerName."""
        broker = self._brokers.get(broker_name)
        return broker is not None and self._is_of(broker.addresses.get(MASTER_ID, ""), peer)

    def registering(self, registration: Registration, peer: Peer) -> Steps[tuple[str, str] | None]:
        """Add a registration, with its topics in steps. Whether the peer may do that was checked.

        For a slave it returns its master's address and haServerAddr, if the master is registered. Raises
        RequestRefused if there are too many brokers or topics, or for a master that was replaced by a failover.
        """
        new = registration
        self._check_room(new)
        self._check_epoch(new)
        broker = self._brokers.setdefault(new.broker_name, _Broker(new.cluster_name, new.broker_name))
        if new.broker_id == MASTER_ID or MASTER_ID not in broker.addresses:
            broker.cluster = new.cluster_name
        if new.broker_id == MASTER_ID and MASTER_ID not in broker.addresses:
            broker.is_write_wiped = False
        for broker_id in [held for held, address in broker.addresses.items() if address == new.broker_addr]:
            del broker.addresses[broker_id]  # for example, a slave has become the master
        broker.addresses[new.broker_id] = new.broker_addr
        known = self._live.get(new.broker_addr)
        if known is None:
            self._log.info(
                "broker {name} {id} registered at {address}",
                event=Event.BROKER_REGISTERED,
                name=new.broker_name,
                id=new.broker_id,
                address=new.broker_addr,
            )
        whole_version = None if known is None or not known.is_of_same(new) else known.whole_version
        live = _LiveBroker(self._seconds(), whole_version, peer, replace(new, topics=()))
        self._live[new.broker_addr] = live
        is_master = new.broker_id == MASTER_ID
        if not is_master or (yield from self._taking_topics(broker, new)):
            live.whole_version = new.data_version
        master = broker.addresses.get(MASTER_ID)
        if is_master or master is None or master not in self._live:
            return None
        return master, self._live[master].ha_server_addr

    def _taking_topics(self, broker: _Broker, new: Registration) -> Steps[bool]:
        """Take the topics of a master. Returns whether the registration was whole.

        A topic ends if it is not in a whole registration, and none has named it since the whole one before.
        """
        named: set[str] = set()
        for count, topic in enumerate(new.topics, 1):
            self._take_topic(broker, topic)
            named.add(topic.topic_name)
            if count % TOPICS_BATCH == 0:
                yield
                if self._brokers.get(broker.name) is not broker:  # it has gone meanwhile
                    return False
        if not new.is_whole(named):
            broker.young |= named
            return False
        for count, held in enumerate(list(broker.topics), 1):
            if held not in named and held not in broker.young and held in broker.topics:
                self._end_topic(broker, held)
            if count % TOPICS_BATCH == 0:
                yield
        broker.young.clear()
        return True

    def _take_topic(self, broker: _Broker, topic: TopicConfig) -> None:
        if topic.topic_name not in broker.topics:
            if self._routes >= MAX_ROUTES:
                reason = f"{self._routes} topics of brokers are registered already"
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, reason)
            self._routes += 1
            carriers = self._topics.get(topic.topic_name)
            if carriers is None:
                carriers = self._topics[topic.topic_name] = set()
                self._topic_list = None
            carriers.add(broker.name)
        broker.topics[topic.topic_name] = _Queues.of(topic)

    def register_topic(self, broker_name: str, topic: TopicConfig) -> None:
        """Add or change one topic of a broker whose master is registered. Raises RequestRefused."""
        broker = self._brokers.get(broker_name)
        if broker is not None and MASTER_ID in broker.addresses:
            self._take_topic(broker, topic)
            broker.young.add(topic.topic_name)

    def _end_topic(self, broker: _Broker, topic: str) -> None:
        """The broker has this topic no more. Another one may have registered under its name meanwhile."""
        del broker.topics[topic]
        broker.young.discard(topic)
        self._routes -= 1
        present = self._brokers.get(broker.name)
        if present is not None and topic in present.topics:
            return
        carriers = self._topics.get(topic, set())
        carriers.discard(broker.name)
        if not carriers and topic in self._topics:
            del self._topics[topic]
            self._topic_list = None

    def _check_room(self, new: Registration) -> None:
        if len(self._live) >= MAX_BROKERS and new.broker_addr not in self._live:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{MAX_BROKERS} brokers are registered already")

    def _check_epoch(self, new: Registration) -> None:
        """A leader of a failover cluster registers with its epoch: one that was replaced must not come after it."""
        broker = self._brokers.get(new.broker_name)
        address = None if broker is None or new.broker_id != MASTER_ID else broker.addresses.get(MASTER_ID)
        live = None if address is None or address == new.broker_addr else self._live.get(address)
        if live is None or new.data_version.state_version >= live.registration.data_version.state_version:
            return
        epoch, known = new.data_version.state_version, live.registration.data_version.state_version
        self._log.warn(
            "refusing {address} as the master of {name}: it is of epoch {epoch}, and {leader} leads in epoch {known}",
            event=Event.OLD_MASTER_REFUSED,
            address=new.broker_addr,
            name=new.broker_name,
            epoch=epoch,
            leader=address,
            known=known,
        )
        reason = f"{address} is the master of {new.broker_name} in epoch {known}: this registration is of epoch {epoch}"
        raise RequestRefused(ResponseCode.NO_PERMISSION, reason)

    def query_data_version(
        self, broker_addr: str, data_version: DataVersion, peer: Peer
    ) -> tuple[bool, DataVersion | None]:
        """Whether the broker's tables have changed since it registered them all, and the version that it registered.

        An unchanged version counts as a sign of life, if the peer is the one that has registered.
        """
        known = self._live.get(broker_addr)
        if known is None:
            return True, None
        changed = known.whole_version != data_version
        if not changed and known.peer.is_same(peer):
            known.last_update = self._seconds()
        return changed, known.whole_version

    def unregister_broker(self, broker_name: str, broker_addr: str, broker_id: int) -> None:
        """Remove an address. If it was the broker's last, remove the broker and its topics too."""
        broker = self._brokers.get(broker_name)
        if broker is None or broker.addresses.get(broker_id) != broker_addr:
            self._forget_displaced(broker_name, broker_addr, broker_id)
            return
        self._live.pop(broker_addr, None)
        self._log.info(
            "broker {name} {id} at {address} is gone",
            event=Event.BROKER_GONE,
            name=broker_name,
            id=broker_id,
            address=broker_addr,
        )
        del broker.addresses[broker_id]
        if not broker.addresses:
            del self._brokers[broker_name]
            self._run(self._ending_topics_of(broker))

    def _forget_displaced(self, broker_name: str, broker_addr: str, broker_id: int) -> None:
        """Another address has this name and brokerId, so only the address itself is forgotten."""
        live = self._live.get(broker_addr)
        if live is not None and (live.registration.broker_name, live.registration.broker_id) == (
            broker_name,
            broker_id,
        ):
            del self._live[broker_addr]

    @property
    def broker_count(self) -> int:
        """How many addresses are registered."""
        return len(self._live)

    def live_brokers(self, most: int) -> list[LiveBroker]:
        """Registered addresses, at most ``most``, in the order of cluster, name and brokerId."""
        now = self._seconds()
        found = []
        for address, live in islice(self._live.items(), most):
            known = live.registration
            broker = self._brokers.get(known.broker_name)
            is_routed = broker is not None and broker.addresses.get(known.broker_id) == address
            found.append(
                LiveBroker(
                    known.cluster_name,
                    known.broker_name,
                    known.broker_id,
                    address,
                    known.ha_server_addr,
                    known.software,
                    now - live.last_update,
                    is_routed,
                )
            )
        return sorted(found)

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    def _ending_topics_of(self, broker: _Broker) -> Steps[None]:
        """Remove the topics of a broker that has gone."""
        for count, topic in enumerate(list(broker.topics), 1):
            if topic in broker.topics:
                self._end_topic(broker, topic)
            if count % TOPICS_BATCH == 0:
                yield

    def registered_by(self, broker_addr: str) -> Peer | None:
        """Who has registered this address last."""
        live = self._live.get(broker_addr)
        return None if live is None else live.peer

    def connection_closed(self, connection: object) -> None:
        """Remove what was last registered on this connection."""
        self._forget([address for address, live in self._live.items() if live.peer.connection is connection])

    def scan_not_active_brokers(self) -> None:
        """Remove brokers that have been silent for too long."""
        oldest = self._seconds() - BROKER_CHANNEL_EXPIRED_SECONDS
        self._forget([address for address, live in self._live.items() if live.last_update < oldest])

    def _forget(self, addresses: list[str]) -> None:
        gone = set(addresses)
        held = [
            (broker.name, address, broker_id)
            for broker in self._brokers.values()
            for broker_id, address in broker.addresses.items()
            if address in gone
        ]
        for broker_name, address, broker_id in held:
            self.unregister_broker(broker_name, address, broker_id)
        for address in gone:
            self._live.pop(address, None)

    def route_info(self, topic: str) -> dict[str, Any] | None:
        """TopicRouteData: the brokers that have the topic, and their queues; None if no broker has it."""
        brokers = list(self._carriers(topic))
        if not brokers:
            return None
        return {
            "brokerDatas": [broker.to_json() for broker in brokers],
            "filterServerTable": {},
            "queueDatas": [broker.queue_data(topic) for broker in brokers],
        }

    def _carriers(self, topic: str) -> Iterator[_Broker]:
        """The brokers that have a topic, by name. Between two of them other work may run."""
        for name in sorted(self._topics.get(topic, ())):
            broker = self._brokers.get(name)
            if broker is not None and topic in broker.topics:
                yield broker

    def writing_route_info(self, topic: str) -> Steps[bytes | None]:
        """The same as JSON, in steps, because very many brokers may have a topic."""
        brokers: list[bytes] = []
        queues: list[bytes] = []
        for count, broker in enumerate(self._carriers(topic), 1):
            brokers.append(dumps_compact(broker.to_json()))
            queues.append(dumps_compact(broker.queue_data(topic)))
            if count % BROKERS_BATCH == 0:
                yield
        if not brokers:
            return None
        return b'{"brokerDatas":[%s],"filterServerTable":{},"queueDatas":[%s]}' % (
            b",".join(brokers),
            b",".join(queues),
        )

    def cluster_info(self) -> dict[str, Any]:
        """ClusterInfo: all brokers, and their names by cluster."""
        return {
            "brokerAddrTable": {name: broker.to_json() for name, broker in sorted(self._brokers.items())},
            "clusterAddrTable": self._names_by_cluster(),
        }

    def writing_cluster_info(self) -> Steps[bytes]:
        """The same as JSON, in steps."""
        rows: list[bytes] = []
        for name, broker in sorted(self._brokers.items()):
            rows.append(dumps_compact(name) + b":" + dumps_compact(broker.to_json()))
            if len(rows) % BROKERS_BATCH == 0:
                yield
        clusters = dumps_compact(self._names_by_cluster())
        return b'{"brokerAddrTable":{%s},"clusterAddrTable":%s}' % (b",".join(rows), clusters)

    def _names_by_cluster(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for name, broker in sorted(self._brokers.items()):
            names.setdefault(broker.cluster, []).append(name)
        return names

    def topic_list(self) -> dict[str, Any]:
        """All topics."""
        return {"topicList": sorted(self._topics)}

    def topic_list_text(self) -> bytes:
        """``topic_list`` as JSON. It is kept until a topic is added or removed."""
        if self._topic_list is None:
            self._topic_list = dumps_strict(self.topic_list())
        return self._topic_list

    def system_topic_list(self) -> dict[str, Any]:
        """Cluster and broker names, which are topics too, and the address of any one broker."""
        clusters = self._names_by_cluster()
        names = [*clusters, *(name for names in clusters.values() for name in names)]
        some = next((address for broker in self._brokers.values() for address in broker.addresses.values()), None)
        return {"brokerAddr": some, "topicList": names}

    def topics_by_cluster(self, cluster: str) -> dict[str, Any]:
        """As ``finding_topics``, without steps."""
        return at_once(self.finding_topics(cluster))

    def finding_topics(self, cluster: str) -> Steps[dict[str, Any]]:
        """The topics of a cluster's brokers, found in steps."""
        members = set(self._names_by_cluster().get(cluster, []))
        found: list[str] = []
        for count, (topic, carriers) in enumerate(list(self._topics.items()), 1):
            if not members.isdisjoint(carriers):
                found.append(topic)
            if count % TOPICS_BATCH == 0:
                yield
        return {"topicList": sorted(found)}

    def delete_topic(self, topic: str, cluster: str | None = None, peer: Peer | None = None) -> int:
        """Remove a topic until a broker registers it again: of one cluster, and of one peer's masters, if given.

        Returns of how many of the brokers that have it.
        """
        brokers = [
            broker
            for broker in self._carriers(topic)
            if (cluster is None or broker.cluster == cluster) and (peer is None or self.has_master(broker.name, peer))
        ]
        for broker in brokers:
            self._end_topic(broker, topic)
        return len(brokers)

    def has_topic(self, topic: str) -> bool:
        """Whether any broker has it."""
        return topic in self._topics

    def wipe_write_perm(self, broker_name: str) -> int:
        """Let nobody write to a broker's topics, until ``add_write_perm`` or its master's next start.

        Returns how many topics it has.
        """
        return self._set_write_wiped(broker_name, True)

    def add_write_perm(self, broker_name: str) -> int:
        """Undo ``wipe_write_perm``."""
        return self._set_write_wiped(broker_name, False)

    def _set_write_wiped(self, broker_name: str, is_wiped: bool) -> int:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return 0
        broker.is_write_wiped = is_wiped
        return len(broker.topics)
