"""Who may do what: each request, push, call and order, what decides about it, and the test that shows it.

``docs/make/permissions.py`` makes docs/permissions.md of these rows. ``test_permissions.py`` fails if something that is
answered, or pushed, has no row, or if a row's test does not exist. The rows of brokers are for ``aclEnable`` with
``aclStrict``.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from rmqha.acl.needs import WHOLE_BROKER, WHOLE_BROKER_CODES
from rmqha.broker.requests.later import AUTH_CODES, LATER
from rmqha.broker.requests.pop import POP_CODES
from rmqha.wire.command import RequestCode


class Surface(Enum):
    """Where it arrives, or leaves."""

    BROKER = "Requests to the remoting ports of a broker"
    PUSH = "What a broker sends to its clients"
    HA = "The HA port"
    NAME_SERVER = "Requests to a name server"
    WITNESS = "Calls to the witness"
    CONTROL = "Orders on the control socket of a node"


class Row(NamedTuple):
    """One thing that somebody may want. ``what`` is a request code, or the name of a call or an order."""

    surface: Surface
    what: RequestCode | str
    decides: str
    test: str


ADMINISTRATOR = "an administrator's account"
OF_THE_WHOLE_BROKER = f"`{WHOLE_BROKER}=SUB` in the account's `topicPerms`, or an administrator"
RULES = "tests/acl/test_rules.py"
SENDS = "tests/broker/requests/test_send.py"
TRANSACTIONS = "tests/broker/requests/test_transaction.py"
TO_CLIENTS = "tests/broker/requests/test_toclients.py"
NAME_SERVER = "tests/namesrv/test_nameserver.py"
WITNESS = "tests/coordination/test_witness.py"
PEERS = "tests/namesrv/test_peers.py"
HOLES = f"{RULES}::HolesTests::test_strict_closes_them"
ADMINS = f"{RULES}::JavasChecksTests::test_administrators"
WHOLE = f"{RULES}::WholeBrokerTests::test_an_entry_gives_what_slaves_and_tools_read_and_nothing_else"
WITHOUT_RIGHTS = f"{RULES}::WholeBrokerTests::test_an_account_without_rights_learns_nothing_but_that_it_has_none"
ACCOUNT_CODES = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
)
UNKNOWN_TO_US = tuple(
    code for code in LATER if code not in (*ACCOUNT_CODES, *AUTH_CODES, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
)


def _rows(surface: Surface, codes: Iterable[RequestCode | str], decides: str, test: str) -> Iterator[Row]:
    return (Row(surface, code, decides, test) for code in codes)


def _broker() -> Iterator[Row]:
    code, broker = RequestCode, Surface.BROKER
    topics = f"{RULES}::JavasChecksTests::test_topics"
    topics_and_groups = f"{RULES}::JavasChecksTests::test_topics_and_groups"
    groups = f"{RULES}::JavasChecksTests::test_groups"
    send = "`PUB` for the topic; for a retry topic `SUB` for its group. Topics that only brokers write to are refused"
    yield from _rows(broker, (code.SEND_MESSAGE, code.SEND_MESSAGE_V2), send, topics)
    yield Row(broker, code.SEND_BATCH_MESSAGE, send, HOLES)
    reply = (
        "`SUB` for any topic, if it goes to the topic for replies of this cluster; else `PUB` for the topic. "
        "See the push 326"
    )
    yield from _rows(
        broker,
        (code.SEND_REPLY_MESSAGE, code.SEND_REPLY_MESSAGE_V2),
        reply,
        f"{RULES}::HolesTests::test_who_may_read_nothing_replies_to_nobody",
    )
    yield Row(
        broker,
        code.RECALL_MESSAGE,
        "`PUB` for the topic, which must be that of the handle",
        f"{SENDS}::TimerTests::test_what_cannot_be_taken_back_is_refused",
    )
    yield Row(
        broker,
        code.CONSUMER_SEND_MSG_BACK,
        "`SUB` for the group; and of the record at the offset: it is in its queue, confirmed, of a topic that "
        "consumers read, and the account has `SUB` for this topic",
        f"{SENDS}::SendBackTests::test_an_account_gives_back_what_it_may_read",
    )
    yield Row(
        broker,
        code.END_TRANSACTION,
        "of the half message at the offset: `PUB` for its topic, its group, and the account of the producer that sent "
        "it, while that one is connected",
        f"{TRANSACTIONS}::AccountTests::test_only_who_may_send_to_its_topic_ends_it",
    )
    both = "`SUB` for the topic and for the group"
    mixed = f"{RULES}::MixedTopicTests::test_a_default_does_not_give_them"
    yield from _rows(
        broker,
        (code.PULL_MESSAGE, code.LITE_PULL_MESSAGE),
        f"{both}, again when a pull that was held is answered. Topics with messages of others are given by name only",
        mixed,
    )
    yield Row(broker, code.UPDATE_CONSUMER_OFFSET, both, topics_and_groups)
    yield from _rows(broker, (code.QUERY_CONSUMER_OFFSET, code.QUERY_CONSUME_TIME_SPAN), both, HOLES)
    yield Row(broker, code.QUERY_MESSAGE, "`SUB` for the topic; only messages of this topic are answered", mixed)
    yield Row(broker, code.QUERY_CONSUME_QUEUE, "`SUB` for the topic, and for the group if it names one", HOLES)
    yield Row(broker, code.VIEW_MESSAGE_BY_ID, f"{ADMINISTRATOR}: the message may be of any topic", HOLES)
    yield from _rows(
        broker,
        (
            code.SEARCH_OFFSET_BY_TIMESTAMP,
            code.GET_MAX_OFFSET,
            code.GET_MIN_OFFSET,
            code.GET_EARLIEST_MSG_STORETIME,
            code.GET_TOPIC_CONFIG,
            code.GET_TOPIC_STATS_INFO,
        ),
        "`PUB` or `SUB` for the topic",
        HOLES,
    )
    yield Row(
        broker,
        code.HEART_BEAT,
        "`SUB` for each group and topic of its consumers. Groups of producers are free: see the pushes",
        f"{RULES}::JavasChecksTests::test_a_heartbeat_names_all_it_needs",
    )
    yield Row(
        broker,
        code.UNREGISTER_CLIENT,
        "`SUB` for the group of consumers, if it names one. It ends what its own connection is",
        groups,
    )
    yield Row(broker, code.CHECK_CLIENT_CONFIG, "`SUB` for the topic and the group in its body", HOLES)
    yield Row(broker, code.GET_CONSUMER_LIST_BY_GROUP, "`SUB` for the group", groups)
    yield from _rows(broker, (code.LOCK_BATCH_MQ, code.UNLOCK_BATCH_MQ), "`SUB` for the group", HOLES)
    yield from _rows(
        broker, (code.GET_CONSUMER_CONNECTION_LIST, code.GET_SUBSCRIPTIONGROUP_CONFIG), "`SUB` for the group", HOLES
    )
    yield Row(broker, code.GET_CONSUME_STATS, "`SUB` for the group, and for the topic if it names one", HOLES)
    yield from _rows(broker, WHOLE_BROKER_CODES, OF_THE_WHOLE_BROKER, WHOLE)
    yield Row(
        broker,
        code.PROMISE_TO_FOLLOW,
        "any account that shows the leader's session, which only the coordinator knows",
        "tests/failover/test_node_parts.py::PromiseTests::test_a_member_promises_what_its_agent_says",
    )
    yield Row(
        broker,
        code.GET_CONSUMER_RUNNING_INFO,
        ADMINISTRATOR,
        f"{TO_CLIENTS}::AccountTests::test_nobody_looks_into_a_client_that_may_not_be_in_the_group",
    )
    yield Row(
        broker,
        code.CONSUME_MESSAGE_DIRECTLY,
        ADMINISTRATOR,
        f"{TO_CLIENTS}::AccountTests::test_a_message_to_handle_goes_to_who_may_read_its_topic",
    )
    yield Row(
        broker,
        code.RESUME_CHECK_HALF_MESSAGE,
        ADMINISTRATOR,
        f"{TRANSACTIONS}::AccountTests::test_one_that_nobody_gave_up_is_not_taken_from_a_body_either",
    )
    yield Row(
        broker,
        code.UPDATE_BROKER_CONFIG,
        f"{ADMINISTRATOR}, from an address in `updateBrokerConfigFrom`",
        "tests/broker/requests/test_config.py::AllowedTests::test_a_stranger_may_not_and_is_logged_once",
    )
    yield from _rows(
        broker,
        (
            code.UPDATE_AND_CREATE_TOPIC,
            code.DELETE_TOPIC_IN_BROKER,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            code.DELETE_SUBSCRIPTIONGROUP,
            *ACCOUNT_CODES,
        ),
        ADMINISTRATOR,
        ADMINS,
    )
    yield from _rows(
        broker,
        (
            code.UPDATE_AND_CREATE_TOPIC_LIST,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            code.CLEAN_EXPIRED_CONSUMEQUEUE,
            code.CLEAN_UNUSED_TOPIC,
            *UNKNOWN_TO_US,
            *AUTH_CODES,
            *POP_CODES,
        ),
        ADMINISTRATOR,
        WITHOUT_RIGHTS,
    )
    yield from _rows(
        broker,
        (
            code.INVOKE_BROKER_TO_RESET_OFFSET,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            code.CLONE_GROUP_OFFSET,
            code.DELETE_EXPIRED_COMMITLOG,
        ),
        ADMINISTRATOR,
        HOLES,
    )


def _pushes() -> Iterator[Row]:
    code, push = RequestCode, Surface.PUSH
    yield Row(
        push,
        code.CHECK_TRANSACTION_STATE,
        "the account of the connection has `PUB` for the half message's topic, and is that of the producer that sent "
        "it, while that one is connected",
        f"{TRANSACTIONS}::AccountTests::test_only_who_may_send_to_its_topic_is_asked_about_it",
    )
    yield Row(
        push,
        code.PUSH_REPLY_MESSAGE_TO_CLIENT,
        "the account that replies may read a topic to which the account of the connection may send. "
        "Of several accounts with this client id, the one that has had it for longest",
        "tests/broker/requests/test_reply.py::AccountTests::test_who_cannot_have_had_a_question_answers_none",
    )
    yield Row(
        push,
        code.NOTIFY_CONSUMER_IDS_CHANGED,
        "the account of the connection has `SUB` for the group",
        "tests/broker/tables/test_clients.py::NotificationTests"
        "::test_who_may_no_longer_consume_in_the_group_is_not_told",
    )
    yield from _rows(
        push,
        (code.RESET_CONSUMER_CLIENT_OFFSET, code.GET_CONSUMER_STATUS_FROM_CLIENT),
        "the account of the connection has `SUB` for the group and the topic",
        f"{TO_CLIENTS}::AccountTests::test_resets_and_questions_for_offsets_go_to_those_who_may_consume",
    )
    yield Row(
        push,
        code.GET_CONSUMER_RUNNING_INFO,
        "the account of the connection has `SUB` for the group. It gets no signature of who asks",
        f"{TO_CLIENTS}::AccountTests::test_a_client_does_not_get_the_signature_of_who_asks",
    )
    yield Row(
        push,
        code.CONSUME_MESSAGE_DIRECTLY,
        "the account of the connection has `SUB` for the group, and for the topic of the record",
        f"{TO_CLIENTS}::AccountTests::test_a_message_to_handle_goes_to_who_may_read_its_topic",
    )


def _others() -> Iterator[Row]:
    code, names = RequestCode, Surface.NAME_SERVER
    yield Row(
        Surface.HA,
        "the greeting of a slave",
        "`--allow-slaves`: the address, or a name in the certificate. No account is asked for",
        "tests/ha/admission/test_allowlist.py::MasterTests::test_a_slave_that_is_not_gets_no_byte_and_never_counts",
    )
    anybody = "nothing: anybody that reaches the port"
    owner = "the peer that registered the broker: its connection, its address or its certificate"
    administrators = "this machine, and `--allow-admin`"
    yield Row(
        names,
        code.REGISTER_BROKER,
        "`--allow-brokers`. For the place of another peer: the next leader of a failover cluster, or a broker there "
        "that answers no more",
        f"{PEERS}::StrangerTests::test_it_gets_no_place_of_a_living_broker",
    )
    yield Row(
        names,
        code.UNREGISTER_BROKER,
        owner,
        f"{PEERS}::OwnerTests::test_a_late_goodbye_of_the_connection_before_takes_nothing_off",
    )
    yield Row(
        names,
        code.QUERY_DATA_VERSION,
        f"{anybody}. A sign of life only from {owner}",
        f"{PEERS}::StrangerTests::test_its_questions_are_no_sign_of_life_of_a_broker",
    )
    yield Row(
        names,
        code.REGISTER_TOPIC_IN_NAMESRV,
        "peers that have registered the master of the brokerName",
        f"{PEERS}::OwnerTests::test_a_broker_of_5_may_register_one_topic_alone_and_nobody_else_may",
    )
    yield Row(
        names, code.GET_ROUTEINFO_BY_TOPIC, anybody, f"{NAME_SERVER}::QueryTests::test_an_unknown_topic_is_told_as_such"
    )
    yield from _rows(
        names,
        (
            code.GET_BROKER_CLUSTER_INFO,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            code.GET_TOPICS_BY_CLUSTER,
        ),
        anybody,
        f"{NAME_SERVER}::QueryTests::test_lists",
    )
    yield Row(
        names,
        code.DELETE_TOPIC_IN_NAMESRV,
        f"{administrators}: for all brokers. Other peers: for the brokers whose masters they have registered",
        f"{PEERS}::OwnerTests::test_a_broker_administers_what_it_has_registered",
    )
    yield from _rows(
        names,
        (code.WIPE_WRITE_PERM_OF_BROKER, code.ADD_WRITE_PERM_OF_BROKER),
        f"{administrators}, and peers that have registered the master of the brokerName",
        f"{PEERS}::StrangerTests::test_it_takes_nobody_off_and_changes_nothing",
    )
    yield from _rows(
        names,
        (code.PUT_KV_CONFIG, code.DELETE_KV_CONFIG),
        administrators,
        f"{PEERS}::StrangerTests::test_it_takes_nobody_off_and_changes_nothing",
    )
    yield from _rows(
        names,
        (code.GET_KV_CONFIG, code.GET_KVLIST_BY_NAMESPACE),
        anybody,
        f"{NAME_SERVER}::QueryTests::test_texts_by_namespace_and_key",
    )
    yield from _rows(
        names,
        (code.GET_NAMESRV_CONFIG, code.UPDATE_NAMESRV_CONFIG),
        "anybody reads the settings, nobody changes them",
        f"{NAME_SERVER}::QueryTests::test_its_settings_are_shown_and_do_not_change",
    )
    yield Row(
        Surface.WITNESS,
        "/v3/auth/authenticate",
        "name and password, if it has a login",
        f"{WITNESS}::PortTests::test_a_wrong_login_is_answered_late",
    )
    token = "`--witness-allow`, a client certificate, and the token of a login, as far as it has them"
    yield from _rows(
        Surface.WITNESS,
        ("/v3/lease/keepalive", "/v3/lease/timetolive", "/v3/lease/revoke", "/v3/kv/range", "/v3/watch"),
        token,
        f"{WITNESS}::PortTests::test_a_login",
    )
    yield from _rows(
        Surface.WITNESS,
        ("/v3/lease/grant", "/v3/kv/txn"),
        f"{token}. Without a login one address gets a quarter of the keys, leases and bytes",
        f"{WITNESS}::PortTests::test_one_address_gets_a_part_of_the_keys_and_leases",
    )
    yield Row(
        Surface.CONTROL,
        "promote",
        "the user of the process at the other end: the node's own, or root",
        "tests/ops/test_control.py::test_another_users_process_gives_no_orders_and_is_not_believed",
    )


ROWS = (*_broker(), *_pushes(), *_others())
ANSWERED_BY_NOBODY = {
    RequestCode.QUERY_BROKER_OFFSET,
    RequestCode.GET_TOPIC_CONFIG_LIST,
    RequestCode.GET_TOPIC_NAME_LIST,
    RequestCode.TRIGGER_DELETE_FILES,
    RequestCode.GET_CLIENT_CONFIG,
    RequestCode.SUSPEND_CONSUMER,
    RequestCode.RESUME_CONSUMER,
    RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
    RequestCode.ADJUST_CONSUMER_THREAD_POOL,
    RequestCode.WHO_CONSUME_THE_MESSAGE,
    RequestCode.REGISTER_FILTER_SERVER,
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}
"""Names of RocketMQ for requests that no broker of it answers either; name servers of it answer the last three."""
