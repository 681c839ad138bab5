"""Token buckets, of one rate and of each address."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit import rates
from rmqha.kit.rates import AddressBuckets, Rate, TokenBucket

NOW = 1000.0


class TokenBucketTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.bucket = TokenBucket(Rate(at_once=5, per_second=10), NOW)

    def test_it_is_full_to_begin_with_and_never_holds_more(self) -> None:
        self.assertEqual(self.bucket.tokens(NOW), 5)
        self.assertEqual(self.bucket.tokens(NOW + 100), 5)

    def test_it_fills_at_its_rate(self) -> None:
        self.bucket.take(5, NOW)
        self.assertEqual(self.bucket.tokens(NOW + 0.25), 2.5)

    def test_a_debt_is_paid_first(self) -> None:
        self.bucket.take(25, NOW)
        self.assertEqual((self.bucket.tokens(NOW), self.bucket.seconds_until(1, NOW)), (-20, 2.1))
        self.assertEqual((self.bucket.tokens(NOW + 2), self.bucket.seconds_until(0, NOW + 2)), (0, 0))

    def test_what_is_taken_after_a_quiet_time_comes_from_a_full_bucket(self) -> None:
        self.bucket.take(5, NOW + 100)
        self.assertEqual(self.bucket.tokens(NOW + 100), 0)

    def test_one_is_taken_only_if_it_is_there(self) -> None:
        self.assertEqual([self.bucket.take_one(NOW) for _ in range(7)], [True] * 5 + [False] * 2)
        self.assertEqual([self.bucket.take_one(NOW + 0.125) for _ in range(2)], [True, False])
        self.assertEqual(self.bucket.tokens(NOW + 0.125), 0.25)

    def test_a_clock_that_goes_back_neither_gives_nor_takes(self) -> None:
        self.bucket.take(3, NOW)
        self.assertEqual(self.bucket.tokens(NOW - 50), 2)
        self.assertEqual(self.bucket.tokens(NOW - 50 + 0.125), 3.25)

    def test_half_a_rate_is_not_zero(self) -> None:
        self.assertEqual((Rate(10, 5).half, Rate(1, 1).half), (Rate(5, 2), Rate(1, 1)))


class AddressBucketsTests(SynchronousTestCase):
    def test_each_address_has_its_own_bucket(self) -> None:
        buckets = AddressBuckets(Rate(2, 1))
        taken = [buckets.get(address, NOW).take_one(NOW) for address in "aaabbab"]
        self.assertEqual(taken, [True, True, False, True, True, False, False])

    def test_the_address_that_was_used_the_longest_ago_is_forgotten(self) -> None:
        self.patch(rates, "MAX_ADDRESSES", 2)
        buckets = AddressBuckets(Rate(1, 1))
        first, second = buckets.get("a", NOW), buckets.get("b", NOW)
        self.assertIs(buckets.get("a", NOW), first)
        buckets.get("c", NOW)
        self.assertEqual(len(buckets), 2)
        self.assertIs(buckets.get("a", NOW), first)
        self.assertIsNot(buckets.get("b", NOW), second)
