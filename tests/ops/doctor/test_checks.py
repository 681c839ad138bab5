"""The checks of rmqha doctor: what passes, what fails, and that nothing unknown passes."""

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.exitcodes import ExitCode
from rmqha.ops.doctor.checks import CHECKS, examine, has_failed
from rmqha.ops.doctor.facts import AskedBroker, Facts, HeldSlot, Judgement, OpenFiles, ServerListing, Store, clock_ahead
from rmqha.ops.doctor.findings import CheckResult
from rmqha.wire import compiled

PASS, WARN, FAIL, SKIP = CheckResult.PASS, CheckResult.WARN, CheckResult.FAIL, CheckResult.SKIP
GIB = 1 << 30
CONFIG = {
    "brokerName": "a",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "brokerIP1": "10.0.0.1",
    "brokerIP2": "10.0.1.1",
    "listenPort": "10911",
    "haListenPort": "10912",
    "mappedFileSizeCommitLog": str(GIB),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "enableDLegerCommitLog": "false",
}
INFO = {
    "brokerVersionDesc": "V4_9_3",
    "bootTimestamp": "1000000",
    "commitLogDiskRatio": "0.32",
    "commitLogDirCapacity": "Total : 251.0 GiB, Free : 100.5 GiB.",
    "putTps": "10.5 9.0 8.0",
    "putMessageAverageSize": "1000.0",
}
SLAVE_CONFIG = {
    **CONFIG,
    "brokerId": "1",
    "brokerRole": "SLAVE",
    "brokerIP1": "10.0.0.2",
    "brokerIP2": "10.0.1.2",
}
MASTER = AskedBroker(
    "10.0.0.1:10911", config=CONFIG, info=INFO, log_end=1000, round_trip=0.001, clock_ahead=(-0.5, 0.5), over_tls=True
)
SLAVE = replace(MASTER, name="10.0.0.2:10911", config=SLAVE_CONFIG, log_end=900)
CONNECTS = {"10.0.0.1:10911": None, "10.0.1.1:10912": None, "10.0.0.2:10911": None}
BROKERS = {"a": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}}
SERVERS = (ServerListing("ns1:9876", brokers=BROKERS), ServerListing("ns2:9876", brokers=BROKERS))
PAIR = Facts((MASTER, SLAVE), (), SERVERS, CONNECTS, receive_buffer=6 << 20)
STORE = Store(
    "/data/a",
    config=SLAVE_CONFIG,
    judgement=Judgement("IN_SYNC", ExitCode.FINE, ""),
    is_ours=True,
    log_end=10 * GIB,
    segment_size=GIB,
    queue_file_size=6_000_000,
    free_bytes=100 * GIB,
    used_ratio=0.5,
    open_files=OpenFiles(65536, 100),
)


class CheckTestCase(SynchronousTestCase):
    def verdicts(self, name: str, facts: Facts) -> list[CheckResult]:
        """The verdicts of one check, in order."""
        (check,) = (check for check in CHECKS if check.name == name)
        found = check.findings(facts)
        for finding in found:
            if finding.verdict in (WARN, FAIL):
                self.assertTrue(finding.advice, finding)
        return [finding.verdict for finding in found]

    def text(self, name: str, facts: Facts) -> str:
        (check,) = (check for check in CHECKS if check.name == name)
        return " ".join(finding.text for finding in check.findings(facts))

    def master(self, **config: str) -> Facts:
        """The pair, with other settings of its master."""
        return self.master_in(PAIR, **config)

    def master_in(self, facts: Facts, /, **config: str) -> Facts:
        return replace(facts, hosts=(replace(MASTER, config={**CONFIG, **config}), *facts.hosts[1:]))

    def only(self, **changes: object) -> Facts:
        """A master alone."""
        return replace(PAIR, hosts=(replace(MASTER, **changes),))  # type: ignore[arg-type]


class AllChecksTests(CheckTestCase):
    """The list as a whole."""

    def test_a_sound_pair_has_no_failure(self) -> None:
        found = examine(PAIR)
        self.assertFalse(has_failed(found), found)
        self.assertEqual({check.name for check, _ in found}, {check.name for check in CHECKS})

    def test_nothing_passes_without_facts(self) -> None:
        """An unknown fact is SKIP, with a reason."""
        unknown = Facts((AskedBroker("x:1"),), (Store("/s", slots=None, slots_problem="unreadable"),))
        for check, finding in examine(unknown):
            self.assertTrue(finding.text)
            if check.name not in ("answers", "tls", "slots"):
                self.assertIs(finding.verdict, SKIP, (check.name, finding))
        for _, finding in examine(Facts()):
            self.assertIs(finding.verdict, SKIP)

    def test_settings_that_are_not_numbers_are_unknown(self) -> None:
        strange = dict.fromkeys(CONFIG, "\x1b[31m" + "9" * 5000)
        info = dict.fromkeys([*INFO, "runtime"], "9" * 5000)
        for _, finding in examine(Facts((AskedBroker("x:1", config=strange, info=info, given=False),), (), SERVERS)):
            self.assertIn(finding.verdict, (SKIP, PASS, WARN), finding)

    def test_names_are_unique(self) -> None:
        self.assertEqual(len({check.name for check in CHECKS}), len(CHECKS))


class NodeTests(CheckTestCase):
    """Checks of one node."""

    def test_who_does_not_answer_fails(self) -> None:
        facts = Facts((MASTER, AskedBroker("b:1", "refused")), (STORE, Store("/nope", "there is no such store")))
        self.assertEqual(self.verdicts("answers", facts), [PASS, FAIL, PASS, FAIL])

    def test_the_warnings_of_a_node(self) -> None:
        """Such as that no name server knows a promoted master."""
        warning = Judgement("SERVING", ExitCode.FINE, "", ("no name server knows this promoted master",))
        facts = Facts((replace(MASTER, is_ours=True, judgement=warning),))
        self.assertEqual(self.verdicts("state", facts), [PASS, WARN])

    def test_the_state_of_a_node(self) -> None:
        gap = Judgement("GAP", ExitCode.GAP, "GAP: gone")
        facts = Facts((MASTER, replace(SLAVE, is_ours=True, judgement=gap)), (STORE,))
        self.assertEqual(self.verdicts("state", facts), [SKIP, FAIL, PASS])

    def test_role_and_broker_id(self) -> None:
        self.assertEqual(self.verdicts("role", PAIR), [PASS, PASS])
        self.assertEqual(self.verdicts("role", self.master(brokerRole="SLAVE"))[0], FAIL)
        self.assertEqual(self.verdicts("role", self.master(brokerId="2"))[0], FAIL)
        self.assertEqual(self.verdicts("role", self.master(brokerId="x"))[0], SKIP)

    def test_a_sync_master_must_wait(self) -> None:
        sync = {"brokerRole": "SYNC_MASTER"}
        self.assertEqual(self.verdicts("sync-waits", PAIR), [SKIP])
        self.assertEqual(self.verdicts("sync-waits", self.master(**sync)), [PASS])  # 4.9 has no such setting
        self.assertEqual(self.verdicts("sync-waits", self.master(**sync, inSyncReplicas="1")), [FAIL])
        self.assertEqual(self.verdicts("sync-waits", self.master(**sync, inSyncReplicas="2")), [PASS])
        self.assertEqual(self.verdicts("sync-waits", self.master(**sync, inSyncReplicas="?")), [SKIP])
        all_of_them = {"inSyncReplicas": "1", "allAckInSyncStateSet": "true"}
        self.assertEqual(self.verdicts("sync-waits", self.master(**sync, **all_of_them)), [PASS])
        newer = replace(MASTER, config={**CONFIG, **sync}, info={**INFO, "brokerVersionDesc": "V5_3_3"})
        self.assertEqual(self.verdicts("sync-waits", Facts((newer,))), [SKIP])

    def test_other_ways_to_replicate(self) -> None:
        self.assertEqual(self.verdicts("mode", PAIR), [PASS, PASS])
        self.assertEqual(self.verdicts("mode", self.master(enableDLegerCommitLog="true"))[0], FAIL)
        self.assertEqual(self.verdicts("mode", self.master(enableControllerMode="True"))[0], FAIL)

    def test_registered_addresses_must_be_reachable(self) -> None:
        self.assertEqual(self.verdicts("addresses", PAIR), [PASS, PASS, PASS])
        dead = replace(PAIR, connects={**CONNECTS, "10.0.1.1:10912": "refused"})
        self.assertEqual(self.verdicts("addresses", dead), [PASS, FAIL, PASS])
        self.assertEqual(self.verdicts("addresses", self.master(brokerIP1="")), [SKIP, PASS, PASS])
        loopback = replace(self.master(brokerIP1="127.0.0.1"), connects={**CONNECTS, "127.0.0.1:10911": None})
        self.assertEqual(self.verdicts("addresses", loopback)[0], FAIL)
        here = replace(MASTER, name="localhost:10911", config={**CONFIG, "brokerIP1": "127.0.0.1"})
        self.assertEqual(self.verdicts("addresses", replace(loopback, hosts=(here,)))[0], PASS)

    def test_plain_ports(self) -> None:
        facts = Facts((replace(MASTER, over_tls=False), replace(SLAVE, is_ours=True)))
        self.assertEqual(self.verdicts("tls", facts), [WARN, WARN, PASS, SKIP])

    def test_clocks(self) -> None:
        for limits, verdict in (
            ((-0.9, 0.1), PASS),
            ((1.9, 2.9), PASS),
            ((2.5, 3.5), WARN),
            ((-4.0, -3.0), WARN),
            ((400.0, 401.0), FAIL),
            (None, SKIP),
        ):
            self.assertEqual(self.verdicts("clock", self.only(clock_ahead=limits)), [verdict], limits)

    def test_what_a_broker_says_of_its_clock(self) -> None:
        info = {"bootTimestamp": "1000000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
        there = 1000 + 86400 + 2 * 3600 + 3 * 60 + 4
        self.assertEqual(clock_ahead(info, there - 0.25, there + 0.5), (-0.5, 1.25))
        self.assertIsNone(clock_ahead({"bootTimestamp": "1"}, 0, 0))

    def test_a_long_way_needs_large_buffers(self) -> None:
        self.assertEqual(self.verdicts("round-trip", self.only()), [PASS])
        self.assertEqual(self.verdicts("round-trip", self.only(round_trip=7.0)), [WARN])
        busy = {**INFO, "putTps": "100000 1 1"}
        self.assertEqual(self.verdicts("round-trip", self.only(round_trip=0.1, info=busy)), [FAIL])
        self.assertEqual(self.verdicts("round-trip", self.only(round_trip=None)), [SKIP])
        limited = self.only(round_trip=0.2, config={**CONFIG, "haMaxBytesInFlight": "65536"})
        self.assertEqual(self.verdicts("round-trip", limited), [WARN])
        sync = self.only(round_trip=2.0, config={**CONFIG, "brokerRole": "SYNC_MASTER", "slaveTimeout": "3000"})
        self.assertEqual(self.verdicts("round-trip", sync), [FAIL])

    def test_disks(self) -> None:
        for ratio, free, verdict in (
            ("0.5", "100.0 GiB", PASS),
            ("0.76", "100.0 GiB", WARN),
            ("0.5", "2,5 GiB", WARN),
            ("0.5", "1023.0 MiB", FAIL),
            ("0.91", "100.0 GiB", FAIL),
            ("?", "100.0 GiB", SKIP),
        ):
            info = {"commitLogDiskRatio": ratio, "commitLogDirCapacity": f"Total : 9.0 TiB, Free : {free}."}
            self.assertEqual(self.verdicts("disk", self.only(info=info)), [verdict], (ratio, free))
        self.assertEqual(self.verdicts("disk", Facts(stores=(STORE, replace(STORE, free_bytes=5)))), [PASS, FAIL])

    def test_slots(self) -> None:
        kept = (HeldSlot("b", GIB), HeldSlot("c", 9 * GIB))
        tight = replace(STORE, slots=kept, free_bytes=4 * GIB)
        self.assertEqual(self.verdicts("slots", Facts(stores=(tight,))), [WARN, PASS])
        self.assertEqual(self.verdicts("slots", Facts(stores=(STORE,))), [PASS])
        unreadable = replace(STORE, slots=None, slots_problem="not JSON")
        self.assertEqual(self.verdicts("slots", Facts(stores=(unreadable,))), [FAIL])

    def test_open_files(self) -> None:
        for files, verdict in (
            (OpenFiles(65536, 10), PASS),
            (OpenFiles(1024, 10), WARN),
            (OpenFiles(65536, 65000), FAIL),
            (OpenFiles(65536, None), PASS),
            (None, SKIP),
        ):
            self.assertEqual(self.verdicts("open-files", Facts(stores=(replace(STORE, open_files=files),))), [verdict])


class ClusterTests(CheckTestCase):
    """Checks of several nodes and of name servers."""

    def test_two_masters(self) -> None:
        self.assertEqual(self.verdicts("one-master", PAIR), [PASS])
        other = replace(MASTER, name="10.0.0.9:10911", config={**CONFIG, "brokerIP1": "10.0.0.9"})
        both = replace(PAIR, hosts=(MASTER, SLAVE, other))
        self.assertEqual(self.verdicts("one-master", both), [FAIL])
        self.assertIn("10.0.0.9:10911", self.text("one-master", both))

    def test_one_broker_under_two_names_is_one(self) -> None:
        self.assertEqual(
            self.verdicts("one-master", replace(PAIR, hosts=(MASTER, replace(MASTER, name="a:1")))), [PASS]
        )

    def test_a_missing_master(self) -> None:
        self.assertEqual(self.verdicts("one-master", Facts((SLAVE,))), [WARN])
        self.assertEqual(self.verdicts("one-master", Facts((SLAVE,), (), SERVERS)), [SKIP])

    def test_lag(self) -> None:
        self.assertEqual(self.verdicts("lag", PAIR), [PASS])
        self.assertEqual(self.verdicts("lag", replace(PAIR, hosts=(replace(MASTER, log_end=GIB), SLAVE))), [WARN])
        self.assertEqual(self.verdicts("lag", Facts((MASTER,))), [SKIP])

    def test_sizes_of_files(self) -> None:
        self.assertEqual(self.verdicts("segment-size", PAIR), [PASS])
        self.assertEqual(self.verdicts("file-sizes", PAIR), [PASS, PASS, PASS])
        self.assertEqual(self.verdicts("segment-size", self.master(mappedFileSizeCommitLog="65536")), [FAIL])
        self.assertEqual(self.verdicts("file-sizes", self.master(maxIndexNum="7")), [PASS, PASS, WARN])
        self.assertEqual(self.verdicts("segment-size", self.master(mappedFileSizeCommitLog="?")), [SKIP])
        self.assertEqual(self.verdicts("segment-size", self.only()), [SKIP])

    def test_a_store_is_compared_with_brokers(self) -> None:
        small = replace(STORE, segment_size=65536, config={})
        self.assertEqual(self.verdicts("segment-size", replace(PAIR, stores=(small,))), [FAIL])
        self.assertEqual(self.verdicts("segment-size", replace(PAIR, stores=(STORE,))), [PASS])

    def test_versions(self) -> None:
        self.assertEqual(self.verdicts("versions", PAIR), [PASS])
        newer = replace(SLAVE, info={**INFO, "brokerVersionDesc": "V5_3_3"})
        self.assertEqual(self.verdicts("versions", replace(PAIR, hosts=(MASTER, newer))), [WARN])
        patched = replace(SLAVE, info={**INFO, "brokerVersionDesc": "V4_9_8"})
        self.assertEqual(self.verdicts("versions", replace(PAIR, hosts=(MASTER, patched))), [PASS])
        unknown = replace(SLAVE, info={})
        self.assertEqual(self.verdicts("versions", replace(PAIR, hosts=(MASTER, unknown))), [SKIP])
        ours = [replace(SLAVE, is_ours=True, info={**INFO, "rmqhaVersion": version}) for version in ("1", "2")]
        ours[1] = replace(ours[1], config={**SLAVE_CONFIG, "brokerIP1": "10.0.0.3"})
        self.assertEqual(self.verdicts("versions", replace(PAIR, hosts=(MASTER, *ours))), [WARN])

    def test_name_servers(self) -> None:
        self.assertEqual(self.verdicts("name-servers", PAIR), [PASS])
        for brokers, verdict in (
            ({"a": {0: "10.0.0.1:10911"}}, WARN),
            ({"a": {**BROKERS["a"], 0: "10.0.0.9:10911"}}, FAIL),
            ({}, WARN),
        ):
            facts = replace(PAIR, name_servers=(SERVERS[0], ServerListing("ns2:9876", brokers=brokers)))
            self.assertIn(verdict, self.verdicts("name-servers", facts))
            self.assertNotIn(PASS, self.verdicts("name-servers", facts))
        dead = replace(PAIR, name_servers=(SERVERS[0], ServerListing("ns2:9876", "refused")))
        self.assertEqual(self.verdicts("name-servers", dead), [FAIL, SKIP])

    def test_only_a_kernel_that_cannot_be_used_is_warned_of(self) -> None:
        for implementation in compiled.FINE_IMPLEMENTATIONS:
            facts = Facts((MASTER,), (replace(STORE, implementation=implementation),))
            self.assertEqual(self.verdicts("kernel", facts), [SKIP, PASS])
        unusable = replace(STORE, implementation=f"{compiled.PLAIN}built for another rmqha (0.9, contract 1)")
        self.assertEqual(self.verdicts("kernel", Facts(stores=(unusable,))), [WARN])
        self.assertEqual(self.verdicts("kernel", Facts(stores=(STORE,))), [SKIP])

    def test_registered_addresses(self) -> None:
        one = replace(PAIR, name_servers=SERVERS[:1])
        self.assertEqual(self.verdicts("registered", one), [PASS, PASS])
        self.assertEqual(self.verdicts("registered", self.master_in(one, brokerIP1="10.0.0.7")), [FAIL, PASS])
        nowhere = replace(one, name_servers=(ServerListing("ns1:9876"),))
        self.assertEqual(self.verdicts("registered", nowhere), [WARN, WARN])
        self.assertEqual(self.verdicts("registered", replace(PAIR, name_servers=())), [SKIP, SKIP])
