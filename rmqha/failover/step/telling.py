"""Writes the node's own key among the members, and takes a broker id."""

from dataclasses import replace

from rmqha.coordination.interface import CoordinatorRefused, CoordinatorUnavailable, Delete, Put
from rmqha.failover.keys import FORGOTTEN, IDS, LEADER, MEMBERS, BrokerIds, Forgotten, InvalidKey, Member, encode
from rmqha.failover.states import FailoverState
from rmqha.failover.step.knowledge import changed
from rmqha.failover.step.reading import is_in_doubt, read
from rmqha.failover.step.rights import grant, wake
from rmqha.failover.step.work import Procedure, Work, transact
from rmqha.failover.view import ClusterView

MAX_TRIES = 10
"""How often a number of our own is asked for in a step. Each failed try means that another node was faster."""


def _member(work: Work) -> Member:
    knows, facts = work.knows, work.seen.facts
    me, following = knows.me, knows.following
    state = knows.state.name if following is None else facts.state
    return Member(
        me.name,
        me.session.hex(),
        knows.known.whole_since,
        knows.state is FailoverState.CANDIDATE,
        knows.known.epoch,
        "" if following is None else following.name,
        knows.reason,
        me.priority,
        me.no_failover or knows.is_to_copy_anew,
        me.version,
        knows.trust.needed,
        knows.doubts_keys,
        knows.known.history.stamp,
        knows.known.number,
        knows.known.members,
        _has_read(work),
        knows.has_no_room,
        knows.known.log_of,
        knows.known.doubters,
        **replace(facts, state=state, is_full=facts.is_full or knows.has_no_room).told(),
    )


def _has_read(work: Work) -> tuple[str, ...]:
    """While the keys are too old: the sessions of all members, so that they know that we run."""
    view = work.knows.view
    if view is None or not is_in_doubt(work, view):
        return ()
    return tuple(sorted(member.session for member in view.members.values()))


def register(work: Work, view: ClusterView) -> Procedure[Member]:
    """Write the node's own key, if it has changed. Raises CoordinatorError, InvalidKey if the name is another's."""
    me, member = work.knows.me.name, _member(work)
    name = MEMBERS + me
    held, other = view.held(name), view.members.get(me)
    if other is not None and other.session != member.session and other.store != member.store:
        raise InvalidKey(
            f"another node is member {me} of this cluster, with the HA port {other.ha}: give each node "
            "a name of its own (--member)"
        )
    lease = yield from grant(work)
    known = work.knows.registered
    is_news = known is None or replace(known, end=member.end) != member or (member.is_candidate and known != member)
    is_due = known != member and work.now >= work.knows.next_telling
    if held is None or held.lease != lease or is_news or is_due:
        compares, writes = [], [Put(work.key(name), encode(member), lease)]
        if me in view.forgotten:  # it is back
            compares = [view.unchanged(FORGOTTEN)]
            names = tuple(sorted(view.forgotten - {me}))
            writes.append(Put(work.key(FORGOTTEN), encode(Forgotten(names))))
        if not (yield from transact("register", compares, writes)):
            raise CoordinatorUnavailable("another key has just changed")
        work.knows = changed(work.knows, registered=member, next_telling=work.now + work.knows.config.renew)
    return member


def broker_id(work: Work, view: ClusterView) -> Procedure[int]:
    """The id under which the node is registered with name servers while it is a slave. Raises CoordinatorError."""
    me = work.knows.me.name
    for _ in range(MAX_TRIES):
        if me in view.ids.ids:
            return view.ids.ids[me]
        ids = view.ids.ids
        free = next(number for number in range(1, len(ids) + 2) if number not in ids.values())
        new = BrokerIds({**ids, me: free})
        yield from transact("take a broker id", [view.unchanged(IDS)], [Put(work.key(IDS), encode(new))])
        view = yield from read(work)  # another node may have taken the number
    raise CoordinatorRefused("The coordinator does not keep what it has answered to have written.")


def remove_own_leader_key(work: Work, view: ClusterView) -> Procedure[None]:
    """The leader key is ours, but we do not lead: an earlier process of this store does not either."""
    compare = view.unchanged(LEADER)
    yield from transact("remove our leader key", [compare], [Delete(compare.key)])
    wake(work)
