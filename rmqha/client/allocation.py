"""Which queues of a topic a consumer takes: each consumer of a group computes the same for all of them.

This is Java's AllocateMessageQueueAveragely, its default: consumers of both kinds can share a group.
"""

from collections.abc import Iterable, Sequence

from rmqha.client.message import MessageQueue


def allocate_averagely(
    queues: Iterable[MessageQueue], client_ids: Iterable[str], client_id: str
) -> Sequence[MessageQueue]:
    """The queues of this client: neighbours in the sorted list. The first clients have one more if they do not come out
    even. A client that is not in the list has none.
    """
    in_order = sorted(set(queues))
    clients = sorted(set(client_ids), key=lambda name: name.encode("utf-16-be", "surrogatepass"))  # as Java sorts
    if client_id not in clients:
        return ()
    index = clients.index(client_id)
    share, rest = divmod(len(in_order), len(clients))
    start = index * share + min(index, rest)
    return in_order[start : start + share + (index < rest)]
