"""``messageDelayLevel``, and the tagsCode of delayed messages (spec/store.md 3.11, 12.1)."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.delay import DelayLevels

S, M, H = 1000, 60_000, 3_600_000
STORED = 1_795_000_000_000


class DelayLevelsTests(SynchronousTestCase):
    def test_the_eighteen_levels_of_a_broker(self) -> None:
        levels = DelayLevels()
        delays = [levels.delivery_time(level, STORED) - STORED for level in range(1, 19)]
        minutes = [m * M for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
        self.assertEqual(delays, [1 * S, 5 * S, 10 * S, 30 * S, *minutes, 1 * H, 2 * H])
        self.assertEqual(levels.max_level, 18)

    def test_levels_of_ones_own(self) -> None:
        levels = DelayLevels("  7s 1d ")
        self.assertEqual((levels.max_level, levels.delivery_time(2, 0)), (2, 86_400_000))

    def test_their_text_is_what_was_configured(self) -> None:
        self.assertEqual(str(DelayLevels("1s 2h")), "1s 2h")
        self.assertEqual(str(DelayLevels()), "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")

    def test_an_unknown_level_waits_a_second(self) -> None:
        levels = DelayLevels("7s")
        self.assertEqual([levels.delivery_time(level, STORED) for level in (0, 2, -1)], [STORED + 1000] * 3)

    def test_what_is_no_time_is_refused(self) -> None:
        for text in ("7", "s", "7x", "-7s", "1.5s", "7 s", "7S"):
            with self.assertRaises(ValueError):
                DelayLevels(text)

    def test_the_tags_code_is_the_time_of_delivery(self) -> None:
        levels = DelayLevels()
        self.assertEqual(levels.tags_code("1", STORED), STORED + 1 * S)
        self.assertEqual(levels.tags_code("18", STORED), STORED + 2 * H)

    def test_a_level_beyond_the_last_counts_as_the_last(self) -> None:
        self.assertEqual(DelayLevels().tags_code("99", STORED), STORED + 2 * H)

    def test_what_is_no_level_gives_no_tags_code(self) -> None:
        self.assertEqual([DelayLevels().tags_code(delay, STORED) for delay in ("0", "-1", "x", "")], [None] * 4)
        self.assertIsNone(DelayLevels("").tags_code("1", STORED))

    def test_a_made_up_time_stays_a_javas_long(self) -> None:
        self.assertEqual(DelayLevels().tags_code("1", (1 << 63) - 1000), -(1 << 63))
        self.assertEqual(DelayLevels().tags_code("1", -(1 << 63)), -(1 << 63) + 1000)
