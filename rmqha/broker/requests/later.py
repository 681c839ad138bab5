"""Requests of tools for what this broker does not have, mostly of RocketMQ 5. They are refused in words.

Without access control there are no requests about accounts. With it, others answer them.
"""

from collections.abc import Mapping
from functools import partial

from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

NO_CONTROLLER = "has no controller mode. `rmqha promote` makes a slave the master"
NO_AUTH = "has the accounts of ACL 1.0: use updateAclConfig and clusterAclConfigVersion of mqadmin 4.9 (docs/acl.md)"
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
