"""Requests of tools for what this broker does not have, mostly of RocketMQ 5. They are refused in words.

Without access control there are no requests about accounts. With it, others answer them.
"""

from collections.abc import Mapping
from functools import partial

from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

NO_CONTROLLER = "has no controller mode. `rmqha promote` makes a slave the master"
NO_AUTH = "has the accounts of ACL 1.0: use updateAclConfig and clusterAclConfigVersion of mqadmin 4.9 (docs/acl.md)"
NO_LITE = "has no lite topics"
NO_COLD_DATA = "does not control reads of cold data"
NO_ROCKSDB = "keeps its tables and queues in RocketMQ's files, not in RocksDB"
AUTH_CODES = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
)
ACL_CODES = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
)
LATER: Mapping[RequestCode, str] = {
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "cannot forbid single topics to a group: use updateSubGroup -s false",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: NO_ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: NO_ROCKSDB,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "has no static topics: use updateTopic",
    RequestCode.RESET_MASTER_FLUSH_OFFSET: NO_CONTROLLER,
    RequestCode.CONTROLLER_GET_METADATA_INFO: NO_CONTROLLER,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: NO_CONTROLLER,
    RequestCode.GET_BROKER_EPOCH_CACHE: NO_CONTROLLER,
    RequestCode.CONTROLLER_ELECT_MASTER: NO_CONTROLLER,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: NO_COLD_DATA,
    RequestCode.SET_COMMITLOG_READ_MODE: "reads its log in one way",
    RequestCode.EXCHANGE_BROKER_HA_INFO: NO_CONTROLLER,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: NO_CONTROLLER,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: NO_CONTROLLER,
    RequestCode.CONTROLLER_REGISTER_BROKER: NO_CONTROLLER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: NO_CONTROLLER,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: NO_CONTROLLER,
    RequestCode.UPDATE_CONTROLLER_CONFIG: NO_CONTROLLER,
    RequestCode.GET_CONTROLLER_CONFIG: NO_CONTROLLER,
    RequestCode.CLEAN_BROKER_DATA: NO_CONTROLLER,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: NO_CONTROLLER,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: NO_CONTROLLER,
    RequestCode.BROKER_CLOSE_CHANNEL_REQUEST: NO_CONTROLLER,
    RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST: NO_CONTROLLER,
    RequestCode.GET_BROKER_LIVE_INFO_REQUEST: NO_CONTROLLER,
    RequestCode.GET_SYNC_STATE_DATA_REQUEST: NO_CONTROLLER,
    RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST: NO_CONTROLLER,
    RequestCode.POP_LITE_MESSAGE: NO_LITE,
    RequestCode.LITE_SUBSCRIPTION_CTL: NO_LITE,
    RequestCode.ACK_LITE_MESSAGE: NO_LITE,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: NO_LITE,
    RequestCode.GET_BROKER_LITE_INFO: NO_LITE,
    RequestCode.GET_PARENT_TOPIC_INFO: NO_LITE,
    RequestCode.GET_LITE_TOPIC_INFO: NO_LITE,
    RequestCode.GET_LITE_CLIENT_INFO: NO_LITE,
    RequestCode.GET_LITE_GROUP_INFO: NO_LITE,
    RequestCode.TRIGGER_LITE_DISPATCH: NO_LITE,
    RequestCode.ADD_BROKER: "is not a container of brokers: start another node",
    RequestCode.REMOVE_BROKER: "is not a container of brokers: start another node",
    RequestCode.SWITCH_TIMER_ENGINE: "has one timer engine, which keeps its messages in RocketMQ's files",
    RequestCode.GET_TIMER_METRICS: "counts no waiting timer messages by topic",
    RequestCode.QUERY_CORRECTION_OFFSET: "corrects no offsets by time: use resetOffsetByTime",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "lists no subscriptions of offline consumers: use consumerConnection",
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "lists no subscriptions of offline consumers: use consumerConnection",
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: "has no POP consumption, so no message request modes",
    RequestCode.POLLING_INFO: "has no POP consumption",
    RequestCode.GET_BROKER_MEMBER_GROUP: "is not a name server",
    RequestCode.BROKER_HEARTBEAT: "is not a name server",
    **dict.fromkeys(AUTH_CODES, NO_AUTH),
    **dict.fromkeys(ACL_CODES, "has no access control: start it with aclEnable=true (docs/acl.md)"),
}
"""What the answer says of this broker."""


def later_processors() -> Processors:
    """By request code."""
    return {code: partial(_refuse, reason) for code, reason in LATER.items()}


def _refuse(reason: str, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
    name = RequestCode(request.code).name
    raise RequestRefused(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f"request type {request.code} ({name}) not supported: this broker (rmqha) {reason}",
    )
