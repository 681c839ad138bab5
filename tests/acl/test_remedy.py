"""A refusal by access control says what to do."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.client.errors import AccessDenied, MQBrokerError
from rmqha.ops.doctor.facts import AskedBroker, Facts
from rmqha.ops.doctor.ofnodes import answers
from rmqha.remoting.calls import with_remedy
from rmqha.wire.command import RemotingCommand

JAVA = "org.apache.rocketmq.acl.common.AclException: "
AT = ", org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:632)"


class RemedyTests(SynchronousTestCase):
    """Java's remarks."""

    def test_the_remedy_fits_the_reason(self) -> None:
        for reason, remedy in {
            "No accessKey is configured": "--acl-file, or a node with aclFile",
            "No acl config for rocketmq-app": "check accessKey and secretKey",
            "Check signature failed for accessKey=rocketmq-app": "check accessKey and secretKey",
            "No default permission for topic:T": "the account may not do this",
        }.items():
            text = with_remedy(JAVA + reason + AT)
            self.assertIn(reason, text)
            self.assertIn(remedy, text)
            self.assertNotIn("PlainPermissionManager", text)

    def test_other_remarks_stay_as_they_are(self) -> None:
        for remark in ("topic T does not exist", "", None):
            self.assertEqual(with_remedy(remark), str(remark))

    def test_clients_have_a_type_of_error_for_it(self) -> None:
        error = MQBrokerError.of(RemotingCommand(1, remark=f"{JAVA}No accessKey is configured{AT}"))
        self.assertIsInstance(error, AccessDenied)
        self.assertIn("--acl-file", str(error))
        self.assertNotIsInstance(MQBrokerError.of(RemotingCommand(1, remark="anything else")), AccessDenied)

    def test_doctor_asks_for_an_account(self) -> None:
        for problem, advice in (
            (f"code 1: {with_remedy(JAVA + 'No accessKey is configured' + AT)}", "--acl-file"),
            ("Connection refused", "start the broker"),
        ):
            (finding,) = answers(Facts(hosts=(AskedBroker("10.0.0.1:10911", problem),)))
            self.assertIn(advice, str(finding.advice))
