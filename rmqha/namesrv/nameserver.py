"""The name server: answers brokers and clients (spec/remoting.md 2.22), and removes silent brokers."""

from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha import __version__
from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps
from rmqha.kit.threads import RunInThread
from rmqha.namesrv.kvconfig import FILE_NAME, KVConfigManager, TableFull
from rmqha.namesrv.peers import DEFAULT_ACCESS, Access, Liveness, Peer
from rmqha.namesrv.routeinfo import Registration, RouteInfoManager
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import (
    MAX_HEADER_BYTES,
    SERVER_CHANNEL_MAX_IDLE_SECONDS,
    Answer,
    BodyLimit,
    IConnectionObserver,
    Processors,
    RemotingLimits,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.remoting.registration import body_crc32, decode_body_in_steps
from rmqha.remoting.turns import Turns
from rmqha.store.metadata import DataVersion, TopicConfig
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact, dumps_strict, loads_lenient, loads_request

FIRST_SCAN_SECONDS = 5.0
SCAN_SECONDS = 10.0
MAX_QUEUE_DATAS = 16
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


REGISTRATION_BODY = BodyLimit(FRAME_MAX_LENGTH)
SMALL_BODY = BodyLimit(64 * 1024)


def name_server_limits(connections: int = 10_000, requests_in_progress: int = 10_000) -> RemotingLimits:
    """The limits of a name server's port on connections and requests."""
    return RemotingLimits(
        connections,
        requests_in_progress,
        header=MAX_HEADER_BYTES,
        bodies={RequestCode.REGISTER_BROKER: REGISTRATION_BODY},
        body=SMALL_BODY,
    )


@implementer(IConnectionObserver)
class NameServerService(Service):
    """The state and timers of a name server. ``processors`` answer the requests at its port.

    kvConfig.json is kept in ``folder``; with None it is not kept.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        folder: Path | None = None,
        run_in_thread: RunInThread = execute,
        access: Access = DEFAULT_ACCESS,
    ) -> None:
        """``run_in_thread`` writes kvConfig.json. Raises StoreError, OSError."""
        self._access = access
        self._liveness = Liveness(clock)
        self._refusals = SlaveCheck(clock)
        self._turns = Turns(clock)
        self.route_info = RouteInfoManager(clock, self._turns)
        self._kv_config = KVConfigManager(folder, run_in_thread)
        self.config = {
            "kvConfigPath": "" if folder is None else str((folder / FILE_NAME).absolute()),
            "scanNotActiveBrokerInterval": str(int(SCAN_SECONDS * 1000)),
            "serverChannelMaxIdleTimeSeconds": str(SERVER_CHANNEL_MAX_IDLE_SECONDS),
            "rmqha": "true",
            "rmqhaVersion": __version__,
        }
        """The settings that tools are shown, by Java's names."""
        self._connections: set[RemotingProtocol] = set()
        self._scan = PeriodicService(
            "looking for silent brokers",
            SCAN_SECONDS,
            self.route_info.scan_not_active_brokers,
            clock,
            FIRST_SCAN_SECONDS,
        )

    def startService(self) -> None:
        Service.startService(self)
        self._scan.startService()

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        return self._scan.stopService().addCallback(lambda _: self._kv_config.finish())

    def processors(self) -> Processors:
        """The functions that answer requests, by request code."""
        code = RequestCode
        return {
            code.REGISTER_BROKER: self._register_broker,
            code.UNREGISTER_BROKER: self._unregister_broker,
            code.QUERY_DATA_VERSION: self._query_data_version,
            code.GET_ROUTEINFO_BY_TOPIC: self._route_info_by_topic,
            code.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _, __: _content(self.route_info.system_topic_list()),
            code.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            code.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            code.PUT_KV_CONFIG: self._put_kv_config,
            code.GET_KV_CONFIG: self._get_kv_config,
            code.DELETE_KV_CONFIG: self._delete_kv_config,
            code.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            code.GET_NAMESRV_CONFIG: self._get_config,
            code.UPDATE_NAMESRV_CONFIG: self._update_config,
        }

    def _get_config(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        text = "".join(f"{name}={value}\n" for name, value in sorted(self.config.items()))
        return RemotingCommand(ResponseCode.SUCCESS, body=text.encode("utf-8", "replace"))

    def _update_config(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        raise refused(
            "the settings of this name server (rmqha) do not change while it runs: start it with other options "
            "(twistd rmqha-namesrv --help)"
        )

    def _register_broker(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return self._check_and_register(connection, request)

    async def _check_and_register(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        peer = Peer.of(connection)
        if not self._access.may_register(peer):
            raise self._refused(peer, "it is not in --allow-brokers")
        registration = await connection.turns.run(_read_registration(request))
        await self._check_owners(registration, peer)
        return await connection.turns.run(self._take_registration(registration, peer))

    async def _check_owners(self, new: Registration, peer: Peer) -> None:
        """Raises RequestRefused if a living broker of somebody else would lose its place."""
        dead: list[Peer] = []
        while others := [other for other in self.route_info.taken_from(new, peer) if other not in dead]:
            for other in others:
                if await self._liveness.is_alive(other.connection):
                    raise self._refused(
                        peer,
                        f"broker {shown(new.broker_name)} {new.broker_id} at {shown(new.broker_addr)} would take the "
                        f"place of one that {other.host} has registered, and that is alive",
                    )
            dead += others

    def _refused(self, peer: Peer, reason: str) -> RequestRefused:
        self._refusals.refused(peer.host, reason, Event.STRANGER_REFUSED)
        return RequestRefused(ResponseCode.NO_PERMISSION, f"the name server (rmqha) refuses {peer.host}: {reason}")

    def _check_admin(self, peer: Peer, what: str) -> None:
        """Raises RequestRefused if this peer may not administer."""
        if not self._access.may_administer(peer):
            raise self._refused(peer, f"it may not {what}: --allow-admin says who may")

    def _take_registration(self, registration: Registration, peer: Peer) -> Steps[RemotingCommand]:
        connection = peer.connection
        if connection not in self._connections:
            self._connections.add(connection)
            connection.on_closed(self)
        if not connection.is_open:
            raise refused("the connection is gone")
        master = yield from self.route_info.registering(registration, peer)
        order_topics = self._kv_config.namespace(ORDER_TOPIC_CONFIG)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={} if master is None else {"masterAddr": master[0], "haServerAddr": master[1]},
            body=dumps_compact({"table": order_topics}) if order_topics else b"",
        )

    def _register_topic(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """A broker of 5.x with enableSingleTopicRegister sends a new topic so."""
        name, peer = Header(request).text("topic"), Peer.of(connection)
        try:
            content = loads_lenient(request.body)
            queues = [
                (str(each["brokerName"]), _topic_of(name, each)) for each in content["queueDatas"][:MAX_QUEUE_DATAS]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise refused(f"the body is not a route: {error!r}") from error
        for broker_name, _ in queues:
            if not self.route_info.has_master(broker_name, peer):
                raise self._refused(peer, "it may not register topics of brokers of others")
        for broker_name, topic in queues:
            self.route_info.register_topic(broker_name, topic)
        return RemotingCommand(ResponseCode.SUCCESS)

    def connection_closed(self, connection: RemotingProtocol) -> None:
        self._connections.discard(connection)
        self._liveness.forget(connection)
        self.route_info.connection_closed(connection)

    def _unregister_broker(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header, peer = Header(request), Peer.of(connection)
        owner = self.route_info.registered_by(header.text("brokerAddr"))
        if owner is not None and owner.connection is not connection:
            if connection in self._connections:
                raise self._refused(peer, "it has registered with another connection after this one")
            if not owner.is_same(peer):
                raise self._refused(peer, f"it may not take off a broker that {owner.host} has registered")
        self.route_info.unregister_broker(
            header.text("brokerName"), header.text("brokerAddr"), header.integer("brokerId")
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    def _query_data_version(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        try:
            version = DataVersion.from_stranger(loads_request(request.body) if request.body else None)
        except ValueError as error:
            raise refused(f"the body is not a data version: {error}") from error
        address = Header(request).text("brokerAddr")
        changed, known = self.route_info.query_data_version(address, version, Peer.of(connection))
        return RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={"changed": str(changed).lower()},
            body=b"" if known is None else dumps_compact(known.to_json()),
        )

    def _route_info_by_topic(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return connection.turns.run(self._write_route_info(Header(request).text("topic")))

    def _write_route_info(self, topic: str) -> Steps[RemotingCommand]:
        found = yield from self.route_info.writing_route_info(topic)
        if found is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        return RemotingCommand(ResponseCode.SUCCESS, body=found)

    def _cluster_info(self, connection: RemotingProtocol, _: RemotingCommand) -> Answer:
        return connection.turns.run(_text(self.route_info.writing_cluster_info()))

    def _topics_by_cluster(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return connection.turns.run(self._write_topics(Header(request).text("cluster")))

    def _write_topics(self, cluster: str) -> Steps[RemotingCommand]:
        topics = yield from self.route_info.finding_topics(cluster)
        return RemotingCommand(ResponseCode.SUCCESS, body=dumps_strict(topics))

    def _delete_topic(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header, peer = Header(request), Peer.of(connection)
        topic, cluster = header.text("topic"), header.text("clusterName", None)
        if self._access.may_administer(peer):
            self.route_info.delete_topic(topic, cluster)
        elif not self.route_info.delete_topic(topic, cluster, peer) and self.route_info.has_topic(topic):
            self._check_admin(peer, "remove topics of brokers of others")
        return RemotingCommand(ResponseCode.SUCCESS)

    def _wipe_write_perm(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        count = self.route_info.wipe_write_perm(self._broker_to_change(connection, request))
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={"wipeTopicCount": str(count)})

    def _broker_to_change(self, connection: RemotingProtocol, request: RemotingCommand) -> str:
        """The brokerName of a request. Raises RequestRefused if the peer has not registered its master, and may not
        administer.
        """
        name, peer = Header(request).text("brokerName"), Peer.of(connection)
        if not self.route_info.has_master(name, peer):
            self._check_admin(peer, "change the permissions of brokers of others")
        return name

    def _add_write_perm(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        count = self.route_info.add_write_perm(self._broker_to_change(connection, request))
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={"addTopicCount": str(count)})

    def _topic_list(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(ResponseCode.SUCCESS, body=self.route_info.topic_list_text())

    def _put_kv_config(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        self._check_admin(Peer.of(connection), "change the key-value configuration")
        header = Header(request)
        try:
            written = self._kv_config.put(header.text("namespace"), header.text("key"), header.text("value"))
        except TableFull as error:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"the key-value config is full: {error}") from error
        return written.addCallbacks(_success, _not_written)

    def _get_kv_config(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header = Header(request)
        namespace, key = header.text("namespace"), header.text("key")
        value = self._kv_config.get(namespace, key)
        if value is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={"value": value})

    def _delete_kv_config(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        self._check_admin(Peer.of(connection), "change the key-value configuration")
        header = Header(request)
        written = self._kv_config.delete(header.text("namespace"), header.text("key"))
        return written.addCallbacks(_success, _not_written)

    def _kv_list(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        namespace = Header(request).text("namespace")
        table = self._kv_config.namespace(namespace)
        if not table:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return _content({"table": table})


def _topic_of(name: str, queue_data: Any) -> TopicConfig:
    """Raises ValueError, KeyError, TypeError."""
    read, write, perm = (int(queue_data[field]) for field in ("readQueueNums", "writeQueueNums", "perm"))
    return TopicConfig(name, read, write, perm, topic_sys_flag=int(queue_data.get("topicSysFlag", 0)))


def _read_registration(request: RemotingCommand) -> Steps[Registration]:
    """Raises RequestRefused."""
    header = Header(request)
    crc = header.integer("bodyCrc32", 0)
    if crc and crc != body_crc32(request.body):
        raise refused("crc32 not match")
    try:
        table = yield from decode_body_in_steps(request.body, header.boolean("compressed", False), request.version)
    except ValueError as error:
        raise refused(f"the body cannot be read: {error}") from error
    return Registration(
        cluster_name=header.text("clusterName"),
        broker_name=header.text("brokerName"),
        broker_addr=header.text("brokerAddr"),
        broker_id=header.integer("brokerId"),
        ha_server_addr=header.text("haServerAddr"),
        data_version=table.data_version,
        topics=tuple(table.topic_config_table.values()),
        software=f"{request.language[:20]} {request.version}",
    )


def _success(_: object) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS)


def _not_written(failure: Failure) -> RemotingCommand:
    failure.trap(OSError)
    raise refused(f"kvConfig.json is not written: {failure.getErrorMessage()}")


def _text(work: Steps[bytes]) -> Steps[RemotingCommand]:
    body = yield from work
    return RemotingCommand(ResponseCode.SUCCESS, body=body)


def _content(content: dict[str, Any]) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, body=dumps_compact(content))
