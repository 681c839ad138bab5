"""How the clients of a group share the queues of a topic: together all of them, and as Java's clients compute it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.client import MessageQueue
from rmqha.client.allocation import allocate_averagely
from tests import examples

QUEUES = st.sets(st.builds(MessageQueue, st.just("T"), st.sampled_from("abc"), st.integers(0, 15)))
CLIENTS = st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=8)


def as_java(queues: list[MessageQueue], clients: list[str], client: str) -> list[MessageQueue]:
    """Java's AllocateMessageQueueAveragely: an average share, and the rest to the first ones."""
    index, rest = clients.index(client), len(queues) % len(clients)
    if len(queues) <= len(clients):
        size = 1
    elif rest > 0 and index < rest:
        size = len(queues) // len(clients) + 1
    else:
        size = len(queues) // len(clients)
    start = index * size if rest > 0 and index < rest else index * size + rest
    return [queues[(start + i) % len(queues)] for i in range(min(size, len(queues) - start))]


class AllocationTests(SynchronousTestCase):
    @settings(max_examples=examples(200), deadline=None)
    @given(QUEUES, CLIENTS)
    def test_each_queue_has_one_client_and_shares_differ_by_one_at_most(
        self, queues: set[MessageQueue], clients: set[str]
    ) -> None:
        shares = [allocate_averagely(queues, clients, client) for client in clients]
        self.assertEqual(sorted(queue for share in shares for queue in share), sorted(queues))
        sizes = [len(share) for share in shares]
        self.assertLessEqual(max(sizes) - min(sizes), 1)

    @settings(max_examples=examples(200), deadline=None)
    @given(QUEUES, st.sets(st.text("ab01@#.", min_size=1), min_size=1, max_size=8))
    def test_it_is_what_java_computes(self, queues: set[MessageQueue], clients: set[str]) -> None:
        for client in clients:
            self.assertEqual(
                list(allocate_averagely(queues, clients, client)), as_java(sorted(queues), sorted(clients), client)
            )

    def test_a_client_that_the_broker_does_not_know_has_none(self) -> None:
        self.assertEqual(list(allocate_averagely([MessageQueue("T", "a", 0)], ["x"], "y")), [])

    def test_clients_are_sorted_as_java_sorts_texts(self) -> None:
        """By UTF-16 units: a character beyond 16 bits comes before U+FFFD."""
        queues = [MessageQueue("T", "a", number) for number in range(2)]
        self.assertEqual(list(allocate_averagely(queues, ["\ufffd", "\U0001f600"], "\U0001f600")), queues[:1])
