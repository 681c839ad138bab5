"""Services that stop in order, and periodic calls that survive errors."""

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.services import OrderedServices, PeriodicService


class Recorder(Service):
    """Writes down when it starts and stops. ``stopped`` is what its stop waits for."""

    def __init__(self, name: str, events: list[str], stopped: Deferred[None] | None = None) -> None:
        self._own_name = name
        self._events = events
        self._stopped = stopped

    def startService(self) -> None:
        Service.startService(self)
        self._events.append(f"start {self._own_name}")

    def stopService(self) -> Deferred[None] | None:
        Service.stopService(self)
        self._events.append(f"stop {self._own_name}")
        return self._stopped


class OrderedServicesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.events: list[str] = []
        self.services = OrderedServices()

    def add(self, name: str, stopped: Deferred[None] | None = None) -> None:
        self.services.add(name, Recorder(name, self.events, stopped))

    def test_services_stop_in_the_reverse_order_of_their_start(self) -> None:
        for name in ("a", "b", "c"):
            self.add(name)
        self.services.startService()
        self.successResultOf(self.services.stopService())
        self.assertEqual(self.events, ["start a", "start b", "start c", "stop c", "stop b", "stop a"])
        self.assertEqual(self.services.problems, [])

    def test_a_service_stops_only_after_the_one_before_it_has_stopped(self) -> None:
        slow: Deferred[None] = Deferred()
        self.add("a")
        self.add("b", slow)
        self.services.startService()
        stopped = self.services.stopService()
        self.assertEqual(self.events[2:], ["stop b"])
        slow.callback(None)
        self.successResultOf(stopped)
        self.assertEqual(self.events[2:], ["stop b", "stop a"])

    def test_a_service_that_fails_to_stop_is_logged_and_named_and_the_others_stop(self) -> None:
        self.add("a")
        self.add("b", fail(OSError(28, "No space left on device")))
        self.add("c")
        self.services.startService()
        self.successResultOf(self.services.stopService())
        self.assertEqual(self.events[3:], ["stop c", "stop b", "stop a"])
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(
            self.services.problems, ["the service 'b' did not stop cleanly: [Errno 28] No space left on device"]
        )

    def test_a_service_that_did_not_start_is_not_stopped(self) -> None:
        class Broken(Service):
            def startService(self) -> None:
                raise OSError("no")

        self.add("a")
        self.services.add("b", Broken())
        self.add("c")
        self.assertRaises(OSError, self.services.startService)
        self.successResultOf(self.services.stopService())
        self.assertEqual(self.events, ["start a", "stop a"])

    def test_a_name_is_given_once(self) -> None:
        self.add("a")
        self.assertRaises(RuntimeError, self.add, "a")


class PeriodicServiceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.calls: list[float] = []
        self.result: object = None

    def call(self) -> object:
        self.calls.append(self.clock.seconds())
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def start(self, first_after: float = 0.0) -> PeriodicService:
        service = PeriodicService("counting sheep", 5, self.call, self.clock, first_after)
        service.startService()
        return service

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_it_calls_at_once_and_then_periodically(self) -> None:
        service = self.start()
        self.clock.pump([1] * 11)
        self.successResultOf(service.stopService())
        self.clock.advance(10)
        self.assertEqual(self.calls, [0, 5, 10])

    def test_the_first_call_may_come_later(self) -> None:
        service = self.start(first_after=3)
        self.clock.pump([1] * 9)
        self.successResultOf(service.stopService())
        self.assertEqual(self.calls, [3, 8])

    def test_it_may_stop_before_the_first_call_and_start_again(self) -> None:
        service = self.start(first_after=3)
        self.assertTrue(service.running)
        self.successResultOf(service.stopService())
        self.assertFalse(service.running)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        service.startService()
        self.clock.advance(3)
        self.successResultOf(service.stopService())
        self.successResultOf(service.stopService())
        self.assertEqual(self.calls, [3])

    def test_it_goes_on_after_a_call_that_failed(self) -> None:
        service = self.start()
        for result in (ValueError("black sheep"), fail(OSError("wolf")), None):
            self.result = result
            self.clock.advance(5)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.successResultOf(service.stopService())
        self.assertEqual(self.calls, [0, 5, 10, 15])

    def test_a_failure_that_repeats_is_logged_once_until_it_is_over(self) -> None:
        with capturedLogs() as events:
            service = self.start()
            for result in (ValueError("x"), ValueError("x"), ValueError("y"), None, None, ValueError("y")):
                self.result = result
                self.clock.advance(5)
            self.successResultOf(service.stopService())
        told = [
            (event["log_level"], event["log_failure"].getErrorMessage() if "log_failure" in event else "")
            for event in events
            if "purpose" in event
        ]
        critical, info = LogLevel.critical, LogLevel.info
        self.assertEqual(told, [(critical, "x"), (critical, "y"), (info, ""), (critical, "y")])
        self.flushLoggedErrors(ValueError)

    def test_a_call_may_stop_it_even_the_first_one(self) -> None:
        def call() -> None:
            self.call()
            if len(self.calls) == most:
                service.stopService()

        service = PeriodicService("counting sheep", 5, call, self.clock)
        for most in (1, 2):
            self.calls = []
            service.startService()
            self.clock.advance(20)
            self.clock.advance(20)
            self.assertEqual(len(self.calls), most)
            self.assertFalse(service.running)
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_calls_do_not_overlap_and_a_stop_waits_for_the_running_call(self) -> None:
        running: Deferred[None] = Deferred()
        self.result = running
        service = self.start()
        self.clock.pump([1] * 12)
        self.assertEqual(self.calls, [0])
        stopped = service.stopService()
        self.assertNoResult(stopped)
        running.callback(None)
        self.successResultOf(stopped)
        self.assertFalse(service.running)
