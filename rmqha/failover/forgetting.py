"""Takes a member that is gone for good out of what the cluster waits for."""

from rmqha.coordination.interface import Compare, ICoordinator, Put
from rmqha.failover.keys import FORGOTTEN, IDS, MEMBERS, BrokerIds, Forgotten, encode
from rmqha.failover.view import ClusterView


async def forget_member(coordinator: ICoordinator, view: ClusterView, name: str) -> bool:
    """Write that a member that does not run is forgotten. The members then take it out of what they keep.

    False if one of the keys has changed since ``view`` was read: nothing was written. Raises CoordinatorError.
    """
    compares: list[Compare] = [view.unchanged(key) for key in (FORGOTTEN, IDS, MEMBERS + name)]
    writes = [Put(view.prefix + FORGOTTEN, encode(Forgotten(tuple(sorted(view.forgotten | {name})))))]
    if name in view.ids.ids:
        ids = {other: number for other, number in view.ids.ids.items() if other != name}
        writes.append(Put(view.prefix + IDS, encode(BrokerIds(ids))))
    return (await coordinator.transact(compares, writes)).succeeded
