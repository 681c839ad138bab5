"""What a request needs: permissions on topics and groups, or an administrator (spec/remoting.md 13.2)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.topics import REPLY_TOPIC_SUFFIX, RETRY_PREFIX

DENY, ANY, PUB, SUB = 1, 2, 4, 8
"""The bits of a permission. ANY is PUB or SUB, and only needed, never given."""
SOMEWHERE = ""
"""As a resource: the permission on any topic or group that the account names, or by default."""
MAX_RESOURCES = 10_000


class Need(NamedTuple):
    """A permission on a topic, or on a group by its retry topic."""

    resource: str
    permission: int


class Needs(NamedTuple):
    """What one request needs."""

    resources: tuple[Need, ...] = ()
    admin: bool = False


FREE = Needs()
ADMIN = Needs(admin=True)
JAVAS_ADMIN_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
)
ALWAYS_ADMIN_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    }
)
"""Requests about the accounts themselves, which Java 4.9 serves to any account, and those of 5.x, unknown to 4.9."""
READS = frozenset(
    {
        *(21, 26, 28, 43, 45, 201),  # what slaves ask for, and the settings and figures of a broker
        *(46, 52, 202, 203, 204, 208, 300, 303, 305, 307, 315, 317, 322, 328, 351, 352),
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_CONFIRMED_OFFSET,
        RequestCode.PROMISE_TO_FOLLOW,
        RequestCode.AWAIT_TABLE_CHANGES,
    }
)
"""With aclStrict any account may send these: they tell figures, settings and names, and change nothing.

A promise to follow a leader is given only to one that shows its session, which only the coordinator knows."""


def _text(request: RemotingCommand, name: str) -> str:
    """A header field; empty if it is missing. The processor refuses the request then."""
    return request.ext_fields.get(name, "")


def retry_topic(group: str) -> str:
    """The retry topic of a group, which names the group's permission."""
    return group if group.startswith(RETRY_PREFIX) else RETRY_PREFIX + group


def _group(name: str) -> Need:
    return Need(retry_topic(name), SUB)


def _send(topic_field: str, group_field: str) -> Callable[[RemotingCommand], Needs]:
    def needs(request: RemotingCommand) -> Needs:
        topic = _text(request, topic_field)
        if topic.startswith(RETRY_PREFIX):
            return Needs((_group(_text(request, group_field)),))
        return Needs((Need(topic, PUB),))

    return needs


def _strict_send(topic_field: str) -> Callable[[RemotingCommand], Needs]:
    """As above, but for a retry topic the group is the topic's, whatever the sender says."""

    def needs(request: RemotingCommand) -> Needs:
        topic = _text(request, topic_field)
        return Needs((_group(topic) if topic.startswith(RETRY_PREFIX) else Need(topic, PUB),))

    return needs


def _reply(topic_field: str) -> Callable[[RemotingCommand], Needs]:
    """Consumers send replies, so these are free: but only to a topic for replies."""

    def needs(request: RemotingCommand) -> Needs:
        topic = _text(request, topic_field)
        return FREE if topic.endswith(REPLY_TOPIC_SUFFIX) else Needs((Need(topic, PUB),))

    return needs


def _topic(permission: int) -> Callable[[RemotingCommand], Needs]:
    return lambda request: Needs((Need(_text(request, "topic"), permission),))


def _group_of(field: str) -> Callable[[RemotingCommand], Needs]:
    return lambda request: Needs((_group(_text(request, field)),))


def _topic_and_group(request: RemotingCommand) -> Needs:
    return Needs((Need(_text(request, "topic"), SUB), _group(_text(request, "consumerGroup"))))


def _strict_send_back(request: RemotingCommand) -> Needs:
    """The message comes back from the group's retry topic, so its own topic must be one that the account may use."""
    topic = request.ext_fields.get("originTopic")
    group = _group(_text(request, "group"))
    return Needs((group,)) if not topic else Needs((group, Need(topic, ANY)))


def _unregister(request: RemotingCommand) -> Needs:
    """A client that is only a producer names no group of consumers."""
    group = request.ext_fields.get("consumerGroup")
    return FREE if group is None else Needs((_group(group),))


def _content(request: RemotingCommand) -> Mapping[str, Any]:
    """The JSON object in the body. Raises UnreadableBody if it is not one."""
    try:
        found = orjson.loads(request.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnreadableBody(f"the body of request {request.code} is not a JSON object")
    return found


class UnreadableBody(ValueError):
    """The resources of a request cannot be read."""


def _objects(found: Any) -> Iterable[Mapping[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _heartbeat(request: RemotingCommand) -> Needs:
    needs: dict[Need, None] = {}
    for consumer in _objects(_content(request).get("consumerDataSet")):
        needs[_group(str(consumer.get("groupName", "")))] = None
        for subscription in _objects(consumer.get("subscriptionDataSet")):
            needs[Need(str(subscription.get("topic", "")), SUB)] = None
        if len(needs) > MAX_RESOURCES:
            raise UnreadableBody(f"a heartbeat names more than {MAX_RESOURCES} topics and groups")
    return Needs(tuple(needs))


def _lock(request: RemotingCommand) -> Needs:
    return Needs((_group(str(_content(request).get("consumerGroup", ""))),))


NeedsOf = Callable[[RemotingCommand], Needs]
JAVAS: Mapping[int, NeedsOf] = {
    RequestCode.SEND_MESSAGE: _send("topic", "group"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "a"),
    RequestCode.RECALL_MESSAGE: _topic(PUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: _group_of("group"),
    RequestCode.PULL_MESSAGE: _topic_and_group,
    RequestCode.QUERY_MESSAGE: _topic(SUB),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group_of("consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _topic_and_group,
}
"""The requests that RocketMQ 4.9 checks. It does not know RECALL_MESSAGE, which puts a message into its topic."""
STRICT: Mapping[int, NeedsOf] = {
    **JAVAS,
    RequestCode.SEND_MESSAGE: _strict_send("topic"),
    RequestCode.SEND_MESSAGE_V2: _strict_send("b"),
    RequestCode.SEND_BATCH_MESSAGE: _strict_send("b"),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _strict_send_back,
    RequestCode.LITE_PULL_MESSAGE: _topic_and_group,
    RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(ANY),
    RequestCode.GET_MAX_OFFSET: _topic(ANY),
    RequestCode.GET_MIN_OFFSET: _topic(ANY),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(ANY),
    RequestCode.QUERY_CONSUME_QUEUE: _topic(SUB),
    RequestCode.END_TRANSACTION: lambda _: Needs((Need(SOMEWHERE, PUB),)),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    **dict.fromkeys(READS, lambda _: FREE),
}
"""With aclStrict. All other requests need an administrator: also a message by its offset, which may be of any topic."""


TOPIC_FIELDS: Mapping[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
}
"""Requests that need what their topic says, and nothing else, unless it is a retry topic: by the name of that field."""


def _with_admin_codes(table: Mapping[int, NeedsOf]) -> Mapping[int, NeedsOf]:
    return {**table, **dict.fromkeys((*JAVAS_ADMIN_CODES, *ALWAYS_ADMIN_CODES), lambda _: ADMIN)}


_TABLES = {strict: _with_admin_codes(STRICT if strict else JAVAS) for strict in (False, True)}


def needs_of(request: RemotingCommand, strict: bool) -> Needs:
    """What the request needs. Raises UnreadableBody."""
    find = _TABLES[strict].get(request.code)
    if find is not None:
        return find(request)
    return ADMIN if strict else FREE
