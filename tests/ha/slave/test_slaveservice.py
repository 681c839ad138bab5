"""A slave's service: it reconnects, acts on verdicts, and decides when and how a ``--once`` run ends."""

import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from twisted.application.service import IService
from twisted.internet.defer import Deferred, execute
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.protocol import IConnectionOwner
from rmqha.ha.slave.replica import Ahead, Diverged, Gap, MasterView, UnsupportedMaster
from rmqha.ha.slave.slaveservice import NextStep, OnFork, OnGap, SlaveOptions
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import seconds_of
from rmqha.node.replicating import Replicating
from rmqha.remoting.calls import RemotingError
from rmqha.settings.settings import make_settings
from rmqha.store.log.mappedfile import DISK
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.wire.transfer import Transfer
from tests.fixtures import new_folder
from tests.ha.doubles import SEGMENT_SIZE, LineTransport, append, heartbeat, log_lines, make_image, reports_in, wire
from tests.ha.slavenode import NOBODY, SlaveNodeTestCase, SlaveOwner
from tests.node.doubles import MachineDouble, OpenNodeDouble
from tests.store.logs import write_at

IMAGE = make_image([300] * 30)
PREFIX = IMAGE.prefix(IMAGE.messages[12])
VIEW = MasterView(0, IMAGE.end, segment_size=SEGMENT_SIZE)
LATE_VIEW = MasterView(2 * SEGMENT_SIZE, IMAGE.end, segment_size=SEGMENT_SIZE)


class InterfaceTests(SlaveNodeTestCase):
    def test_a_slave_owns_its_connections(self) -> None:
        self.start()
        verifyObject(IConnectionOwner, self.service)
        verifyObject(IService, self.service)


class BusyMasterTests(SlaveNodeTestCase):
    """A slave without a log takes the sizes of its files from its master's answer, so it asks a busy one again."""

    timeouts = 2

    def ask_remoting(self, with_segment_size: bool) -> Awaitable[MasterView]:
        self.view = VIEW if len(self.questions) >= self.timeouts else DeferredTimeoutError()
        return super().ask_remoting(with_segment_size)

    def first_report(self) -> int:
        """The first offset that a new connection reports, after all questions."""
        line = self.accept()
        for _ in range(self.timeouts):
            self.clock.advance(0)
        (offset,) = reports_in(line.take())
        return offset

    def test_the_answer_to_the_third_question_decides(self) -> None:
        self.start(mappedFileSizeCommitLog="")
        self.assertEqual((self.first_report(), len(self.questions)), (1, 3))
        self.assertEqual(self.log.segment_size, SEGMENT_SIZE)

    def test_a_master_that_never_answers_is_asked_three_times(self) -> None:
        self.timeouts = 100
        self.start()
        line = self.accept()
        for _ in range(self.timeouts):
            self.clock.advance(0)
        self.assertEqual(len(self.questions), 3)
        self.lose(line)
        self.accept()
        self.clock.advance(0)
        self.assertEqual(len(self.questions), 4, "the next connection asks once")


class OnceTests(SlaveNodeTestCase):
    """``--once`` ends with the exit code that says how the copy stands (design.md 7)."""

    def assert_ended(self, code: ExitCode, *texts: str) -> None:
        self.assertNotEqual(self.ends, [], "the run has not ended")
        self.assertEqual(self.ends[0][0], code, self.ends)
        for text in texts:
            self.assertIn(text, self.ends[0][1])

    def test_fine_at_the_masters_end_as_it_was_at_the_start(self) -> None:
        self.view = MasterView(0, PREFIX.end, segment_size=SEGMENT_SIZE)
        self.start(once=True)
        line, request = self.connect()
        self.assertEqual(request, 1)
        line.deliver(wire(IMAGE.transfers(1, PREFIX.messages[11])))
        self.assertEqual(self.ends, [])
        line.deliver(wire(IMAGE.transfers(PREFIX.messages[11], PREFIX.end)))
        self.assert_ended(ExitCode.FINE, f"holds all up to {PREFIX.end}")

    def test_fine_at_that_end_though_the_master_has_grown_when_the_slave_connects_again(self) -> None:
        self.view = MasterView(0, PREFIX.end, segment_size=SEGMENT_SIZE)
        self.start(once=True)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, IMAGE.messages[3])))
        self.lose(line)
        self.view = VIEW
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        self.assert_ended(ExitCode.FINE, f"holds all up to {PREFIX.end}")

    def test_fine_with_nothing_to_copy(self) -> None:
        self.view = VIEW
        self.start(IMAGE, once=True)
        line, request = self.connect()
        self.assertEqual(request, IMAGE.last_message)
        self.assertEqual(self.ends, [], "the overlap has not been compared yet")
        line.deliver(wire(IMAGE.transfers(request)))
        self.assert_ended(ExitCode.FINE, f"holds all up to {IMAGE.end}")

    def test_fine_with_an_empty_master(self) -> None:
        self.view = MasterView(0, 0)
        self.start(once=True)
        line, request = self.connect()
        self.assertEqual(request, 0)
        line.deliver(heartbeat(0))
        self.assert_ended(ExitCode.FINE, "holds all up to 0")

    def test_fine_without_remoting_when_two_heartbeats_prove_it(self) -> None:
        self.start(once=True, remoting=False)
        main = self.accept()
        probe = self.accept()
        probe.deliver(wire(IMAGE.transfers(3 * SEGMENT_SIZE)))
        self.assertEqual(reports_in(main.take()), [1])
        main.deliver(wire(IMAGE.transfers(1)) + heartbeat(IMAGE.end))
        self.assertEqual(self.ends, [])
        main.deliver(heartbeat(IMAGE.end))
        self.assert_ended(ExitCode.FINE, f"holds all up to {IMAGE.end}")

    def test_gap(self) -> None:
        self.view = MasterView(5 * SEGMENT_SIZE, 9 * SEGMENT_SIZE)
        self.start(PREFIX, once=True)
        line = self.accept()
        self.assert_ended(ExitCode.GAP, "GAP: the master's log starts at 20480")
        self.assertTrue(line.aborted)
        self.assertEqual(line.take(), b"", "no report was sent")

    def test_ahead_by_remoting(self) -> None:
        self.view = MasterView(0, 100)
        self.start(PREFIX, once=True)
        self.accept()
        self.assert_ended(ExitCode.AHEAD, f"AHEAD: the master's log ends at 100, {PREFIX.end - 100} bytes before")

    def test_ahead_by_heartbeats(self) -> None:
        self.start(PREFIX, once=True, remoting=False)
        line = self.accept()
        self.accept().deliver(heartbeat(0))
        (request,) = reports_in(line.take())
        line.deliver(heartbeat(request) * 2)
        self.assert_ended(ExitCode.AHEAD, f"AHEAD: the master's log ends at {request}")

    def test_diverged_by_a_byte_of_the_overlap(self) -> None:
        self.view = VIEW
        self.start(PREFIX, once=True)
        line, request = self.connect()
        line.deliver(wire(IMAGE.with_byte_changed(request + 50).transfers(request)))
        self.assert_ended(ExitCode.DIVERGED, f"DIVERGED: the master's byte at {request + 50} is")
        self.assertIn(f"Bytes before {request} were not compared", self.ends[-1][1])
        self.assertEqual(self.content(), PREFIX.content)

    def diverge(self, once: bool = True) -> list[Deferred[str]]:
        """A slave that finds a byte that differs, and asks where the logs part. Gives what it waits for."""
        searches: list[Deferred[str]] = []

        def search() -> Deferred[str]:
            searches.append(Deferred())
            return searches[-1]

        self.view = VIEW
        self.start(PREFIX, once=once)
        self.service.verdicts.describe_fork = search
        self.notice()
        return searches

    def notice(self) -> None:
        line, request = self.connect()
        line.deliver(wire(IMAGE.with_byte_changed(request + 50).transfers(request)))

    def test_diverged_names_the_first_record_that_differs(self) -> None:
        [search] = self.diverge()
        self.assertEqual(self.ends, [])
        search.callback("they part at 7, at offset 3 of queue 1 of T")
        self.assert_ended(ExitCode.DIVERGED, "DIVERGED: they part at 7, at offset 3 of queue 1 of T")
        self.assertEqual(self.service.reason, "they part at 7, at offset 3 of queue 1 of T")

    def test_diverged_stays_so_if_the_first_record_that_differs_is_not_found(self) -> None:
        searches = self.diverge()
        searches[0].errback(OSError("no way"))
        self.assert_ended(ExitCode.DIVERGED, "DIVERGED: the master's byte at ")

    def test_the_first_record_that_differs_is_looked_for_once(self) -> None:
        searches = self.diverge(once=False)
        searches[0].callback("they part at 7")
        self.silence(3)
        self.notice()
        self.assertEqual(len(searches), 1)
        self.assertEqual(self.service.reason, "they part at 7")
        self.assertEqual(self.ends, [])

    def test_a_stop_ends_the_search_for_the_first_record_that_differs(self) -> None:
        [search] = self.diverge(once=False)
        self.stop()
        search.addErrback(lambda _: None)
        self.assertTrue(search.called)

    def test_diverged_by_a_record_that_is_damaged_each_time(self) -> None:
        self.view = VIEW
        self.start(PREFIX, once=True)
        damaged = IMAGE.with_byte_changed(PREFIX.end + 100)
        for times in range(3):
            self.assertEqual(self.ends, [], times)
            line, request = self.connect()
            line.deliver(wire(damaged.transfers(request)))
        self.assert_ended(ExitCode.DIVERGED, "this happened 3 times")
        self.lose(line)
        self.assertEqual(self.content(), PREFIX.content)

    def test_diverged_by_segment_size(self) -> None:
        self.view = MasterView(0, IMAGE.end, segment_size=8192)
        self.start(once=True)
        self.accept()
        self.assert_ended(ExitCode.DIVERGED, "mappedFileSizeCommitLog is 4096 here and 8192 at the master")

    def test_stalled_when_the_master_has_more_and_sends_nothing(self) -> None:
        self.view = VIEW
        self.start(PREFIX, once=True)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        for _ in range(60):
            self.silence(1)
            line.deliver(heartbeat(PREFIX.end))
            if self.ends:
                break
        self.assert_ended(ExitCode.STALLED, f"STALLED: {IMAGE.end - PREFIX.end} bytes behind, and nothing comes")
        self.assertLess(self.clock.seconds(), 45)

    def test_stalled_when_five_connections_brought_nothing(self) -> None:
        self.view = VIEW
        self.start(PREFIX, once=True)
        for times in range(5):
            self.assertEqual(self.ends, [], times)
            self.lose(self.connect()[0])
        self.assert_ended(ExitCode.STALLED, "5 connections to the master brought nothing")

    def test_connections_that_bring_something_are_not_fruitless(self) -> None:
        self.view = VIEW
        self.start(once=True)
        for number in range(1, 10):
            line, request = self.connect()
            line.deliver(wire(IMAGE.transfers(request, IMAGE.messages[number])))
            self.lose(line)
        self.assertEqual(self.ends, [])

    def test_cannot_connect(self) -> None:
        self.start(once=True)
        for times in range(5):
            self.assertEqual(self.ends, [], times)
            self.next_attempt().refuse()
        self.assert_ended(ExitCode.CANNOT_CONNECT, "cannot connect to the master, 5 times: Connection was refused")

    def test_cannot_connect_any_more(self) -> None:
        """The master has died during the run."""
        self.view = VIEW
        self.start(once=True)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        self.lose(line)
        for times in range(5):
            self.assertEqual(self.ends, [], times)
            self.next_attempt().refuse()
        self.assert_ended(ExitCode.CANNOT_CONNECT, "5 times")
        self.assertEqual(self.content(), PREFIX.content)

    def test_a_connection_in_between_resets_the_count_of_failures(self) -> None:
        self.view = VIEW
        self.start(once=True)
        for number in (2, 4, 6):
            for _ in range(4):
                self.next_attempt().refuse()
            line, request = self.connect()
            line.deliver(wire(IMAGE.transfers(request, IMAGE.messages[number])))
            self.lose(line)
        self.assertEqual(self.ends, [])

    def test_nothing_is_ended_by_a_service_that_was_stopped(self) -> None:
        self.start(once=True)
        for _ in range(4):
            self.next_attempt().refuse()
        self.stop()
        self.assertEqual(self.ends, [])


class EndlessTests(SlaveNodeTestCase):
    """Without ``--once`` nothing ends the node: it says how it stands, and tries again."""

    def test_verdicts_are_states_that_last_and_the_slave_tries_again(self) -> None:
        for view, state in (
            (LATE_VIEW, ReplicaState.GAP),
            (MasterView(0, 100), ReplicaState.AHEAD),
            (MasterView(0, IMAGE.end, segment_size=8192), ReplicaState.DIVERGED),
        ):
            self.view = view
            self.start(make_image([300]))
            with log_lines() as lines:
                for _ in range(7):
                    self.clock.advance(0)
                    self.assertTrue(self.accept().aborted)
                    self.assertEqual(self.service.replica.state, state)
                    self.clock.advance(0)
                    self.assertEqual(self.service.replica.state, state, "lost connections change nothing")
            self.assertIn(f"error: {state.name}: ", lines())
            self.assertEqual(lines().count(f"slave is {state.name}"), 1)
            self.assertEqual(self.ends, [])
            self.stop()

    def test_a_verdict_that_holds_no_longer_is_left(self) -> None:
        self.view = MasterView(0, 100)
        self.start(PREFIX)
        self.accept()
        self.view = VIEW
        line, request = self.connect()
        self.assertEqual(self.service.replica.state, ReplicaState.AHEAD)
        self.assertFalse(self.store.has_masters_log)
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.service.replica.state, ReplicaState.IN_SYNC)
        self.assertTrue(self.store.has_masters_log)
        self.assertEqual(self.content(), IMAGE.content)

    def test_a_master_that_cannot_be_reached_is_tried_for_ever(self) -> None:
        self.start()
        for _ in range(12):
            self.next_attempt().refuse()
        self.assertEqual(self.ends, [])
        self.assertEqual(self.service.replica.state, ReplicaState.CONNECTING)

    def test_retries_come_ever_later_when_connections_bring_nothing(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        pauses = []
        for _ in range(10):
            self.lose(self.connect()[0])
            lost = self.clock.seconds()
            attempt = self.next_attempt()
            pauses.append(self.clock.seconds() - lost)
            self.endpoint.attempts.append(attempt)
        for number, pause in enumerate(pauses, 1):
            least = min(30.0, 1.5**number)
            self.assertTrue(least <= pause <= least + 1.2, pauses)

    def test_a_connection_that_brought_something_resets_the_pause(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        for _ in range(6):
            self.lose(self.connect()[0])
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.lose(line)
        lost = self.clock.seconds()
        self.next_attempt().refuse()
        self.assertLess(self.clock.seconds() - lost, 2.7)

    def test_a_stall_is_a_state_and_no_end(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        for _ in range(60):
            self.silence(1)
            line.deliver(heartbeat(PREFIX.end))
        self.assertEqual((self.service.replica.state, self.ends), (ReplicaState.STALLED, []))
        self.assertFalse(line.disconnecting)
        line.deliver(wire(IMAGE.transfers(PREFIX.end)))
        self.assertEqual(self.service.replica.state, ReplicaState.IN_SYNC)

    def test_a_look_at_a_later_master_ends_a_connection_that_can_bring_nothing(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)) + heartbeat(PREFIX.end))
        self.view = MasterView(5 * SEGMENT_SIZE, 9 * SEGMENT_SIZE)
        self.silence(5)
        self.assertEqual(self.service.replica.state, ReplicaState.GAP)
        self.assertTrue(line.over)

    def test_the_same_verdict_is_told_once_and_its_retries_seldom(self) -> None:
        self.view = MasterView(0, 100)
        self.start(PREFIX)
        with log_lines() as lines:
            for _ in range(100):
                self.assertTrue(self.accept().aborted)
        self.assertEqual(lines().count("error: AHEAD"), 1)
        self.assertLess(len(lines().splitlines()), 40)
        self.assertIn("attempts in the last 10 min", lines())


class ContactTests(SlaveNodeTestCase):
    """What the status says about the master: the last contact, and a lag that is never too small."""

    def facts(self) -> tuple[int | None, float | None]:
        return self.service.lag_bytes, self.service.lag_seconds

    def sync(self) -> LineTransport:
        self.view = VIEW
        self.start(PREFIX)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.service.replica.state, ReplicaState.IN_SYNC)
        return line

    def test_nothing_is_known_before_the_master_was_heard(self) -> None:
        self.start(PREFIX)
        self.assertEqual((self.facts(), self.service.last_contact), ((None, None), None))
        self.next_attempt().refuse()
        self.assertEqual(self.facts(), (None, None))
        self.assertEqual(self.service.reason, "Connection was refused by other side")

    def test_with_bytes_outstanding_the_seconds_are_never_zero(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        line, request = self.connect()
        self.assertEqual(self.facts(), (IMAGE.end - PREFIX.end, None), "nobody knows for how long")
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        self.silence(5)
        self.assertEqual(self.facts(), (IMAGE.end - PREFIX.end, None))
        line.deliver(wire(IMAGE.transfers(PREFIX.end)))
        self.assertEqual(self.facts(), (0, 0.0))

    def test_a_slave_that_falls_behind_is_so_since_it_held_all(self) -> None:
        line = self.sync()
        self.silence(2)
        line.deliver(heartbeat(IMAGE.end))
        self.view = MasterView(0, IMAGE.end + 500, segment_size=SEGMENT_SIZE)
        self.silence(8)
        self.assertEqual(self.facts(), (500, 8.0))

    def test_lag_grows_from_the_last_contact_while_the_master_is_away(self) -> None:
        line = self.sync()
        heard = self.service.last_contact
        self.lose(line)
        self.view = NOBODY
        self.silence(30)
        self.assertEqual(self.facts(), (0, 30.0))
        self.assertEqual((self.service.replica.state, self.service.last_contact), (ReplicaState.CONNECTING, heard))

    def test_bytes_known_to_be_outstanding_stay_so_while_the_master_is_away(self) -> None:
        line = self.sync()
        self.view = MasterView(0, IMAGE.end + 500, segment_size=SEGMENT_SIZE)
        self.silence(5)
        self.lose(line)
        self.view = NOBODY
        self.silence(20)
        self.assertEqual(self.facts(), (500, 25.0))
        self.accept()  # and nobody answers at the remoting port
        self.assertEqual(self.service.lag_bytes, 500)

    def test_a_master_that_hangs_is_not_in_touch(self) -> None:
        self.sync()
        self.view = Deferred()
        self.silence(15)
        self.assertEqual(self.facts(), (0, 15.0))

    def test_the_longest_time_between_contacts_follows_from_the_intervals(self) -> None:
        self.start(haHousekeepingInterval="45000", haSendHeartbeatInterval="7000")
        self.assertEqual(self.service.contact_limit, 45 + 2 * 7)
        self.stop()
        self.start(haHousekeepingInterval="1000", haSendHeartbeatInterval="300")
        self.assertEqual(self.service.contact_limit, 1 + 10)

    def test_what_an_earlier_process_knew_is_taken_up(self) -> None:
        self.start(PREFIX)
        store = self.store.root
        self.stop()
        NodeState("id", lag_bytes=0, last_contact="2026-11-22T10:00:00.000Z").write(store)
        with patch("time.time", lambda: seconds_of("2026-11-22T10:00:30Z")):
            self.start(store=store)
        self.assertEqual(self.service.last_contact, "2026-11-22T10:00:00.000Z")
        self.assertEqual(self.facts(), (None, 30.0))

    def test_a_log_that_does_not_fit_has_no_lag(self) -> None:
        self.view = MasterView(0, 100)
        self.start(PREFIX)
        self.accept()
        self.assertEqual(self.service.replica.state, ReplicaState.AHEAD)
        self.assertIsNone(self.service.lag_bytes)
        self.assertIn("the master's log ends at 100", self.service.reason)


class RetryTests(SlaveNodeTestCase):
    """A day without a master is a few lines an hour."""

    @pytest.mark.long
    def test_each_retry_has_its_reason_and_its_time_and_later_ones_are_summed_up(self) -> None:
        self.start()
        with log_lines() as lines:
            self.next_attempt().refuse()
        self.assertIn("warn: no connection to the master: Connection was refused by other side; again in ", lines())
        with log_lines() as lines:
            while self.clock.seconds() < 24 * 3600:
                self.next_attempt().refuse()
        told = lines().splitlines()
        self.assertLess(len(told), 24 * 6 + 20)
        self.assertGreater(len(told), 24 * 5)
        self.assertNotIn(" object at 0x", lines())
        self.assertNotIn("Deferred", lines())

    def test_a_master_that_is_back_ends_the_silence(self) -> None:
        self.start()
        for _ in range(40):
            self.next_attempt().refuse()
        self.view = VIEW
        line, request = self.connect()
        with log_lines() as lines:
            line.deliver(wire(IMAGE.transfers(request)))
            self.lose(line)
            self.next_attempt().refuse()
        for text in ("slave is IN_SYNC", "the connection to the master is gone", "connecting to the master again in"):
            self.assertIn(text, lines())
        self.assertIn("no connection to the master: Connection was refused", lines())


class QueueTests(SlaveNodeTestCase):
    """A ``--once`` run ends when its queues and index are done."""

    def copy(self) -> None:
        self.view = VIEW
        self.start(IMAGE, once=True)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))

    def test_it_waits_for_its_queues_and_says_so(self) -> None:
        self.behind = IMAGE.end
        with log_lines() as lines:
            self.copy()
            for self.behind in range(IMAGE.end, 0, -1000):
                self.silence(1)
                self.assertEqual(self.ends, [])
        self.behind = 0
        self.silence(1)
        self.assertEqual(self.ends, [(ExitCode.FINE, f"holds all up to {IMAGE.end}")])
        self.assertGreater(lines().count("bytes are still missing from queues and index"), 2)

    def test_queues_that_do_not_grow_any_more_are_an_error(self) -> None:
        self.behind = 700
        self.copy()
        self.silence(59)
        self.assertEqual(self.ends, [])
        self.silence(2)
        self.assertEqual(self.ends[0][0], ExitCode.IO_ERROR)
        self.assertIn("700 bytes are missing from the queues", self.ends[0][1])

    def test_it_can_be_stopped_meanwhile(self) -> None:
        self.behind = 700
        self.copy()
        self.stop()
        self.assertEqual(self.ends, [])


class MisfitTests(SlaveNodeTestCase):
    """A master that cannot be copied so is named, once, with what to do."""

    DLEDGER = UnsupportedMaster("the master is in DLedger mode")

    def test_a_dledger_master_whose_ha_port_is_closed_is_named(self) -> None:
        self.view = self.DLEDGER
        self.start()
        with log_lines() as lines:
            for _ in range(10):
                self.next_attempt().refuse()
                self.silence(30)
        self.assertEqual(lines().count("error: the master is in DLedger mode"), 1)
        self.assertEqual(self.service.reason, "the master is in DLedger mode")
        self.assertGreater(self.clock.seconds(), 8 * 60, "it comes again seldom")

    def test_a_run_ends_with_wrong_usage(self) -> None:
        self.view = self.DLEDGER
        self.start(once=True)
        self.next_attempt().refuse()
        self.clock.advance(0)
        self.assertEqual(self.ends, [(ExitCode.USAGE, "the master is in DLedger mode")])

    def test_also_one_whose_ha_port_is_open(self) -> None:
        self.view = self.DLEDGER
        self.start(once=True)
        self.assertTrue(self.accept().aborted)
        self.assertEqual(self.ends[0][0], ExitCode.USAGE)

    def test_one_that_is_configured_anew_is_copied(self) -> None:
        self.view = self.DLEDGER
        self.start()
        self.next_attempt().refuse()
        self.clock.advance(0)
        self.view = VIEW
        self.silence(30)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.service.replica.state, ReplicaState.IN_SYNC)
        self.assertNotIn("DLedger", self.service.reason)

    def test_a_warning_about_the_master_is_told_once_and_kept(self) -> None:
        self.view = replace(VIEW, warning="it waits for nobody")
        with log_lines() as lines:
            self.start(PREFIX)
            line = self.accept()
            line.deliver(wire(IMAGE.transfers(PREFIX.last_message)))
            line.lose()
            self.clock.advance(30)
            self.connect()
            self.silence(10)
        self.assertEqual(lines().count("it waits for nobody"), 1)
        self.assertEqual(self.service.warnings, ["it waits for nobody"])

    def test_an_acl_is_named_with_what_to_do(self) -> None:
        self.view = RemotingError("code 1: org.apache.rocketmq.acl.common.AclException: No accessKey is configured")
        with log_lines() as lines:
            self.start(PREFIX)
            line = self.accept()
            self.accept().deliver(heartbeat(0))
            line.deliver(wire(IMAGE.transfers(PREFIX.last_message)))
        for text in ("ACL refuses this slave", "globalWhiteRemoteAddresses"):
            self.assertIn(text, lines())
            self.assertIn(text, self.service.warnings[0])
        self.view = VIEW
        self.silence(10)
        self.assertEqual(self.service.warnings, [])

    def test_an_unknown_segment_size_is_no_divergence(self) -> None:
        """With an ACL it cannot be asked for: the first blank shows that ours is another."""
        self.view = RemotingError("code 1: AclException: No accessKey is configured")
        for once in (False, True):
            self.start(once=once, mappedFileSizeCommitLog="")
            with log_lines() as lines:
                for _ in range(5):
                    if self.ends:
                        break
                    self.silence(30)
                    line = self.accept()
                    self.accept().deliver(heartbeat(3 * SEGMENT_SIZE))
                    (request,) = reports_in(line.take())
                    line.deliver(wire(IMAGE.transfers(request)))
            self.assertNotIn("DIVERGED", lines())
            self.assertIn("set mappedFileSizeCommitLog=N, where N is the master's value, probably 4096", lines())
            self.assertIn("the master's segment size is not known", self.service.reason)
            self.assertEqual(lines().count("error: "), 1)
            self.stop()
        self.assertEqual(self.ends[0][0], ExitCode.USAGE)


class ReseedTests(SlaveNodeTestCase):
    """``--on-gap=reseed`` sets the old files aside and starts the copy again."""

    def reseed(self, once: bool = False) -> None:
        """A slave that holds a prefix meets a gap."""
        self.view = LATE_VIEW
        self.start(make_image([300] * 3), once=once, on_gap=OnGap.RESEED)
        self.accept()
        self.clock.advance(0)

    def test_the_old_files_are_set_aside_and_the_masters_min_is_asked_for(self) -> None:
        with log_lines() as lines:
            self.reseed()
        self.assertIn(f"warn: reseeding: the log up to {len(self.held)} is set aside in", lines())
        (aside,) = (self.store.root / "rmqha").glob("aside-*")
        (segment,) = aside.iterdir()
        self.assertEqual(segment.read_bytes(), self.held.ljust(SEGMENT_SIZE, b"\0"))
        line, request = self.connect()
        self.assertEqual(request, LATE_VIEW.min_offset)
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.content(), IMAGE.bytes_at(request, IMAGE.end))
        self.assertEqual(self.service.replica.state, ReplicaState.IN_SYNC)

    def test_on_a_full_disk_nothing_is_set_aside_until_there_is_room(self) -> None:
        """A process that cannot set its log aside ends, and nobody starts it again."""
        free = self.patch(DISK, "free_bytes", lambda _: 1000)
        self.reseed()
        self.assertEqual(list((self.store.root / "rmqha").glob("aside-*")), [])
        self.assertEqual((self.ends, self.disk_failures), ([], []))
        free.restore()
        self.accept()
        self.clock.advance(0)
        self.assertEqual(len(list((self.store.root / "rmqha").glob("aside-*"))), 1)

    def test_it_waits_for_the_thread_that_writes_the_state(self) -> None:
        """Else the thread's older state could replace the new epoch, or their temporary files meet."""
        written: Deferred[None] = Deferred()
        self.state_written = written
        self.reseed()
        before = self.store.node_state.epoch
        self.clock.advance(1)
        self.assertEqual(self.service.replica.state, ReplicaState.GAP)
        self.assertEqual(list((self.store.root / "rmqha").glob("aside-*")), [])
        written.callback(None)
        self.assertEqual(len(list((self.store.root / "rmqha").glob("aside-*"))), 1)
        state = NodeState.read(self.store.root)
        assert state is not None
        self.assertEqual(state.epoch, before + 1)
        self.accept()

    def test_it_does_not_end_a_run_that_then_ends_as_any_other(self) -> None:
        self.reseed(once=True)
        self.assertEqual(self.ends, [])
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.ends[0][0], ExitCode.FINE)

    def test_a_master_that_dies_meanwhile_ends_the_run(self) -> None:
        self.reseed(once=True)
        for _ in range(5):
            self.assertEqual(self.ends, [])
            self.next_attempt().refuse()
        self.assertEqual(self.ends[0][0], ExitCode.CANNOT_CONNECT)

    def test_it_waits_for_a_flush_that_is_under_way(self) -> None:
        threads: list[Deferred[None]] = []

        def hold(function: Callable[[], None]) -> Deferred[None]:
            threads.append(Deferred())
            return threads[-1]

        self.view = LATE_VIEW
        self.start(make_image([300] * 3), once=True, on_gap=OnGap.RESEED, run_in_thread=hold)
        self.flusher.flush()
        self.accept()
        self.silence(0.25)
        self.assertEqual(list((self.store.root / "rmqha").glob("aside-*")), [])
        threads.pop().callback(None)
        self.assertEqual(len(list((self.store.root / "rmqha").glob("aside-*"))), 1)
        threads.pop().callback(None)  # it has removed the old queues
        for _ in range(5):
            self.assertEqual(self.ends, [])
            self.next_attempt().refuse()
        self.assertEqual(self.ends[0][0], ExitCode.CANNOT_CONNECT)

    def test_other_verdicts_reseed_nothing(self) -> None:
        self.view = MasterView(0, 100)
        self.start(PREFIX, on_gap=OnGap.RESEED)
        self.accept()
        self.clock.advance(0)
        self.assertEqual(self.service.replica.state, ReplicaState.AHEAD)
        self.assertEqual(self.content(), PREFIX.content)

    def test_an_empty_log_is_not_set_aside_again_and_again(self) -> None:
        """The master has deleted the offset of --from, so a reseed would lead to the same gap."""
        self.view = LATE_VIEW
        self.start(start_from=str(SEGMENT_SIZE), on_gap=OnGap.RESEED, once=True)
        self.accept()
        self.clock.advance(0)
        self.assertEqual(self.ends[0][0], ExitCode.GAP)
        self.assertEqual(self.disk_failures, [])
        self.assertEqual(list((self.store.root / "rmqha").glob("aside-*")), [])

    def test_a_disk_that_refuses_to_set_aside_ends_the_node(self) -> None:
        self.view = LATE_VIEW
        self.start(make_image([300] * 3), on_gap=OnGap.RESEED)

        def refuse(now_ms: int) -> None:
            raise OSError(30, "Read-only file system")

        self.patch(self.store, "set_aside", refuse)
        self.accept()
        self.clock.advance(0)
        (failure,) = self.disk_failures
        failure.trap(OSError)


class ProbeTests(SlaveNodeTestCase):
    """What is done when the master's remoting port says nothing: a connection more asks where its last segment is."""

    def test_a_probe_asks_for_0_and_hangs_up_at_the_first_frame(self) -> None:
        self.start()
        main, probe = self.accept(), self.accept()
        self.assertEqual((main.take(), reports_in(probe.take())), (b"", [0]))
        probe.deliver(wire(IMAGE.transfers(3 * SEGMENT_SIZE))[:100])
        self.assertFalse(probe.disconnecting, "the frame is not whole")
        probe.deliver(wire(IMAGE.transfers(3 * SEGMENT_SIZE))[100:])
        self.assertTrue(probe.aborted)
        self.clock.advance(0)
        self.assertEqual(reports_in(main.take()), [1])
        self.assertEqual(self.service.replica.master, MasterView(last_segment_offset=3 * SEGMENT_SIZE))
        self.assertEqual(self.log.max_offset, 1, "what the probe got is not ours")

    def test_a_master_with_one_segment_is_asked_for_0(self) -> None:
        self.start()
        main = self.accept()
        self.accept().deliver(heartbeat(0))
        self.assertEqual(reports_in(main.take()), [0])

    def test_no_probe_is_made_when_remoting_answers(self) -> None:
        self.view = VIEW
        self.start()
        self.connect()
        self.assertEqual(self.endpoint.attempts, [])
        self.assertEqual(self.questions, [True])

    def test_the_first_report_is_sent_though_the_probe_fails(self) -> None:
        def refuse() -> None:
            self.endpoint.next().refuse()

        def hang_up() -> None:
            self.endpoint.next().accept().lose()

        def say_nonsense() -> None:
            self.endpoint.next().accept().deliver(b"SSH-2.0-OpenSSH_9.6\r\n")

        def say_nothing() -> None:
            probe = self.endpoint.next().accept()
            self.silence(8)
            self.assertTrue(probe.aborted)

        def never_connect() -> None:
            self.silence(8)

        for fail in (refuse, hang_up, say_nonsense, say_nothing, never_connect):
            self.start()
            main = self.accept()
            with log_lines() as lines:
                fail()
            self.clock.advance(0)
            self.assertEqual(reports_in(main.take()), [1], fail.__name__)
            self.assertIn("info: the master did not answer a probe of its HA port", lines(), fail.__name__)
            self.stop()

    def test_remoting_that_does_not_answer_is_complained_of_once(self) -> None:
        with log_lines() as lines:
            self.start(PREFIX)
            line = self.accept()
            self.accept().deliver(heartbeat(0))
            for _ in range(4):
                self.silence(5)
                line.deliver(heartbeat(PREFIX.end)[:1])
        complaint = "warn: the master's remoting port does not answer (Connection was refused by other side)"
        self.assertEqual(lines().count(complaint), 1)
        self.assertGreater(len(self.questions), 3)

    def test_a_gap_found_without_remoting_when_the_probe_says_there_is_more(self) -> None:
        self.start(once=True)
        main = self.accept()
        self.accept().deliver(heartbeat(3 * SEGMENT_SIZE))
        main.deliver(heartbeat(1) * 2)
        self.assertEqual(self.ends[0][0], ExitCode.GAP)


class QuestionTests(SlaveNodeTestCase):
    """Questions on the remoting port never outlive what they are asked for."""

    def test_stopping_while_the_master_is_asked_asks_no_more(self) -> None:
        cancelled: list[object] = []
        self.view = Deferred(cancelled.append)
        self.start()
        line = self.accept()
        self.stop()
        self.assertEqual(len(cancelled), 1)
        self.assertEqual((line.take(), self.flushLoggedErrors()), (b"", []))

    def test_stopping_while_the_master_is_probed_hangs_up(self) -> None:
        self.start()
        self.accept()
        probe = self.accept()
        with log_lines() as lines:
            self.stop()
        self.assertTrue(probe.aborted)
        self.assertNotIn("gave no answer", lines(), "that is no news of the master")

    def test_stopping_while_the_probe_connects_gives_it_up(self) -> None:
        self.start()
        self.accept()
        self.assertEqual(len(self.endpoint.attempts), 1)
        self.stop()

    def test_a_slow_answer_to_a_look_keeps_further_looks_waiting(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        cancelled: list[object] = []
        answer: Deferred[MasterView] = Deferred(cancelled.append)
        self.view = answer
        for _ in range(4):
            self.silence(5)
            line.deliver(heartbeat(PREFIX.end))
        self.assertEqual(self.questions, [True, False])
        answer.callback(VIEW)
        self.view = Deferred(cancelled.append)
        self.silence(5)
        self.assertEqual(self.questions, [True, False, False])
        self.stop()
        self.assertEqual((len(cancelled), self.flushLoggedErrors()), (1, []))

    def test_an_answer_for_an_earlier_connection_judges_no_later_one(self) -> None:
        self.view = VIEW
        self.start(PREFIX)
        line, _ = self.connect()
        answer: Deferred[MasterView] = Deferred()
        self.view = answer
        self.silence(5)
        self.view = VIEW
        self.lose(line)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        answer.callback(MasterView(0, 100))
        self.assertFalse(line.disconnecting)


class SegmentSizeTests(SlaveNodeTestCase):
    """A slave without a configured segment size uses the master's."""

    def test_the_masters_size_is_taken_for_an_empty_store(self) -> None:
        self.view = MasterView(0, IMAGE.end, segment_size=SEGMENT_SIZE)
        self.start(mappedFileSizeCommitLog="")
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.content(), IMAGE.content)
        self.assertEqual(self.log.segment_bases, [0, 4096, 8192, 12288])

    def test_a_store_with_segments_keeps_its_size_and_says_so(self) -> None:
        self.view = MasterView(0, 9 * SEGMENT_SIZE, segment_size=2 * SEGMENT_SIZE)
        self.start(IMAGE)
        self.stop()
        self.start(store=self.store.root, mappedFileSizeCommitLog="")
        self.assertEqual(self.log.segment_size, SEGMENT_SIZE)
        self.accept()
        self.assertEqual(self.service.replica.state, ReplicaState.DIVERGED)


class FlushTests(SlaveNodeTestCase):
    """Durable, then acknowledged: what flushDiskType makes of it."""

    def hold(self, function: Callable[[], None]) -> Deferred[None]:
        """The flush thread, which the test lets run."""
        done: Deferred[None] = Deferred()
        self.threads.append(lambda: execute(function).chainDeferred(done))
        return done

    def copy(self, flush_disk_type: str) -> LineTransport:
        self.threads: list[Callable[[], object]] = []
        self.view = VIEW
        self.start(run_in_thread=self.hold, flushDiskType=flush_disk_type)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        return line

    def test_async_flush_reports_what_is_proved(self) -> None:
        self.assertEqual(reports_in(self.copy("ASYNC_FLUSH").take()), [IMAGE.end])
        self.assertEqual(self.threads, [])

    def test_sync_flush_reports_what_is_on_the_disk(self) -> None:
        line = self.copy("SYNC_FLUSH")
        self.assertEqual(line.take(), b"")
        self.threads.pop()()
        self.assertEqual(reports_in(line.take()), [IMAGE.end])

    def test_a_disk_that_refuses_a_flush_is_told_of_and_nothing_reported(self) -> None:
        line = self.copy("SYNC_FLUSH")

        def refuse(*_: object) -> None:
            raise OSError(5, "Input/output error")

        self.patch(self.log.unflushed_files()[0].__class__, "sync", refuse)
        self.threads.pop()()
        self.assertEqual(line.take(), b"")
        (failure,) = self.disk_failures
        failure.trap(OSError)

    def test_a_disk_that_refuses_bytes_is_told_of(self) -> None:
        self.view = VIEW
        self.start()
        line, request = self.connect()

        def refuse(offset: int, *data: bytes) -> None:
            raise OSError(errno.EIO, "Input/output error")

        self.patch(self.log, "append_data", refuse)
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertTrue(line.aborted)
        (failure,) = self.disk_failures
        failure.trap(OSError)
        self.assertEqual(line.take(), b"")

    def test_a_full_disk_is_waited_for_and_told_once(self) -> None:
        """No connection counts as one that brought nothing: the master is not to blame."""
        self.view = VIEW
        self.start()
        append, is_full = self.log.append_data, True

        def refuse(offset: int, *data: bytes) -> None:
            if is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            append(offset, *data)

        self.patch(self.log, "append_data", refuse)
        with capturedLogs() as events:
            for _ in range(12):
                line, request = self.connect()
                line.deliver(wire(IMAGE.transfers(request)))
                self.assertTrue(line.aborted)
        self.assertEqual(self.disk_failures, [])
        self.assertEqual(
            [event["what"] for event in events if event.get("event") is Event.WAITS_FOR_ROOM], ["copied bytes"]
        )
        states = [str(event["state"]) for event in events if event.get("event") is Event.SLAVE_STATE]
        self.assertEqual(len(states), 1, "the log may be on the same disk")
        is_full = False
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.log.verified_offset, IMAGE.end)

    def test_a_disk_that_refuses_to_cut_half_a_record_is_told_of(self) -> None:
        self.view = VIEW
        self.start()
        line, request = self.connect()
        line.deliver(wire([Transfer(request, IMAGE.bytes_at(request, request + 50))]))

        def refuse(offset: int) -> None:
            raise OSError(5, "Input/output error")

        patch = self.patch(self.log, "truncate", refuse)
        self.lose(line)
        (failure,) = self.disk_failures
        failure.trap(OSError)
        patch.restore()


class StopTests(SlaveNodeTestCase):
    """A slave can be stopped in every state; ``stop`` looks that nothing is left."""

    def test_it_stops_while_connecting_waiting_connected_and_after_a_verdict(self) -> None:
        def connecting() -> None:
            self.assertEqual(len(self.endpoint.attempts), 1)

        def waiting() -> None:
            self.next_attempt().refuse()

        def connected() -> None:
            self.connect()[0].deliver(wire(IMAGE.transfers(PREFIX.last_message, PREFIX.end + 10)))

        def after_a_verdict() -> None:
            self.view = MasterView(0, 1)
            self.accept()

        for situation in (connecting, waiting, connected, after_a_verdict):
            self.view = VIEW
            self.start(PREFIX)
            situation()
            self.stop()
            self.assertEqual(self.service.replica.state, ReplicaState.STOPPED, situation.__name__)


class UncleanStopTests(SlaveNodeTestCase):
    """What was not flushed at an unclean stop is compared with the master: a CRC covers only a record's body."""

    FLUSHED = IMAGE.messages[5]
    LOST = IMAGE.messages[8] + 40
    """A byte of a time, which no CRC covers."""

    def setUp(self) -> None:
        super().setUp()
        self.view = VIEW
        self.folder = new_folder(self)

    def open_store(self, role: str = "SLAVE") -> MessageStore:
        settings = {"brokerRole": role, "mappedFileSizeCommitLog": str(SEGMENT_SIZE)}
        return MessageStore(make_settings({"storePathRootDir": str(self.folder), **settings}))

    def lose_power(self, lost: int | None = None, flushed: int = FLUSHED) -> None:
        """A slave with the whole log has an unclean stop, and its disk loses a byte that was not flushed."""
        store = self.open_store()
        append(store.commit_log, IMAGE)
        end = IMAGE.end
        replace(store.node_state, offsets=Offsets(0, end, end, flushed, flushed)).write(self.folder)
        store.abandon()
        if lost is not None:
            write_at(self.folder / "commitlog", lost, bytes([IMAGE.content[lost] ^ 1]), SEGMENT_SIZE)

    def restart(self) -> tuple[LineTransport, int]:
        """The slave starts again, and connects."""
        self.start(store=self.folder)
        return self.connect()

    def test_a_byte_that_was_lost_is_divergence(self) -> None:
        """The last record is equal, and no more than that was compared."""
        self.lose_power(self.LOST)
        line, request = self.restart()
        self.assertEqual(request, self.FLUSHED)
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertIs(self.service.replica.state, ReplicaState.DIVERGED)
        self.assertFalse(self.store.has_masters_log)
        self.assertIn(f"byte at {self.LOST} ", self.service.reason)
        self.assertIn("when this node stopped uncleanly", self.service.reason)

    def test_what_is_equal_is_compared_once(self) -> None:
        self.lose_power()
        line, request = self.restart()
        line.deliver(wire(IMAGE.transfers(request, IMAGE.messages[20])))
        self.assertEqual(self.store.node_state.unproved_from, self.FLUSHED, "it is not all compared")
        self.assertFalse(self.store.has_masters_log)
        self.lose(line)
        line, request = self.connect()
        self.assertEqual(request, self.FLUSHED)
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertIsNone(self.store.node_state.unproved_from)
        self.assertTrue(self.store.has_masters_log)
        self.lose(line)
        self.assertFalse(self.store.has_masters_log, "another master may come")
        self.assertEqual(self.connect()[1], IMAGE.last_message)

    def test_starts_without_the_master_forget_nothing(self) -> None:
        """All is flushed by then. A clean stop follows, and another unclean one."""
        self.lose_power(self.LOST)
        for is_clean in (True, False):
            store = self.open_store()
            state = replace(store.node_state, offsets=store.offsets(IMAGE.end))
            self.assertEqual(state.flushed_offset, IMAGE.end)
            if is_clean:
                store.close_now(partial(replace, state))
            else:
                state.write(self.folder)
                store.abandon()
        self.assertEqual(self.restart()[1], self.FLUSHED)

    def test_what_the_master_has_deleted_cannot_be_compared(self) -> None:
        self.lose_power(flushed=IMAGE.messages[1])
        self.view = MasterView(SEGMENT_SIZE, IMAGE.end, segment_size=SEGMENT_SIZE)
        line, request = self.restart()
        self.assertEqual(request, SEGMENT_SIZE)
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertIsNone(self.store.node_state.unproved_from)

    def test_a_state_that_knows_no_flush_doubts_all_that_was_checked(self) -> None:
        self.lose_power(flushed=0)
        self.assertEqual(self.restart()[1], 1, "a request for 0 means the last segment")
        self.assertEqual(self.store.node_state.unproved_from, 0)

    def test_a_cut_forgets_what_was_after_it(self) -> None:
        self.lose_power()
        self.restart()
        self.store.cut_back(IMAGE.messages[7])
        self.assertEqual(self.store.node_state.unproved_from, self.FLUSHED)
        self.store.cut_back(self.FLUSHED)
        self.assertIsNone(self.store.node_state.unproved_from)

    def test_a_promoted_slave_is_the_one_that_others_are_compared_with(self) -> None:
        self.lose_power()
        store = self.open_store("ASYNC_MASTER")
        self.assertIsNone(store.node_state.unproved_from)
        store.close_now()


class OwnerTests(SlaveNodeTestCase):
    """Who owns a slave provides all that it asks."""

    def test_owners_provide_their_interface(self) -> None:
        settings = make_settings({"storePathRootDir": self.mktemp(), "brokerRole": "SLAVE"})
        store = MessageStore(settings)
        replicating = Replicating(store, settings, MachineDouble(self.clock), OpenNodeDouble(store))
        verifyObject(ISlaveOwner, replicating)
        verifyObject(ISlaveOwner, SlaveOwner(self))
        self.start()
        verifyObject(IConnectionOwner, self.service)
        closed = store.close(replicating.flusher)
        self.clock.advance(0)
        self.successResultOf(closed)


class NextStepTests(SynchronousTestCase):
    """What follows from a verdict, by the options."""

    def test_each_verdict_has_its_own_option(self) -> None:
        gap, ahead, diverged = Gap("", None), Ahead(""), Diverged("")
        for options, steps in (
            (SlaveOptions(), [NextStep.REPORT] * 3),
            (SlaveOptions(on_gap=OnGap.RESEED), [NextStep.RESEED, NextStep.REPORT, NextStep.REPORT]),
            (SlaveOptions(on_ahead=OnFork.REWIND), [NextStep.REPORT, NextStep.REWIND, NextStep.REPORT]),
            (SlaveOptions(on_diverged=OnFork.REWIND), [NextStep.REPORT, NextStep.REPORT, NextStep.REWIND]),
        ):
            self.assertEqual([options.step_after(verdict, True) for verdict in (gap, ahead, diverged)], steps)

    def test_a_log_without_records_is_not_reseeded_for_it_would_meet_the_same_gap(self) -> None:
        options = SlaveOptions(on_gap=OnGap.RESEED)
        self.assertIs(options.step_after(Gap("", None), holds_records=False), NextStep.REPORT)
