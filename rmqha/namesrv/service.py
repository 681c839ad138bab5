"""The name server: answers brokers and clients (spec/remoting.md 2.22), and removes silent brokers."""

from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha import __version__
from rmqha.events import Event
from rmqha.namesrv.kvconfig import FILE_NAME, KVConfigManager, TableFull
from rmqha.namesrv.routeinfo import Registration, RouteInfoManager
from rmqha.remoting.header import Header, refused
from rmqha.remoting.protocol import (
    MAX_HEADER_BYTES,
    SERVER_CHANNEL_MAX_IDLE_SECONDS,
    Answer,
    BodyLimit,
    Processors,
    RemotingLimits,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.remoting.registration import body_crc32, decode_body_in_steps
from rmqha.remoting.turns import Turns
from rmqha.services import PeriodicService
from rmqha.steps import Steps
from rmqha.store.log.flush import RunInThread
from rmqha.store.metadata import DataVersion
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact, dumps_strict, loads_request

FIRST_SCAN_SECONDS = 5.0
SCAN_SECONDS = 10.0
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


class NameServerService(Service):
    """The state and timers of a name server. ``processors`` answer the requests at its port.

    kvConfig.json is kept in ``folder``; with None it is not kept.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, folder: Path | None = None, run_in_thread: RunInThread = execute) -> None:
        """``run_in_thread`` writes kvConfig.json. Raises StoreError, OSError."""
        self._turns = Turns(clock)
        self.route_info = RouteInfoManager(clock.seconds, self._run)
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

    def _run(self, work: Steps[None]) -> None:
        """Do work in turns. No answer waits for it."""
        Deferred.fromCoroutine(self._turns.run(work)).addErrback(
            lambda failure: self._log.failure(
                "forgetting a broker's topics failed", failure, event=Event.TOPICS_NOT_FORGOTTEN
            )
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
        return connection.turns.run(self._take_registration(connection, request))

    def _take_registration(self, connection: RemotingProtocol, request: RemotingCommand) -> Steps[RemotingCommand]:
        header = Header(request)
        crc = header.integer("bodyCrc32", 0)
        if crc and crc != body_crc32(request.body):
            raise refused("crc32 not match")
        try:
            table = yield from decode_body_in_steps(request.body, header.boolean("compressed", False), request.version)
        except ValueError as error:
            raise refused(f"the body cannot be read: {error}") from error
        registration = Registration(
            cluster_name=header.text("clusterName"),
            broker_name=header.text("brokerName"),
            broker_addr=header.text("brokerAddr"),
            broker_id=header.integer("brokerId"),
            ha_server_addr=header.text("haServerAddr"),
            data_version=table.data_version,
            topics=tuple(table.topic_config_table.values()),
            software=f"{request.language[:20]} {request.version}",
        )
        if connection not in self._connections:
            self._connections.add(connection)
            connection.on_closed(lambda: self._closed(connection))
        if not connection.is_open:
            raise refused("the connection is gone")
        master = yield from self.route_info.registering(registration, connection)
        order_topics = self._kv_config.namespace(ORDER_TOPIC_CONFIG)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={} if master is None else {"masterAddr": master[0], "haServerAddr": master[1]},
            body=dumps_compact({"table": order_topics}) if order_topics else b"",
        )

    def _closed(self, connection: RemotingProtocol) -> None:
        self._connections.discard(connection)
        self.route_info.connection_closed(connection)

    def _unregister_broker(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header = Header(request)
        self.route_info.unregister_broker(
            header.text("brokerName"), header.text("brokerAddr"), header.integer("brokerId")
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    def _query_data_version(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        try:
            version = DataVersion.from_stranger(loads_request(request.body) if request.body else None)
        except ValueError as error:
            raise refused(f"the body is not a data version: {error}") from error
        changed, known = self.route_info.query_data_version(Header(request).text("brokerAddr"), version)
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

    def _delete_topic(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header = Header(request)
        self.route_info.delete_topic(header.text("topic"), header.text("clusterName", None))
        return RemotingCommand(ResponseCode.SUCCESS)

    def _wipe_write_perm(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        count = self.route_info.wipe_write_perm(Header(request).text("brokerName"))
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={"wipeTopicCount": str(count)})

    def _add_write_perm(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        count = self.route_info.add_write_perm(Header(request).text("brokerName"))
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={"addTopicCount": str(count)})

    def _topic_list(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(ResponseCode.SUCCESS, body=self.route_info.topic_list_text())

    def _put_kv_config(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
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

    def _delete_kv_config(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        header = Header(request)
        written = self._kv_config.delete(header.text("namespace"), header.text("key"))
        return written.addCallbacks(_success, _not_written)

    def _kv_list(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        namespace = Header(request).text("namespace")
        table = self._kv_config.namespace(namespace)
        if not table:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return _content({"table": table})


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
