"""What a broker counts: sums, windows, rates and days (spec/remoting.md 2.14, 2.18)."""

from datetime import datetime
from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables.stats import BrokerStats, StatsData
from rmqha.kit.steps import at_once
from tests.broker.brokerstore import SetWallClock, WallClockOf

NOON_MS = int(datetime(2026, 11, 21, 12).timestamp() * 1000)
HOUR = 3600.0
NOTHING = StatsData(0, 0.0, 0.0)


class StatsTestCase(SynchronousTestCase):
    """Has statistics that run from noon on."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.stats = BrokerStats("C", self.clock, WallClockOf(self.clock, NOON_MS))
        self.stats.startService()
        self.addCleanup(self.stats.stopService)

    def minute(self, name: str, key: str) -> StatsData:
        """What the last minute brought."""
        return self.window("statsMinute", name, key)

    def window(self, window: str, name: str, key: str) -> StatsData:
        """What one window of a statistic brought."""
        windows = self.stats.view(name, key)
        assert windows is not None
        self.assertEqual(set(windows), {"statsMinute", "statsHour", "statsDay"})
        return windows[window]

    def pass_by(self, seconds: float) -> None:
        """Time passes, in steps of a sampling."""
        self.clock.pump([10.0] * int(seconds / 10))


class WindowTests(StatsTestCase):
    """``view``."""

    def test_messages_and_bytes_of_a_topic_are_counted(self) -> None:
        self.stats.messages_put("T", 1, 100)
        self.stats.messages_put("T", 5, 400)
        self.stats.messages_put("U", 1, 7)
        self.pass_by(10)
        self.assertEqual(self.minute("TOPIC_PUT_NUMS", "T"), StatsData(6, 0.6, 3.0))
        self.assertEqual(self.minute("TOPIC_PUT_SIZE", "T"), StatsData(500, 50.0, 250.0))
        self.assertEqual(self.minute("BROKER_PUT_NUMS", "C"), StatsData(7, 0.7, 7 / 3))

    def test_messages_and_bytes_that_a_group_got_are_counted(self) -> None:
        self.stats.messages_got("G", "T", 32, 3200)
        self.stats.messages_got("G", "U", 1, 1)
        self.stats.messages_got("H", "T", 2, 2)
        self.pass_by(10)
        self.assertEqual(self.minute("GROUP_GET_NUMS", "T@G"), StatsData(32, 3.2, 32.0))
        self.assertEqual(self.minute("GROUP_GET_SIZE", "T@G"), StatsData(3200, 320.0, 3200.0))
        self.assertEqual(self.minute("BROKER_GET_NUMS", "C").sum, 35)
        self.assertEqual(self.stats.group_get_tps("G", "T"), 3.2)
        self.assertEqual(self.stats.group_get_tps("G", "V"), 0.0)

    def test_a_read_that_found_nothing_is_no_message(self) -> None:
        self.stats.messages_got("G", "T", 0, 0)
        self.assertIsNone(self.stats.view("GROUP_GET_NUMS", "T@G"))
        self.assertEqual((self.stats.gets.calls, self.stats.missed), (0, 1))

    def test_what_was_never_counted_is_no_statistic(self) -> None:
        self.stats.messages_put("T", 1, 100)
        for name, key in (
            ("TOPIC_PUT_NUMS", "U"),
            ("TOPIC_PUT_NUMS", ""),
            ("GROUP_GET_NUMS", "T"),
            ("BROKER_PUT_NUMS", "another cluster"),
            ("QUEUE_PUT_NUMS", "T@0"),
            ("", ""),
        ):
            self.assertIsNone(self.stats.view(name, key), (name, key))

    def test_a_minute_forgets_what_came_before_it(self) -> None:
        for count in range(1, 13):
            self.stats.messages_put("T", count, count)
            self.pass_by(10)
        self.assertEqual(self.minute("TOPIC_PUT_NUMS", "T"), StatsData(57, 57 / 60, 57 / 6))
        self.pass_by(50)
        self.assertEqual(self.minute("TOPIC_PUT_NUMS", "T"), StatsData(12, 0.2, 12.0))
        self.pass_by(10)
        self.assertEqual(self.minute("TOPIC_PUT_NUMS", "T"), NOTHING)

    def test_after_a_pause_a_minute_is_a_minute_still(self) -> None:
        """A burst is not counted as if the topic had begun with it."""
        self.stats.messages_put("T", 1, 1)
        self.pass_by(300)
        self.stats.messages_put("T", 6, 6)
        self.pass_by(10)
        self.assertEqual(self.minute("TOPIC_PUT_NUMS", "T"), StatsData(6, 0.1, 6.0))

    def test_a_topic_that_comes_late_has_its_first_messages_counted(self) -> None:
        self.pass_by(2 * HOUR)
        self.stats.messages_put("T", 60, 60)
        self.pass_by(600)
        self.assertEqual(self.minute("TOPIC_PUT_NUMS", "T"), NOTHING)
        self.assertEqual(self.window("statsHour", "TOPIC_PUT_NUMS", "T"), StatsData(60, 60 / HOUR, 60.0))
        self.assertEqual(self.window("statsDay", "TOPIC_PUT_NUMS", "T"), NOTHING, "looked at once an hour")

    def test_an_hour_and_a_day_forget_what_came_before_them(self) -> None:
        self.stats.messages_put("T", 3600, 1)
        self.pass_by(HOUR)
        self.assertEqual(self.window("statsHour", "TOPIC_PUT_NUMS", "T"), StatsData(3600, 1.0, 3600.0))
        self.pass_by(600)
        self.assertEqual(self.window("statsHour", "TOPIC_PUT_NUMS", "T"), NOTHING)
        self.assertEqual(self.window("statsDay", "TOPIC_PUT_NUMS", "T").sum, 3600)
        self.pass_by(23 * HOUR - 600)
        self.assertEqual(self.window("statsDay", "TOPIC_PUT_NUMS", "T"), StatsData(3600, 3600 / 86400, 3600.0))
        self.pass_by(HOUR)
        self.assertEqual(self.window("statsDay", "TOPIC_PUT_NUMS", "T"), NOTHING)

    def test_what_is_idle_takes_no_room(self) -> None:
        self.stats.messages_put("T", 1, 1)
        self.pass_by(26 * HOUR)
        for samples in self.stats._topic_puts["T"].samples:
            self.assertEqual(len(samples), 1)

    def test_of_a_topic_or_group_that_is_deleted_nothing_is_kept(self) -> None:
        for topic in ("T", "U"):
            self.stats.messages_put(topic, 1, 1)
            for group in ("G", "H"):
                self.stats.messages_got(group, topic, 1, 1)
        at_once(self.stats.forgetting_topic("T"))
        at_once(self.stats.forgetting_group("G"))
        self.assertIsNone(self.stats.view("TOPIC_PUT_NUMS", "T"))
        kept = [key for key in ("T@G", "T@H", "U@G", "U@H") if self.stats.view("GROUP_GET_NUMS", key)]
        self.assertEqual(kept, ["U@H"])


class RateTests(StatsTestCase):
    """``recent``: over ten seconds, a minute and ten minutes."""

    def puts(self) -> list[float]:
        return [counted.per_second(counted.put) for counted in self.stats.recent()]

    def test_before_any_time_has_passed_there_is_no_rate(self) -> None:
        self.stats.messages_put("T", 1, 1)
        self.assertEqual(self.puts(), [0.0, 0.0, 0.0])

    def test_each_is_over_its_time(self) -> None:
        self.stats.messages_put("T", 600, 1)
        self.pass_by(600)
        self.assertEqual(self.puts(), [0.0, 0.0, 1.0])
        self.stats.messages_put("T", 60, 1)
        self.pass_by(10)
        self.assertEqual(self.puts(), [6.0, 1.0, 0.1])

    def test_what_came_since_the_last_sample_counts(self) -> None:
        self.pass_by(20)
        self.clock.advance(5)
        self.stats.messages_put("T", 15, 1)
        self.assertEqual(self.puts()[0], 1.0, "of the last 15 s: what is before the sample at 10 s is too old")

    def test_reads_count_by_what_they_found(self) -> None:
        self.stats.messages_got("G", "T", 32, 1)
        self.stats.messages_got("G", "T", 8, 1)
        self.stats.messages_got("G", "T", 0, 0)
        self.pass_by(10)
        counted = self.stats.recent()[0]
        rates = {name: counted.per_second(getattr(counted, name)) for name in ("found", "missed", "transferred")}
        self.assertEqual(rates, {"found": 0.2, "missed": 0.1, "transferred": 4.0})


class DayTests(StatsTestCase):
    """The sums at midnight."""

    def test_each_midnight_moves_todays_morning_to_yesterday(self) -> None:
        self.stats.messages_put("T", 1, 1)
        self.stats.messages_got("G", "T", 2, 1)
        self.pass_by(11 * HOUR)
        self.assertEqual((self.stats.put_days, self.stats.got_days), ((0, 0), (0, 0)))
        self.pass_by(2 * HOUR)
        self.assertEqual((self.stats.put_days, self.stats.got_days), ((0, 1), (0, 2)))
        self.stats.messages_put("T", 10, 1)
        self.pass_by(24 * HOUR)
        self.assertEqual((self.stats.put_days, self.stats.got_days), ((1, 11), (2, 2)))


class ManyPlacesTests(StatsTestCase):
    """100,000 topics took 0.75 s of one reactor turn."""

    def sums(self) -> int:
        """How many topics have been sampled."""
        return sum(self.minute("TOPIC_PUT_NUMS", f"T{number}").sum for number in range(3500))

    def sampled_before_each_turn(self) -> list[int]:
        """How many topics had been sampled when the next turn was asked for."""
        found: list[int] = []
        call_later = self.clock.callLater

        def watched(delay: float, *arguments: Any) -> IDelayedCall:
            if not delay:
                found.append(self.sums())
            return call_later(delay, *arguments)

        self.patch(self.clock, "callLater", watched)
        return found

    def test_many_topics_are_sampled_in_several_turns(self) -> None:
        turns = self.sampled_before_each_turn()
        for number in range(3500):
            self.stats.messages_put(f"T{number}", 1, 1)
        self.clock.advance(10)
        self.assertEqual((turns, self.sums()), ([998, 1998, 2998], 3500))
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)

    def test_sampling_ends_when_it_is_stopped(self) -> None:
        for number in range(3500):
            self.stats.messages_put(f"T{number}", 1, 1)
        self.clock.callLater(10, self.stats.stopService)  # after the first turn, before the second
        self.clock.advance(10)
        self.assertEqual((self.clock.getDelayedCalls(), self.sums()), ([], 998))


class EndTests(SynchronousTestCase):
    def test_once_stopped_nothing_is_scheduled(self) -> None:
        clock = Clock()
        stats = BrokerStats("C", clock, SetWallClock(0))
        stats.startService()
        stats.stopService()
        stats.stopService()
        self.assertEqual(clock.getDelayedCalls(), [])
