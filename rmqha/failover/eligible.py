"""Whether a node may try for the lead, and who should be let first."""

from dataclasses import dataclass
from datetime import datetime

from rmqha.failover.keys import AUTOMATIC, Cause, Member, Mode, NewestChange, Order, Status
from rmqha.failover.member import Known
from rmqha.failover.view import ClusterView

NO_FOUNDER = "no node was started as the cluster's first leader: start one with the role of a master"


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Whether the node may try now, as what it would lead, or why not."""

    cause: Cause | None
    why_not: str = ""


def may_lead(view: ClusterView, me: Member, is_founder: bool, now: datetime) -> Eligibility:
    """Whether ``me`` may try for the lead of a cluster without a leader.

    A founder may begin a cluster that never had a leader. ``now`` is the wall clock's time.
    """
    order = view.request
    is_ordered = order is not None and order.order != Order.REINIT.value and order.to in ("", me.name)
    is_forced = is_ordered and order is not None and order.force and order.to == me.name
    newest = max(view.newest_known, me.known_epoch)
    if is_forced and newest >= view.epoch:
        return Eligibility(Cause.FAILOVER)
    if newest > view.epoch:
        return Eligibility(None, _older_coordinator(view, newest))
    if not view.exists:
        return Eligibility(Cause.FIRST) if is_founder else Eligibility(None, NO_FOUNDER)
    if me.no_failover:
        return Eligibility(None, "it has the tag nofailover")
    why_not = _lacks(view, me)
    if why_not is not None:
        return Eligibility(None, why_not)
    if is_ordered and order is not None:
        return Eligibility(Cause.SWITCHOVER if order.order == Order.SWITCHOVER.value else Cause.FAILOVER)
    return _by_itself(view, me, now)


def _older_coordinator(view: ClusterView, newer: int) -> str:
    return (
        f"the coordinator's keys are of epoch {view.epoch}, and the cluster was in epoch {newer}: the coordinator has "
        "lost what it kept. Name the node that leads: rmqha cluster failover --to NAME --force"
    )


def may_lead_in_doubt(view: ClusterView, me: Member, known: Known) -> Eligibility:
    """Whether ``me`` may lead although the keys are older than what a member knows: without trusting ``sync``.

    All members that any of them has ever heard of must be there, and have closed their connections. Each must have read
    the key of ``me``: else its key may have come back with the older copy. Then the one leads that led last, as all of
    them know, if no log is longer than its own. Of the others nobody can tell whose messages were answered.
    """
    if view.config.paused:
        return Eligibility(None, "automatic failover is paused: rmqha cluster resume")
    if me.no_failover:
        return Eligibility(None, "it has the tag nofailover")
    away = away_members(view)
    if away:
        return Eligibility(None, f"{', '.join(away)}, which may have more, is not there")
    others = {name: other for name, other in sorted(view.members.items()) if name != me.name}
    for name, other in others.items():
        if not other.is_candidate or me.session not in other.has_read:
            return Eligibility(None, f"it waits for {name} to say where its log ends")
    theirs = [*known.doubters.items(), *((name, other.newest_change) for name, other in others.items())]
    unheard = [name for name, change in theirs if not _knows_all_of(known, me, change)]
    if unheard:
        return Eligibility(None, f"{unheard[0]} knows, or knew, of a leader that {me.name} has not heard of")
    last = known.history.entries[-1].node if known.history.entries else known.leader
    if others and last != me.name:
        what = "goes first" if last in others else "is gone"
        return Eligibility(None, f"{last}, which led last, {what}")
    for name, other in others.items():
        if other.end > me.end:
            return Eligibility(None, f"the log of {name} is longer, although {me.name} led last")
    return Eligibility(Cause.TOGETHER)


def away_members(view: ClusterView) -> list[str]:
    """The members that one of those that run has ever heard of, and that do not run."""
    names = view.names.union(*((*member.knows, *member.doubters) for member in view.members.values()))
    return sorted(names - view.forgotten - set(view.members))


def _knows_all_of(known: Known, me: Member, other: NewestChange) -> bool:
    """Of one leadership there is one row of writes: who has read less of it has lost nothing by that."""
    if not other.stamp:
        return other.epoch <= me.known_epoch
    if other.stamp == me.stamp:
        return True
    return known.history.covers(known.number, other.epoch, other.stamp, other.number)


def _by_itself(view: ClusterView, me: Member, now: datetime) -> Eligibility:
    """Without an order."""
    assert view.sync is not None, "only then is it called"
    if view.sync.leader == me.name:
        return Eligibility(Cause.AGAIN)
    if view.config.paused:
        return Eligibility(None, "automatic failover is paused: rmqha cluster resume")
    if view.status is not None and view.status.is_released and view.status.epoch == view.epoch:
        return Eligibility(Cause.DISK_FULL if view.status.is_full else Cause.RELEASED)
    seconds = seconds_of_pause(view, now)
    # Outside of the sync set: it has more of the log than those in it, and the old leader, for whom there is no pause,
    # would lead again with less.
    if seconds > 0 and (view.config.mode == Mode.ASYNC.value or me.name in view.sync.holders):
        return Eligibility(
            None,
            f"the last automatic failover was a short time ago: the next may be in {seconds:.0f} s. rmqha cluster "
            "failover does it now",
        )
    return Eligibility(Cause.LEASE_ENDED)


def seconds_of_pause(view: ClusterView, now: datetime) -> float:
    """For how long no automatic failover may follow the last one, 0 if it may. A clock that was set back is ignored."""
    for entry in reversed(view.history.entries):
        if entry.cause in AUTOMATIC:
            try:
                passed = (now - datetime.fromisoformat(entry.time)).total_seconds()
            except (ValueError, TypeError):  # nobody of ours wrote it
                return 0.0
            return max(0.0, view.config.failover_pause - passed) if passed >= 0 else 0.0
    return 0.0


def _lacks(view: ClusterView, me: Member) -> str | None:
    """Why the node's log may lack messages that were answered with SEND_OK; None if it lacks none."""
    sync = view.sync
    if sync is None:
        return "the coordinator does not say which members hold every message"
    if me.name not in sync.holders:
        return _lags(view, me) if view.config.mode == Mode.ASYNC.value else _lacks_what_holders_have(view, me)
    return _lacks_the_others(view, me) if _may_have_lost(view, me) else None


def _may_have_lost(view: ClusterView, holder: Member) -> bool:
    """Whether a member of the sync set may have lost its log's end since it joined it."""
    assert view.sync is not None, "it names the member"
    confirmed = 0 if view.status is None or view.status.epoch != view.sync.epoch else view.status.confirmed
    return not holder.is_intact(view.sync.holders[holder.name]) or holder.end < confirmed


def bytes_behind(status: Status, member: Member, end: int) -> int | None:
    """How many bytes before ``end``, an offset of the log that ``status`` tells of, a member lacks.

    None if its log may be another one: of another leader, it may be as long, and end with other messages.
    """
    is_one_log = not status.stamp or member.log_of == status.stamp
    return max(0, end - member.end) if is_one_log else None


def _lags(view: ClusterView, me: Member) -> str | None:
    """The same for a member whose copy no put waited for, in mode async: a small lag is accepted."""
    if view.status is None or view.status.epoch != view.epoch:
        return "it is not known how far the leader's log was"
    lag = bytes_behind(view.status, me, view.status.end)
    if lag is None:
        return "it is not known whether its log is the leader's: it had not compared all of it"
    return None if lag <= view.config.maximum_lag else f"its log is {lag} bytes behind, more than maximum_lag"


def _lacks_what_holders_have(view: ClusterView, me: Member) -> str | None:
    """A member outside of the sync set leads only if all in it may have lost their ends, and have less than it has."""
    assert view.sync is not None, "only then is it called"
    for name in view.sync.holders:
        other = view.members.get(name)
        if other is None or not other.is_candidate or not _may_have_lost(view, other) or not _has_more(me, other):
            return "it is not in the sync set: it may lack messages that were answered with SEND_OK"
    return None


def _has_more(one: Member, other: Member) -> bool:
    """Whether both logs are beginnings of the same leader's log, and the first is longer. Of others nobody can tell.

    How often a store began an epoch says nothing: a follower begins one with each cut.
    """
    return bool(one.log_of) and one.log_of == other.log_of and one.end > other.end


def _lacks_the_others(view: ClusterView, me: Member) -> str | None:
    """Its machine lost power, or its log is shorter than what was confirmed: it leads if it has most of all holders.

    Then all of them must be there, and have closed their connections.
    """
    assert view.sync is not None, "only then is it called"
    lost = "its log may have lost its end (its machine was started again, or the log ends before what was confirmed)"
    for name, holder in view.sync.holders.items():
        other = me if name == me.name else view.members.get(name)
        if other is None:
            return f"{lost}, and {name}, which may have more, is not there"
        if other.store != holder.store:
            return f"{lost}, and {name} has another store than the one that held every message"
        if not other.is_candidate and name != me.name:
            return f"{lost}: it waits for {name} to say where its log ends"
        if _rank(other) > _rank(me):
            return f"{lost}, and {name} has more of it"
    return None


def _rank(member: Member) -> tuple[int, int, str]:
    return member.end, member.priority, member.name


def better_candidates(view: ClusterView, me: Member) -> list[str]:
    """The members that should be let first: they are in the sync set, have room, more of the log, a higher priority.

    Of one that does not say yet where its log ends it is not known: it is let first too. If ``me`` has lost its log's
    end, or leads for those who have, others have more of it, too.
    """
    if view.sync is None:
        return []
    found = _outsiders_with_more(view, me)
    for name in view.sync.holders:
        other = view.members.get(name)
        if other is None or name == me.name or other.no_failover or not other.is_intact(view.sync.holders[name]):
            continue
        if not other.is_candidate or (not other.is_full, *_rank(other)) > (not me.is_full, *_rank(me)):
            found.append(name)
    return found


def _outsiders_with_more(view: ClusterView, me: Member) -> list[str]:
    """The members outside of the sync set that have more of the log than ``me``, if that tells who should lead."""
    assert view.sync is not None, "only then is it called"
    if view.config.mode == Mode.ASYNC.value or view.config.paused:
        return []
    if me.name in view.sync.holders and not _may_have_lost(view, me):
        return []
    return [
        name
        for name, other in view.members.items()
        if name not in view.sync.holders and not other.no_failover and _has_more(other, me)
    ]
