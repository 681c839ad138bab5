"""What a request needs: permissions on topics and groups, or an administrator (spec/remoting.md 13.2)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.topics import AUTO_CREATE_TOPIC_KEY_TOPIC, REPLY_TOPIC_SUFFIX, RETRY_PREFIX

DENY, ANY, PUB, SUB = 1, 2, 4, 8
"""The bits of a permission. ANY is PUB or SUB, and only needed, never given."""
SOMEWHERE = None
"""As a resource, which no request can name: the permission on any topic, listed or by default."""
MAX_RESOURCES = 10_000


class Need(NamedTuple):
    """A permission on a topic, or on a group by its retry topic."""

    resource: str | None
    permission: int


class Needs(NamedTuple):
    """What one request needs."""

    resources: tuple[Need, ...] = ()
    admin: bool = False
    is_figure: bool = False
    """Who may read what is of the whole broker may do it too."""


NeedsOf = Callable[[RemotingCommand], Needs]
"""What a request of one code needs. May raise UnreadableBody."""
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
WHOLE_BROKER = "%BROKER%"
"""As a topic in topicPerms: ``SUB`` reads the tables, settings and figures of the whole broker. No default gives it."""
WHOLE_BROKER_CODES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_CONFIRMED_OFFSET,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.AWAIT_TABLE_CHANGES,
)
"""What slaves ask for, and what tells of the topics, groups and clients of all accounts."""


def _text(request: RemotingCommand, name: str) -> str:
    """A header field; empty if it is missing. The processor refuses the request then."""
    return request.ext_fields.get(name, "")


def retry_topic(group: str) -> str:
    """The retry topic of a group, which names the group's permission."""
    return group if group.startswith(RETRY_PREFIX) else RETRY_PREFIX + group


def _group(name: str) -> Need:
    return Need(retry_topic(name), SUB)


def to_send(topic: str) -> Need:
    """What a message for a topic needs. That of a retry topic is sent by a consumer of the group."""
    return _group(topic) if topic.startswith(RETRY_PREFIX) else Need(topic, PUB)


def _send(topic_field: str, group_field: str) -> NeedsOf:
    def needs(request: RemotingCommand) -> Needs:
        topic = _text(request, topic_field)
        if topic.startswith(RETRY_PREFIX):
            return Needs((_group(_text(request, group_field)),))
        return Needs((Need(topic, PUB),))

    return needs


def _strict_send(topic_field: str) -> NeedsOf:
    """As above, but for a retry topic the group is the topic's, whatever the sender says."""

    return lambda request: Needs((to_send(_text(request, topic_field)),))


def _reply(topic_field: str) -> NeedsOf:
    """Consumers send replies: to a topic for replies they need no permission to send, but one to read something."""

    def needs(request: RemotingCommand) -> Needs:
        topic = _text(request, topic_field)
        return Needs((Need(SOMEWHERE, SUB) if topic.endswith(REPLY_TOPIC_SUFFIX) else Need(topic, PUB),))

    return needs


def _topic(permission: int) -> NeedsOf:
    return lambda request: Needs((Need(_text(request, "topic"), permission),))


def _group_of(field: str) -> NeedsOf:
    return lambda request: Needs((_group(_text(request, field)),))


def _topic_and_group(request: RemotingCommand) -> Needs:
    return Needs((Need(_text(request, "topic"), SUB), _group(_text(request, "consumerGroup"))))


def _topic_and_own_group(request: RemotingCommand) -> Needs:
    return Needs((Need(_text(request, "topic"), SUB), _group(_text(request, "group"))))


def _group_and_perhaps_topic(request: RemotingCommand) -> Needs:
    group, topic = _group(_text(request, "consumerGroup")), _text(request, "topic")
    return Needs((group, Need(topic, SUB)) if topic else (group,))


def _topic_and_perhaps_group(request: RemotingCommand) -> Needs:
    topic, group = Need(_text(request, "topic"), SUB), _text(request, "consumerGroup")
    return Needs((topic, _group(group)) if group else (topic,))


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


def _topic_config(request: RemotingCommand) -> Needs:
    """The template of new topics is for all who may send to any topic."""
    topic = _text(request, "topic")
    return Needs((Need(SOMEWHERE, PUB) if topic == AUTO_CREATE_TOPIC_KEY_TOPIC else Need(topic, ANY),))


def _client_config(request: RemotingCommand) -> Needs:
    """What a consumer is going to subscribe to, and its group."""
    content = _content(request)
    subscription = content.get("subscriptionData")
    topic = subscription.get("topic", "") if isinstance(subscription, dict) else ""
    return Needs((_group(str(content.get("group", ""))), Need(str(topic), SUB)))


def _lock(request: RemotingCommand) -> Needs:
    return Needs((_group(str(_content(request).get("consumerGroup", ""))),))


def _figure(needs_of_one: NeedsOf) -> NeedsOf:
    return lambda request: needs_of_one(request)._replace(is_figure=True)


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
    RequestCode.LITE_PULL_MESSAGE: _topic_and_group,
    RequestCode.QUERY_CONSUMER_OFFSET: _figure(_topic_and_group),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _figure(_topic(ANY)),
    RequestCode.GET_MAX_OFFSET: _figure(_topic(ANY)),
    RequestCode.GET_MIN_OFFSET: _figure(_topic(ANY)),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _figure(_topic(ANY)),
    RequestCode.GET_TOPIC_CONFIG: _figure(_topic_config),
    RequestCode.GET_TOPIC_STATS_INFO: _figure(_topic(ANY)),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _figure(_group_of("group")),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _figure(_group_of("consumerGroup")),
    RequestCode.GET_CONSUME_STATS: _figure(_group_and_perhaps_topic),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _figure(_topic_and_own_group),
    RequestCode.QUERY_CONSUME_QUEUE: _topic_and_perhaps_group,
    RequestCode.CHECK_CLIENT_CONFIG: _client_config,
    RequestCode.END_TRANSACTION: lambda _: Needs((Need(SOMEWHERE, PUB),)),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.PROMISE_TO_FOLLOW: lambda _: FREE,
    **dict.fromkeys(WHOLE_BROKER_CODES, lambda _: Needs((Need(WHOLE_BROKER, SUB),))),
}
"""With aclStrict. All other requests need an administrator: also a message by its offset, which may be of any topic.

What a request leads to is decided by its processor: the topic of the message that is sent back, or of a half message
(``rmqha.remoting.rights``). A promise to follow a leader is given only to one that shows its session, which only the
coordinator knows.
"""


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
