"""A node that does not lead follows the leader that the keys name, and promises it not to try for the lead."""

from rmqha.failover.keys import Leader, Order, Request
from rmqha.failover.member import DiskFull, Following, Promise
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import AnswerPromise, CheckRoom, Follow, Reinit
from rmqha.failover.step.events import CallDone
from rmqha.failover.step.knowledge import changed
from rmqha.failover.step.obeying import answer
from rmqha.failover.step.reading import note, note_log, older
from rmqha.failover.step.rights import give_reason, move, wake
from rmqha.failover.step.telling import broker_id, register, remove_own_leader_key
from rmqha.failover.step.trying import may_try, try_for_lead
from rmqha.failover.step.work import Procedure, Work, ask
from rmqha.failover.view import ClusterView
from rmqha.ha.slave.states import ReplicaState
from rmqha.wire.transfer import Hello

MAX_PROMISE_SECONDS = 3600.0
CONNECTED = (ReplicaState.CATCHING_UP.name, ReplicaState.IN_SYNC.name)


def follow(work: Work, view: ClusterView) -> Procedure[None]:
    """A step of a node that does not lead. Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
    if work.knows.state is FailoverState.JOINING:
        move(work, FailoverState.FOLLOWER)
    order = view.request
    is_to_copy = order is not None and order.order == Order.REINIT.value and order.to == work.knows.me.name
    work.knows = changed(work.knows, is_to_copy_anew=is_to_copy)
    me = yield from register(work, view)
    knows = work.knows
    if view.leader is not None:
        yield from _follow_leader(work, view, view.leader)
    elif not knows.follows_nobody and knows.state is FailoverState.FOLLOWER and knows.following is None:
        number = yield from broker_id(work, view)
        yield from ask(Follow(None, number), CallDone)
        work.knows = changed(work.knows, follows_nobody=True)
    elif may_try(work, view, me):
        yield from try_for_lead(work, view)


def _follow_leader(work: Work, view: ClusterView, leader: Leader) -> Procedure[None]:
    if leader.node == work.knows.me.name:
        yield from remove_own_leader_key(work, view)
        return
    if work.knows.doubts_keys or leader.epoch < work.knows.known.epoch:
        give_reason(work, older(view, work.knows.known))
        return
    master = view.members.get(leader.node)
    if master is None or master.session != leader.session:
        give_reason(work, f"{leader.node} leads, and has not said yet where it is")
        return
    stamp = view.history.stamp if view.epoch == leader.epoch else ""
    hello = Hello(leader.epoch, work.knows.me.session)
    following = Following(leader.node, leader.session, master.ha, master.remoting, hello)
    give_reason(work, f"{leader.node} leads")
    if following != work.knows.following:
        yield from _begin_to_follow(work, view, following, stamp)
    elif work.knows.known.log_of != stamp and _is_proved(work):
        yield from note_log(work, stamp)
        wake(work)  # the others must know it too
    if view.request is not None and work.knows.is_to_copy_anew:
        yield from _reinit(work, view, view.request)


def _begin_to_follow(work: Work, view: ClusterView, following: Following, stamp: str) -> Procedure[None]:
    """Another leader, or another process of it. Raises CoordinatorError, DiskFull, NodeFailed."""
    number = yield from broker_id(work, view)
    yield from note(work, following.hello.epoch, following.name)
    if work.knows.known.log_of != stamp:
        yield from note_log(work, "")  # what comes from now on is of another log than what is there
    move(work, FailoverState.FOLLOWER)
    work.knows = changed(work.knows, following=following, let_first_until=None)
    try:
        yield from ask(Follow(following, number), CallDone)
    except DiskFull:
        work.knows = changed(work.knows, following=None)  # the next step tries again
        raise
    work.knows = changed(work.knows, follows_nobody=False)


def _is_proved(work: Work) -> bool:
    """Whether our log is known to be the beginning of that of the leader that we follow."""
    facts = work.seen.facts
    return facts.is_proved and facts.state in CONNECTED


def _reinit(work: Work, view: ClusterView, order: Request) -> Procedure[None]:
    """Copy the leader's log anew, once nobody counts on ours: ``sync`` must not name a member with an empty log.

    Raises CoordinatorError, DiskFull, NodeFailed.
    """
    me = work.knows.me.name
    if view.sync is None or me in view.sync.holders:
        give_reason(work, "it copies the leader's log anew as soon as the leader has left it out of the sync set")
        return
    yield from ask(CheckRoom(), CallDone)
    yield from answer(work, view, order, True, f"{me} sets its log aside, and copies that of the leader")
    work.knows = changed(work.knows, following=None)
    yield from ask(Reinit(), CallDone)
    wake(work)


def become_follower(work: Work, view: ClusterView) -> Procedure[None]:
    """After the lead was lost: the store is a slave's again. Raises CoordinatorError, DiskFull, NodeFailed."""
    if view.leader is not None and view.leader.session == work.knows.me.session.hex():
        yield from remove_own_leader_key(work, view)
    work.knows = changed(work.knows, sync=None)
    if work.knows.is_led:
        number = yield from broker_id(work, view)
        yield from ask(Follow(None, number), CallDone)
    work.knows = changed(work.knows, is_led=False, following=None, follows_nobody=True)
    move(work, FailoverState.FOLLOWER)
    wake(work)


def promise(work: Work, asked: Promise) -> None:
    """The leader asks us not to try for the lead for some time: say whether we promise it."""
    is_given = _is_to_promise(work, asked)
    if is_given:
        until = max(work.knows.promised_until, work.now + asked.seconds)
        work.knows = changed(work.knows, promised_until=until)
    work.do(AnswerPromise(is_given))


def _is_to_promise(work: Work, asked: Promise) -> bool:
    knows, following = work.knows, work.knows.following
    if knows.is_stopping or knows.state is not FailoverState.FOLLOWER or following is None:
        return False
    leads = following.name, following.hello.epoch, following.session
    if (asked.leader, asked.epoch, asked.session) != leads or asked.epoch != knows.known.epoch:
        return False
    if not 0 < asked.seconds <= MAX_PROMISE_SECONDS:
        return False
    # if its messages do not come here: it cannot leave us out of ``sync``, and answers no put
    return work.seen.facts.state in CONNECTED
