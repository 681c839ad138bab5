"""Which requests an account may send, in Java's words, and the holes of RocketMQ 4.9 that aclStrict closes."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl import usual
from rmqha.acl.needs import SUB, WHOLE_BROKER_CODES, Need
from rmqha.acl.rules import MAX_ACCOUNTS, AclRules, Refused, parse_rules
from rmqha.acl.signing import SIGNATURE, Credentials, Signer
from rmqha.wire.command import RemotingCommand, RequestCode

APP = Credentials("rocketmq-app", "app-secret")
BOSS = Credentials("administrator", "admin-secret")
PEER = "10.0.0.9"
ACCOUNT: dict[str, Any] = {
    "accessKey": APP.access_key,
    "secretKey": APP.secret_key,
    "topicPerms": ["TBoth=PUB|SUB", "TPub=PUB", "TSub = SUB", "TDeny=DENY", "TOdd=WHAT"],
    "groupPerms": ["GSub=SUB", "GDeny=DENY"],
}
CONTENT: dict[str, Any] = {
    "globalWhiteRemoteAddresses": ["10.10.*.*", None, ""],
    "accounts": [ACCOUNT, {"accessKey": BOSS.access_key, "secretKey": BOSS.secret_key, "admin": True}],
}
READ_FREELY = (21, 26, 28, 43, 45, 201)
"""Java serves these to any account."""
FIGURES = {14, 29, 30, 31, 32, 202, 203, 208, 303, 351, 352}
"""Of one topic or group."""
SERVED_WITHOUT_RIGHTS = {RequestCode.UNREGISTER_CLIENT, RequestCode.PROMISE_TO_FOLLOW}
"""A client that goes, and a promise to a leader that shows its session."""


def rules_of(content: Mapping[str, Any], strict: bool = True) -> AclRules:
    """The rules in the content of one file."""
    found = parse_rules(content)
    return AclRules({each.credentials.access_key: each for each in found.accounts}, found.white, strict)


def signed(keys: Credentials, code: int, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
    """A request with a signature."""
    request = RemotingCommand(code, body=body)
    return request._replace(ext_fields=Signer(keys)(fields, body, request.version))


def verdict(rules: AclRules, request: RemotingCommand, host: str = PEER) -> str | None:
    """Why the request is refused; None if it is served."""
    try:
        rules.check(request, host)
    except Refused as error:
        return str(error)
    return None


class RulesTestCase(SynchronousTestCase):
    """Rules with an application and an administrator."""

    strict = True

    def setUp(self) -> None:
        self.rules = rules_of(CONTENT, self.strict)

    def app(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> str | None:
        """Why the application's request is refused."""
        return verdict(self.rules, signed(APP, code, fields or {}, body))

    def boss(self, code: int, fields: Mapping[str, str] | None = None) -> str | None:
        """Why the administrator's request is refused."""
        return verdict(self.rules, signed(BOSS, code, fields or {}))


class OrderTests(RulesTestCase):
    """Who somebody is comes before what they may."""

    def test_a_white_address_needs_no_account(self) -> None:
        self.assertIsNone(verdict(self.rules, RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG), "10.10.1.1"))

    def test_a_request_without_an_account(self) -> None:
        self.assertEqual(verdict(self.rules, RemotingCommand(28)), "No accessKey is configured")

    def test_an_unknown_account(self) -> None:
        request = signed(Credentials("somebody", "app-secret"), 28, {})
        self.assertEqual(verdict(self.rules, request), "No acl config for somebody")

    def test_a_wrong_signature(self) -> None:
        wrong = "Check signature failed for accessKey=rocketmq-app"
        good = signed(APP, 10, {"topic": "TPub"}, b"body")
        self.assertIsNone(verdict(self.rules, good))
        for bad in (
            signed(Credentials("rocketmq-app", "no-secret"), 10, {"topic": "TPub"}, b"body"),
            good._replace(body=b"Body"),
            good._replace(ext_fields={**good.ext_fields, "topic": "TBoth"}),
            good._replace(ext_fields={**good.ext_fields, "more": "x"}),
            good._replace(ext_fields={key: each for key, each in good.ext_fields.items() if key != SIGNATURE}),
            good._replace(ext_fields={**good.ext_fields, SIGNATURE: "ü"}),
        ):
            self.assertEqual(verdict(self.rules, bad), wrong)

    def test_an_accounts_own_white_address_needs_its_key_only(self) -> None:
        rules = rules_of({"accounts": [{**ACCOUNT, "whiteRemoteAddress": "10.0.0.9"}]}, self.strict)
        request = RemotingCommand(25, ext_fields={"AccessKey": APP.access_key})
        self.assertIsNone(verdict(rules, request))
        self.assertIn("Check signature failed", str(verdict(rules, request, "10.0.0.8")))

    def test_a_long_key_of_a_stranger_is_cut(self) -> None:
        request = RemotingCommand(28, ext_fields={"AccessKey": "x" * 100_000})
        self.assertLess(len(str(verdict(self.rules, request))), 400)


class JavasChecksTests(RulesTestCase):
    """What RocketMQ 4.9 checks too."""

    def test_topics(self) -> None:
        for topic, may_send, may_query in (
            ("TBoth", True, True), ("TPub", True, False), ("TSub", False, True), ("TDeny", False, False),
            ("TOdd", False, False),
        ):  # fmt: skip
            denied = f"No default permission for topic:{topic}"
            for code, field in ((RequestCode.SEND_MESSAGE, "topic"), (RequestCode.SEND_MESSAGE_V2, "b")):
                self.assertEqual(self.app(code, {field: topic}), None if may_send else denied)
            self.assertEqual(self.app(RequestCode.QUERY_MESSAGE, {"topic": topic}), None if may_query else denied)
        self.assertEqual(self.app(310, {"b": "TOther"}), "No default permission for topic:TOther")

    def test_topics_and_groups(self) -> None:
        for code in (RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET):
            self.assertIsNone(self.app(code, {"topic": "TSub", "consumerGroup": "GSub"}))
            self.assertIsNone(self.app(code, {"topic": "%RETRY%GSub", "consumerGroup": "GSub"}))
            denied = self.app(code, {"topic": "TSub", "consumerGroup": "GDeny"})
            self.assertEqual(denied, "No default permission for group:GDeny")
            denied = self.app(code, {"topic": "TPub", "consumerGroup": "GSub"})
            self.assertEqual(denied, "No default permission for topic:TPub")

    def test_groups(self) -> None:
        for code, field in ((36, "group"), (35, "consumerGroup"), (38, "consumerGroup")):
            self.assertIsNone(self.app(code, {field: "GSub"}))
            self.assertEqual(self.app(code, {field: "GX"}), "No default permission for group:GX")
        self.assertIsNone(self.app(35, {"clientID": "c", "producerGroup": "P"}), "a producer has no consumer group")

    def test_a_heartbeat_names_all_it_needs(self) -> None:
        def beat(group: str, *topics: str) -> bytes:
            return orjson.dumps(
                {"consumerDataSet": [{"groupName": group, "subscriptionDataSet": [{"topic": each} for each in topics]}]}
            )

        self.assertIsNone(self.app(34, body=beat("GSub", "TSub", "TBoth", "%RETRY%GSub")))
        self.assertEqual(self.app(34, body=beat("GSub", "TSub", "TPub")), "No default permission for topic:TPub")
        self.assertEqual(self.app(34, body=beat("GDeny", "TSub")), "No default permission for group:GDeny")
        self.assertIsNone(self.app(34, body=b'{"producerDataSet":[{"groupName":"P"}]}'))
        for hostile in (
            b"",
            b"[]",
            b"{",
            b'{"consumerDataSet":7}',
            b'{"consumerDataSet":[7,{"subscriptionDataSet":1}]}',
        ):
            self.app(34, body=hostile)  # refused or served, and no other error

    def test_administrators(self) -> None:
        for code in (17, 25, 215, 200, 207, 50, 51, 53, 54):
            self.assertIsNone(self.boss(code))
            self.assertEqual(
                self.app(code), f"Need admin permission for request code={code}, but accessKey=rocketmq-app is not"
            )
        self.assertIsNone(self.boss(310, {"b": "anything"}), "it lists no permissions")

    def test_an_administrator_with_lists_is_bound_by_them(self) -> None:
        rules = rules_of({"accounts": [{**ACCOUNT, "admin": True}]}, self.strict)
        self.assertIsNone(verdict(rules, signed(APP, 17, {"topic": "TDeny"})))
        self.assertEqual(verdict(rules, signed(APP, 10, {"topic": "TDeny"})), "No default permission for topic:TDeny")

    def test_defaults(self) -> None:
        account = {**ACCOUNT, "defaultTopicPerm": "PUB", "defaultGroupPerm": "SUB"}
        rules = rules_of({"accounts": [account]}, self.strict)
        self.assertIsNone(verdict(rules, signed(APP, 10, {"topic": "TOther"})))
        self.assertEqual(verdict(rules, signed(APP, 10, {"topic": "TSub"})), "No default permission for topic:TSub")
        self.assertIsNone(verdict(rules, signed(APP, 38, {"consumerGroup": "GOther"})))

    def test_traces_are_free(self) -> None:
        self.assertIsNone(self.app(310, {"b": "RMQ_SYS_TRACE_TOPIC"}))

    def test_a_send_that_was_allowed_allows_no_other(self) -> None:
        """An allowed send is remembered."""
        for _ in range(2):
            for code, field in ((10, "topic"), (310, "b"), (320, "b")):
                for topic, may in (("TBoth", True), ("TPub", True), ("TSub", False), ("T", False)):
                    refusal = self.app(code, {field: topic})
                    if code != 320 or self.strict:
                        self.assertEqual(refusal is None, may, (code, topic))
        self.assertIsNotNone(
            verdict(rules_of({**CONTENT, "accounts": [{**ACCOUNT, "topicPerms": []}]}), signed(APP, 310, {"b": "TPub"}))
        )

    def test_few_sends_are_remembered(self) -> None:
        self.patch(usual, "MAX_KEPT_SENDS", 3)
        everybody = rules_of({"accounts": [{**ACCOUNT, "defaultTopicPerm": "PUB"}]})
        for number in range(10):
            self.assertIsNone(verdict(everybody, signed(APP, 310, {"b": f"topic-{number}"})))
            self.assertIsNone(verdict(everybody, signed(APP, 310, {"b": "x" * 1000})))
            self.assertLessEqual(len(everybody.usual.topics), 3)
            self.assertLess(max(map(len, everybody.usual.topics)), 10)

    def test_what_slaves_ask_for_needs_an_account(self) -> None:
        for code in READ_FREELY:
            self.assertEqual(self.app(code) is None, not self.strict)
            self.assertIsNone(self.boss(code))
            self.assertEqual(verdict(self.rules, RemotingCommand(code)), "No accessKey is configured")


class JavasChecksWithoutStrictTests(JavasChecksTests):
    """The same with aclStrict=false."""

    strict = False


HOLES: dict[int, dict[str, str]] = {
    320: {"b": "TDeny"},
    324: {"topic": "TDeny"},
    325: {"b": "TSub"},
    361: {"topic": "TDeny", "consumerGroup": "GSub"},
    14: {"topic": "TSub", "consumerGroup": "GDeny"},
    202: {"topic": "TDeny"},
    203: {"consumerGroup": "GDeny"},
    208: {"consumerGroup": "GSub", "topic": "TDeny"},
    303: {"topic": "TDeny", "group": "GSub"},
    307: {"consumerGroup": "GSub", "clientId": "c"},
    321: {"topic": "TSub", "consumerGroup": "GDeny"},
    351: {"topic": "TDeny"},
    352: {"group": "GDeny"},
    29: {"topic": "TDeny"},
    30: {"topic": "TDeny"},
    31: {"topic": "TDeny"},
    32: {"topic": "TDeny"},
    33: {"offset": "0"},
    222: {"topic": "TSub"},
    309: {},
    314: {},
    329: {},
    99_999: {},
    **{code: {} for code in WHOLE_BROKER_CODES},
}


class HolesTests(RulesTestCase):
    """What RocketMQ 4.9 serves to any account."""

    def test_strict_closes_them(self) -> None:
        for code, fields in HOLES.items():
            self.assertIsNotNone(self.app(code, fields), code)
            self.assertIsNone(self.boss(code, fields), code)
        for code, body in (
            (41, b'{"consumerGroup":"%s"}'),
            (42, b'{"consumerGroup":"%s"}'),
            (46, b'{"group":"%s","subscriptionData":{"topic":"TSub"}}'),
        ):
            self.assertIsNotNone(self.app(code, body=body % b"GDeny"))
            self.assertIsNone(self.app(code, body=body % b"GSub"))
        self.assertIsNotNone(self.app(46, body=b'{"group":"GSub","subscriptionData":{"topic":"TDeny"}}'))

    def test_without_strict_they_are_open(self) -> None:
        rules = rules_of(CONTENT, strict=False)
        for code, fields in HOLES.items():
            self.assertIsNone(verdict(rules, signed(APP, code, fields)), code)

    def test_honest_clients_pass(self) -> None:
        for code, fields in {
            320: {"b": "TPub"},
            324: {"topic": "cluster_REPLY_TOPIC"},
            325: {"b": "cluster_REPLY_TOPIC"},
            361: {"topic": "TSub", "consumerGroup": "GSub"},
            14: {"topic": "TSub", "consumerGroup": "GSub"},
            29: {"topic": "TSub"},
            30: {"topic": "TPub"},
            31: {"topic": "TSub"},
            202: {"topic": "TPub"},
            203: {"consumerGroup": "GSub"},
            208: {"consumerGroup": "GSub"},
            303: {"topic": "TSub", "group": "GSub"},
            321: {"topic": "TSub", "consumerGroup": "GSub"},
            351: {"topic": "TPub"},
            352: {"group": "GSub"},
            37: {"producerGroup": "P"},
        }.items():
            self.assertIsNone(self.app(code, fields), code)

    def test_who_may_send_knows_the_template_of_new_topics(self) -> None:
        rules = rules_of({"accounts": [{**ACCOUNT, "topicPerms": ["TSub=SUB"]}]})
        self.assertIsNone(self.app(351, {"topic": "TBW102"}))
        self.assertIsNotNone(verdict(rules, signed(APP, 351, {"topic": "TBW102"})))

    def test_who_may_not_send_ends_no_transaction(self) -> None:
        rules = rules_of({"accounts": [{**ACCOUNT, "topicPerms": ["TSub=SUB"]}]})
        self.assertIsNotNone(verdict(rules, signed(APP, 37, {})))

    def test_who_may_read_nothing_replies_to_nobody(self) -> None:
        rules = rules_of({"accounts": [{**ACCOUNT, "topicPerms": ["TPub=PUB"]}]})
        for code, field in ((324, "topic"), (325, "b")):
            self.assertIsNotNone(verdict(rules, signed(APP, code, {field: "cluster_REPLY_TOPIC"})))

    def test_a_retry_topic_is_its_own_groups(self) -> None:
        """Java asks for the group that the sender names."""
        request = signed(APP, 310, {"b": "%RETRY%GDeny", "a": "GSub"})
        self.assertEqual(verdict(self.rules, request), "No default permission for group:GDeny")
        self.assertIsNone(verdict(rules_of(CONTENT, strict=False), request))

    def test_a_trace_topic_frees_nothing_else(self) -> None:
        request = signed(APP, 36, {"group": "GDeny", "originTopic": "RMQ_SYS_TRACE_TOPIC"})
        self.assertEqual(verdict(self.rules, request), "No default permission for group:GDeny")


class WholeBrokerTests(SynchronousTestCase):
    """What is of all accounts: only who is named gets it."""

    def verdicts(self, account: Mapping[str, Any], codes: Iterable[int], strict: bool = True) -> dict[int, str | None]:
        """By code, of an account with only these lines."""
        keys = {"accessKey": APP.access_key, "secretKey": APP.secret_key}
        rules = rules_of({"accounts": [{**keys, **account}]}, strict)
        return {code: verdict(rules, signed(APP, code, {})) for code in codes}

    def test_an_account_without_rights_learns_nothing_but_that_it_has_none(self) -> None:
        verdicts = self.verdicts({}, set(RequestCode))
        self.assertEqual({code for code, refusal in verdicts.items() if refusal is None}, SERVED_WITHOUT_RIGHTS)

    def test_an_entry_gives_what_slaves_and_tools_read_and_nothing_else(self) -> None:
        verdicts = self.verdicts({"topicPerms": ["%BROKER%=SUB"]}, set(RequestCode))
        served = {code for code, refusal in verdicts.items() if refusal is None}
        self.assertEqual(served - SERVED_WITHOUT_RIGHTS, {*WHOLE_BROKER_CODES, *FIGURES})

    def test_no_default_gives_it(self) -> None:
        both = {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"}
        for refusal in self.verdicts(both, WHOLE_BROKER_CODES).values():
            self.assertIn("topicPerms needs %BROKER%=SUB", str(refusal))
        self.assertEqual(set(self.verdicts(both, READ_FREELY, strict=False).values()), {None})

    def test_an_administrator_with_lists_has_it(self) -> None:
        found = self.verdicts({"admin": True, "topicPerms": ["T=PUB"]}, WHOLE_BROKER_CODES)
        self.assertEqual(set(found.values()), {None})


class MixedTopicTests(SynchronousTestCase):
    """Topics with messages of all accounts: an entry of their name gives them, a default does not."""

    NAMES = (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
        "%DLQ%Other",
    )
    READS: Mapping[int, Mapping[str, str]] = {
        RequestCode.PULL_MESSAGE: {"consumerGroup": "G"},
        RequestCode.LITE_PULL_MESSAGE: {"consumerGroup": "G"},
        RequestCode.QUERY_MESSAGE: {},
        RequestCode.QUERY_CONSUME_QUEUE: {},
        RequestCode.QUERY_CONSUMER_OFFSET: {"consumerGroup": "G"},
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {},
        RequestCode.GET_MAX_OFFSET: {},
        RequestCode.GET_TOPIC_STATS_INFO: {},
    }

    def rules(self, *perms: str, strict: bool = True) -> AclRules:
        """An account that may read every topic by default, but for one, and consume in group G."""
        lines = {"defaultTopicPerm": "PUB|SUB", "topicPerms": ["Other=DENY", *perms], "groupPerms": ["G=SUB"]}
        keys = {"accessKey": APP.access_key, "secretKey": APP.secret_key}
        return rules_of({"accounts": [{**keys, **lines}]}, strict)

    def heartbeat(self, topic: str) -> RemotingCommand:
        """Of a consumer that subscribes to a topic."""
        consumer = {"groupName": "G", "subscriptionDataSet": [{"topic": topic}]}
        return signed(APP, RequestCode.HEART_BEAT, {}, orjson.dumps({"consumerDataSet": [consumer]}))

    def test_a_default_does_not_give_them(self) -> None:
        for topic in self.NAMES:
            for code, more in self.READS.items():
                request = signed(APP, code, {"topic": topic, **more})
                self.assertEqual(verdict(self.rules(), request), f"No default permission for topic:{topic}", code)
                self.assertIsNone(verdict(self.rules(f"{topic}=SUB"), request))
                self.assertIsNone(verdict(self.rules(strict=False), request), "as Java")
            self.assertIsNotNone(verdict(self.rules(), self.heartbeat(topic)))
            self.assertIsNone(verdict(self.rules(f"{topic}=SUB"), self.heartbeat(topic)))
            self.assertFalse(self.rules().may(APP.access_key, Need(topic, SUB)))

    def test_other_topics_are_as_before(self) -> None:
        for topic in ("T", "%DLQ%G", "%RETRY%G", "BenchmarkTest"):
            request = signed(APP, RequestCode.PULL_MESSAGE, {"topic": topic, "consumerGroup": "G"})
            self.assertIsNone(verdict(self.rules(), request), topic)


class ParsingTests(SynchronousTestCase):
    """Wrong content is refused in words that show no secret."""

    def test_wrong_content(self) -> None:
        for content, reason in (
            ({"accounts": 7}, "accounts is not a list"),
            ({"globalWhiteRemoteAddresses": "1.2.3.4"}, "globalWhiteRemoteAddresses is not a list"),
            ({"globalWhiteRemoteAddresses": ["nowhere"]}, "'nowhere' is not an address"),
            ({"accounts": ["app-secret"]}, "account 1 is not a mapping"),
            ({"accounts": [{**ACCOUNT, "accessKey": "short"}]}, "account 1: accessKey has fewer than 7"),
            ({"accounts": [{**ACCOUNT, "secretKey": ["app-secret"]}]}, "account 1: secretKey is not a text"),
            ({"accounts": [ACCOUNT, {**ACCOUNT, "whiteRemoteAddress": "x"}]}, "account 2: 'x' is not an address"),
            ({"accounts": [{**ACCOUNT, "topicPerms": ["T"]}]}, "topicPerms: 'T' is not NAME=PERMISSION"),
            ({"accounts": [{**ACCOUNT, "groupPerms": {"G": "SUB"}}]}, "groupPerms is not a list"),
            ({"accounts": [{**ACCOUNT, "topicPerms": ["T=DENY", " T =PUB"]}]}, "topicPerms: T is there twice"),
            ({"accounts": [{**ACCOUNT, "groupPerms": ["G=DENY", "%RETRY%G=SUB"]}]}, "is there twice"),
            ({"accounts": [ACCOUNT] * (MAX_ACCOUNTS + 1)}, "more than"),
        ):
            error = self.assertRaises(ValueError, parse_rules, content)
            self.assertIn(reason, str(error))
            self.assertNotIn("app-secret", str(error))

    def test_no_secret_in_a_repr(self) -> None:
        self.assertNotIn("secret", repr(parse_rules(CONTENT)).replace("secret_key", ""))
