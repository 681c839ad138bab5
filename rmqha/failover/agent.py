"""Decides what a node does in its cluster: follow, try for the lead, lead, hand over.

One loop takes a step after each change of the cluster's keys, and every ``renew`` seconds. Each step reads all keys
(linearizable), so that a watch that missed something costs time and nothing else. What protects messages is at the
data, not here: puts ask the ``Leadership`` before each append and each answer, and wait for each member of the sync
set.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.coordination.interface import (
    Change,
    Compare,
    CompareTarget,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    Delete,
    ICoordinator,
    Put,
)
from rmqha.failover.eligible import (
    away_members,
    better_candidates,
    may_lead,
    may_lead_in_doubt,
    seconds_of_pause,
)
from rmqha.failover.keys import (
    ANSWER,
    CONFIG,
    EPOCH,
    FORGOTTEN,
    IDS,
    LEADER,
    MEMBERS,
    REQUEST,
    STATUS,
    SYNC,
    Answer,
    BrokerIds,
    Cause,
    ClusterConfig,
    EpochEntry,
    Forgotten,
    History,
    Holder,
    InvalidKey,
    Leader,
    Member,
    Mode,
    Order,
    Request,
    Status,
    SyncSet,
    decode,
    encode,
    prefix_of,
)
from rmqha.failover.lease import LeaseKeeper
from rmqha.failover.member import DiskFull, Following, INode, Known, NodeFacts, NodeFailed, Promise
from rmqha.failover.states import FAILOVER_MOVES, FailoverState
from rmqha.failover.syncset import SyncSetKeeper
from rmqha.failover.trust import Trust
from rmqha.failover.view import ClusterView
from rmqha.failover.watching import KeyWatch
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.trouble import Trouble
from rmqha.wire.transfer import Hello

STAMP_CHARACTERS = 12
"""Of the random name of a process, in the stamp of its leadership."""
MAX_COMPARED = 32
"""Members whose keys must be as they were read when a leader is named."""
LOOK_SECONDS = 0.25
"""How often a leader looks at its members, without asking the coordinator."""
LET_FIRST_SECONDS = 1.0
"""How long a candidate lets one with more of the log go first."""
HAND_OVER_SECONDS = 2.0
"""How long a leader that hands over takes no messages, until the successor has all; then it goes on."""
ALIVE_SECONDS = 1.0
"""For how long a member is asked not to try for the lead when the question is only whether it answers."""
SUCCESSOR_SECONDS = 5.0
"""How long others let the successor of a switchover go first."""
RETRY_SECONDS = 1.0
"""After a step that failed."""
MAX_PROMISE_SECONDS = 3600.0
MAX_TRIES = 10
"""How often a number of our own is asked for in a step. Each failed try means that another node was faster."""
LEASE_OVER = "the lease has ended, and not all other members have promised to wait"
CONNECTED = (ReplicaState.CATCHING_UP.name, ReplicaState.IN_SYNC.name)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is in its cluster. ``is_founder``: it may be the first leader of a cluster that never had one."""

    cluster: str
    broker: str
    name: str
    session: bytes
    is_founder: bool = False
    priority: int = 100
    no_failover: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """A node's clocks. ``now`` never stops and is never set (CLOCK_BOOTTIME), ``wall`` is the time in UTC."""

    clock: IReactorTime
    now: Callable[[], float]
    wall: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))


class FailoverAgent(Service):
    """A member of a cluster."""

    _log = Logger()

    def __init__(self, identity: Identity, coordinator: ICoordinator, node: INode, times: Times) -> None:
        self._me = identity
        self._coordinator = coordinator
        self._node = node
        self._clock = times.clock
        self._now = times.now
        self._wall = times.wall
        self._prefix = prefix_of(identity.cluster, identity.broker)
        self.state = FailoverState.JOINING
        self.view: ClusterView | None = None
        """The keys as they were last read."""
        self.reason = "it has not heard from the coordinator yet"
        """Why the node does not lead, or what it waits for."""
        self.problem: str | None = None
        """What is wrong with the coordinator, or with its keys; None if nothing is."""
        self._is_silent = False
        self.leadership: Leadership | None = None
        self._known = Known()
        self._config = ClusterConfig()
        self._keeper = LeaseKeeper(coordinator, times.clock, times.now, lambda: self._config)
        self._keeper.renewed = self._renewed
        self._keeper.unanswered = self._unanswered
        self._keeper.gone = self._wake
        self._sync: SyncSetKeeper | None = None
        self._created = 0
        """The revision at which our leader key was made."""
        self._following: Following | None = None
        self._follows_nobody = False
        self._promised_until = self._born = self._now()
        self._trust = Trust()
        self._read_from: int | None = None
        """The id of the coordinator that gave ``view``."""
        self.doubts_keys = False
        """Whether the coordinator's keys, when they were last read, were older than what this node knew then."""
        self._history = History()
        self._registered: Member | None = None
        self._next_telling = 0.0
        """When the end of our log may be told again, if nothing else has changed."""
        self._expiry: IDelayedCall | None = None
        self._watch = KeyWatch(coordinator, self._prefix, self._keys_changed)
        self._sleeping: Deferred[None] | None = None
        self._is_woken = False
        self._looping: Deferred[None] = succeed(None)
        self._next_read = 0.0
        self._leaderless_since: float | None = None
        self._let_first_until: float | None = None
        self._is_to_copy_anew = False
        """An operator wants the log to be copied anew: first the leader must leave this member out of ``sync``."""
        self._no_room = Trouble()
        """It lasts while the disk has no room for what a step should write."""
        self._is_led = False
        """Whether the store is a master's, or was to become one: it must be opened as a slave's again."""

    @property
    def identity(self) -> Identity:
        """Who this member is."""
        return self._me

    @property
    def seconds_of_lease(self) -> float:
        """For how long the node may lead without another answer of the coordinator; 0 if it does not lead."""
        return 0.0 if self.leadership is None else max(0.0, self.leadership.until - self._now())

    @property
    def known(self) -> Known:
        """What the node keeps of its cluster on its disk."""
        return self._known

    # The loop

    @property
    def sync_set(self) -> SyncSetKeeper | None:
        """For whom a leader's puts wait; None if this node does not lead."""
        return self._sync

    def startService(self) -> None:
        Service.startService(self)
        self._looping = Deferred.fromCoroutine(self._loop())
        self._looping.addErrback(self._bug)

    def _bug(self, failure: Failure) -> None:
        """End the process: a node without its agent would keep the lead, or never take it."""
        self._log.failure("the failover agent failed", failure, event=Event.FAILOVER_BUG)
        self._end_leadership("a bug: see the log")
        self._keeper.stop()
        self._node.give_up(f"a bug in automatic failover: {failure.getErrorMessage()}")

    def stopService(self) -> Deferred[None]:
        """Leave the cluster. A leader hands over first, if a member has all; fires when the coordinator knows it."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        Service.stopService(self)
        self._wake()
        await self._looping
        try:
            if self.state is FailoverState.LEADER:
                await self._release()
            self._end_leadership("the node stops")
            if self._keeper.lease is not None:
                await self._coordinator.revoke(self._keeper.lease)
        except CoordinatorError as error:
            self._log.info(
                "the coordinator does not know that this node stops: {error}",
                event=Event.FAILOVER_WAITS,
                error=str(error),
            )
        self._keeper.stop()
        self._watch.stop()
        self._move(FailoverState.STOPPED)
        await self._coordinator.close()

    async def _loop(self) -> None:
        try:
            started = (await self._node.read_known()).started(self._node.facts().boot)
            while not await self._begin(started) and self.running:
                await self._sleep(RETRY_SECONDS)
            while self.running:
                wait = await self._try_step()
                if self.running:
                    await self._sleep(wait)
        except NodeFailed as error:  # the node ends
            if self.running:
                self._tell_problem(str(error))
            self._end_leadership(str(error))

    async def _begin(self, known: Known) -> bool:
        """Note that this process has started. Returns whether there was room for it. Raises NodeFailed."""
        try:
            await self._write_known(known)
        except DiskFull as error:
            self.reason = self._tell_no_room(error)
        return self._known == known

    async def _try_step(self) -> float:
        """Take a step. Returns the seconds until the next one. Raises NodeFailed."""
        try:
            try:
                await self._step()
                self._no_room.ends()
            except DiskFull as error:
                await self._do_without_room(error)
        except (CoordinatorError, InvalidKey) as error:
            self._tell_problem(str(error), is_silence=isinstance(error, CoordinatorUnavailable))
            self._next_read = 0.0
            return RETRY_SECONDS
        self._tell_problem(self._doubt())
        if self._no_room.lasts:
            return RETRY_SECONDS
        looks = self.state in (FailoverState.LEADER, FailoverState.CANDIDATE)
        return LOOK_SECONDS if looks else self._config.renew

    async def _do_without_room(self, error: DiskFull) -> None:
        """Tell the others that this member waits for room. A leader hands over, if it can.

        What was read is not noted, so nothing else is done that it says. Raises CoordinatorError, InvalidKey.
        """
        reason, view, self._next_read = self._tell_no_room(error), self.view, 0.0
        if self.state is FailoverState.LEADER and view is not None:
            await self._make_room(view, is_full=True)
        elif view is not None:
            self.reason = reason
            await self._register(view)

    def _tell_no_room(self, error: DiskFull) -> str:
        """Log it once. Returns why this member does not lead."""
        if self._no_room.begins():
            self._log.error(
                "{what} is not written, so it neither takes the lead nor follows a new leader: {error}",
                event=Event.WAITS_FOR_ROOM,
                what="what this node knows of its cluster",
                error=str(error),
            )
        return f"it waits for room on its disk: {error}"

    def _doubt(self) -> str | None:
        """What is wrong with the keys, although the coordinator answers. A leader writes them again at once."""
        if self.state is FailoverState.LEADER or self.view is None or not self.doubts_keys:
            return None
        return _older(self.view, self._known)

    async def _sleep(self, seconds: float) -> None:
        if not self._is_woken:
            self._sleeping = Deferred()
            waiting = self._clock.callLater(seconds, self._rouse)
            await self._sleeping
            if waiting.active():
                waiting.cancel()

    def _wake(self) -> None:
        """Take the next step now, and read all keys for it."""
        self._is_woken = True
        self._rouse()

    def _rouse(self) -> None:
        if self._sleeping is not None:
            sleeping, self._sleeping = self._sleeping, None
            sleeping.callback(None)

    def _tell_problem(self, problem: str | None, is_silence: bool = False) -> None:
        """Log what has changed. Which endpoint is silent in which way changes with each try: one line is enough."""
        is_known, self._is_silent = is_silence and self._is_silent, is_silence
        if problem != self.problem:
            self.problem = problem
            if problem is None:
                self._log.info("the coordinator answers again", event=Event.COORDINATOR_ANSWERS)
            elif not is_known:
                self._log.warn("failover cannot go on: {problem}", event=Event.COORDINATOR_PROBLEM, problem=problem)

    def _move(self, new: FailoverState) -> None:
        if new is not self.state:
            assert new in FAILOVER_MOVES[self.state], f"{self.state} to {new}"
            self._log.info("failover: {old} to {new}", event=Event.FAILOVER_STATE, old=self.state.name, new=new.name)
            self.state = new

    # A step

    async def _step(self) -> None:
        if self.state is FailoverState.LEADER and self._now() < self._next_read and not self._is_woken:
            await self._lead_on()
            return
        self._is_woken = False
        view = await self._read()
        self._next_read = self._now() + self._config.renew
        if self.state is FailoverState.LEADER:
            await self._lead(view)
        if self.state is FailoverState.FENCED:
            await self._become_follower(view)
            return
        if self.state in (FailoverState.JOINING, FailoverState.FOLLOWER, FailoverState.CANDIDATE):
            await self._follow(view)

    async def _read(self) -> ClusterView:
        """All keys. Raises CoordinatorError, InvalidKey."""
        snapshot = await self._coordinator.range(self._prefix)
        if self.running:
            self._watch.go_on_from(snapshot.revision)
        self._read_from = self._coordinator.cluster_id
        view = ClusterView.read(self._prefix, snapshot)
        if self._known.config and view.held(CONFIG) is None:  # lost with the coordinator's disk: the leader writes it
            view = replace(view, config=decode(ClusterConfig, CONFIG, self._known.config.encode()))
        self._trust.look(view, self._read_from)
        self.doubts_keys = self._trust.is_doubtful(view, self._read_from, self._known)
        self.view, self._config = view, view.config
        if view.leader is not None:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = self._now()
        await self._learn(view)
        return view

    def _is_in_doubt(self, view: ClusterView) -> bool:
        """Whether this node, or a registered one, knows that these keys are too old."""
        return self.doubts_keys or any(name != self._me.name for name in view.doubters)

    async def _learn(self, view: ClusterView) -> None:
        """Note durably what these keys say, before the node acts on it. Keys that are too old teach nothing.

        A node that has just lost the lead only gives it back, which needs no room on its disk. Raises DiskFull.
        """
        if self.doubts_keys or self.state is FailoverState.FENCED:
            return
        held, known = view.held(CONFIG), self._known
        await self._write_known(
            replace(
                known,
                history=view.history,
                number=0 if view.sync is None else view.sync.number,
                members=tuple(sorted(view.names.union(known.members) - view.forgotten)),
                config=known.config if held is None else held.value.decode(),
            )
        )

    async def _write_known(self, known: Known) -> None:
        """Raises DiskFull, NodeFailed."""
        if known != self._known:
            await self._node.write_known(known)
            self._known = known

    def _keys_changed(self, revision: int, changes: Sequence[Change]) -> None:
        """Take a step, unless the changes are only what the nodes tell of themselves at times."""
        told = {self._prefix + STATUS, self._prefix + MEMBERS + self._me.name}
        if any(change.key not in told for change in changes):
            self._wake()

    # Members

    def _member(self, facts: NodeFacts) -> Member:
        me, following = self._me, self._following
        return Member(
            me.name,
            me.session.hex(),
            facts.store,
            self._known.whole_since,
            facts.ha,
            facts.remoting,
            self.state.name if following is None else facts.state,
            facts.end,
            self.state is FailoverState.CANDIDATE,
            facts.synced,
            self._known.epoch,
            facts.log_epoch,
            "" if following is None else following.name,
            self.reason,
            facts.http,
            me.priority,
            me.no_failover or self._is_to_copy_anew,
            me.version,
            facts.is_full or self._no_room.lasts,
            self._trust.needed,
            self.doubts_keys,
            self._known.history.stamp,
            self._known.number,
            self._known.members,
            self._has_read(),
            self._no_room.lasts,
            self._known.log_of,
        )

    def _has_read(self) -> tuple[str, ...]:
        """While the keys are too old: the sessions of all members, so that they know that we run."""
        if self.view is None or not self._is_in_doubt(self.view):
            return ()
        return tuple(sorted(member.session for member in self.view.members.values()))

    async def _register(self, view: ClusterView) -> Member:
        """Write the node's own key, if it has changed. Raises CoordinatorError, InvalidKey if the name is another's."""
        member = self._member(self._node.facts())
        name = MEMBERS + self._me.name
        held, other = view.held(name), view.members.get(self._me.name)
        if other is not None and other.session != member.session and other.store != member.store:
            raise InvalidKey(
                f"another node is member {self._me.name} of this cluster, with the HA port {other.ha}: give each node "
                "a name of its own (--member)"
            )
        lease, known = await self._keeper.grant(), self._registered
        is_news = known is None or replace(known, end=member.end) != member or (member.is_candidate and known != member)
        if held is None or held.lease != lease or is_news or (known != member and self._now() >= self._next_telling):
            compares, writes = [], [Put(self._prefix + name, encode(member), lease)]
            if self._me.name in view.forgotten:  # it is back
                compares = [view.unchanged(FORGOTTEN)]
                names = tuple(sorted(view.forgotten - {self._me.name}))
                writes.append(Put(self._prefix + FORGOTTEN, encode(Forgotten(names))))
            done = await self._coordinator.transact(compares, writes)
            if not done.succeeded:
                raise CoordinatorUnavailable("another key has just changed")
            self._registered, self._next_telling = member, self._now() + self._config.renew
        return member

    async def _broker_id(self, view: ClusterView) -> int:
        """The id under which the node is registered with name servers while it is a slave. Raises CoordinatorError."""
        for _ in range(MAX_TRIES):
            if self._me.name in view.ids.ids:
                return view.ids.ids[self._me.name]
            ids = view.ids.ids
            free = next(number for number in range(1, len(ids) + 2) if number not in ids.values())
            new = BrokerIds({**ids, self._me.name: free})
            await self._coordinator.transact([view.unchanged(IDS)], [Put(self._prefix + IDS, encode(new))])
            view = await self._read()  # another node may have taken the number
        raise CoordinatorRefused("The coordinator does not keep what it has answered to have written.")

    # Following

    async def _follow(self, view: ClusterView) -> None:
        """A step of a node that does not lead."""
        self._move(FailoverState.FOLLOWER if self.state is FailoverState.JOINING else self.state)
        order = view.request
        self._is_to_copy_anew = order is not None and order.order == Order.REINIT.value and order.to == self._me.name
        me = await self._register(view)
        if view.leader is not None:
            await self._follow_leader(view, view.leader)
        elif not self._follows_nobody and self.state is FailoverState.FOLLOWER and self._following is None:
            await self._node.follow(None, await self._broker_id(view))
            self._follows_nobody = True
        elif self._may_try(view, me):
            await self._try(view)

    async def _follow_leader(self, view: ClusterView, leader: Leader) -> None:
        held = view.held(LEADER)
        assert held is not None, "it was read"
        if leader.node == self._me.name:
            await self._remove_own_key(held.mod_revision)
            return
        if self.doubts_keys or leader.epoch < self._known.epoch:
            self.reason = _older(view, self._known)
            return
        master = view.members.get(leader.node)
        if master is None or master.session != leader.session:
            self.reason = f"{leader.node} leads, and has not said yet where it is"
            return
        stamp = view.history.stamp if view.epoch == leader.epoch else ""
        hello = Hello(leader.epoch, self._me.session)
        following = Following(leader.node, leader.session, master.ha, master.remoting, hello)
        self.reason = f"{leader.node} leads"
        if following != self._following:
            broker_id = await self._broker_id(view)
            await self._note(leader.epoch, leader.node)
            if self._known.log_of != stamp:
                await self._note_log("")  # what comes from now on is of another log than what is there
            self._move(FailoverState.FOLLOWER)
            self._following, self._let_first_until = following, None
            try:
                await self._node.follow(following, broker_id)
            except DiskFull:
                self._following = None  # the next step tries again
                raise
            self._follows_nobody = False
        elif self._known.log_of != stamp and self._is_proved():
            await self._note_log(stamp)
            self._wake()  # the others must know it too
        if view.request is not None and self._is_to_copy_anew:
            await self._reinit(view, view.request)

    def _is_proved(self) -> bool:
        """Whether our log is known to be the beginning of that of the leader that we follow."""
        facts = self._node.facts()
        return facts.is_proved and facts.state in CONNECTED

    async def _remove_own_key(self, revision: int) -> None:
        """The leader key is ours, but we do not lead: an earlier process of this store does not either."""
        key = self._prefix + LEADER
        await self._coordinator.transact([Compare(key, CompareTarget.MOD, revision)], [Delete(key)])
        self._wake()

    async def _note(self, epoch: int, leader: str) -> None:
        """Note the epoch durably, before the node acts in it. Raises DiskFull, NodeFailed."""
        newest, cluster_id = max(epoch, self._known.epoch), self._coordinator.cluster_id
        await self._write_known(replace(self._known, epoch=newest, leader=leader, cluster_id=cluster_id))

    async def _note_log(self, stamp: str) -> None:
        """Note durably whose log ours is the beginning of. Raises DiskFull, NodeFailed."""
        await self._write_known(replace(self._known, log_of=stamp))

    async def _note_own(self, epoch: int, sync: SyncSet) -> None:
        """Note durably what we have written as the leader, before we act on it. Raises DiskFull, NodeFailed."""
        known = replace(self._known, history=self._history, number=sync.number, log_of=self._history.stamp)
        await self._write_known(known)
        await self._note(epoch, self._me.name)

    # Trying for the lead

    def _may_try(self, view: ClusterView, me: Member) -> bool:
        """Whether to be a candidate now."""
        verdict = may_lead(view, me, self._me.is_founder, self._wall())
        order = view.request
        is_forced = order is not None and order.force and order.to == me.name and verdict.cause is not None
        if not is_forced and self._is_in_doubt(view):
            away = away_members(view)
            if away or view.config.paused:
                self.reason = _older(view, self._known)
                return False  # else all say where their logs end
        elif not is_forced and self._has_forgotten(view, me):
            self.reason = (
                "its cluster.json is lost: it leads only after it has followed a leader. If no other node can lead: "
                "rmqha cluster failover --to NAME --force"
            )
            return False
        elif verdict.cause is None and not self._is_needed_as_candidate(view, me):
            self.reason = verdict.why_not
            return False
        wait = self._wait_seconds(view, me)
        if wait > 0 and not is_forced:
            self.reason = f"it may try for the lead in {wait:.1f} s"
            return False
        return True

    def _has_forgotten(self, view: ClusterView, me: Member) -> bool:
        """Whether this store followed the leader, as the sync set says, and does not know it any more."""
        if view.sync is None or view.sync.leader == me.name or self._known.epoch:
            return False
        holder = view.sync.holders.get(me.name)
        return holder is not None and holder.store == me.store

    def _is_needed_as_candidate(self, view: ClusterView, me: Member) -> bool:
        """Whether others must know where our log ends before one of us can lead: see ``may_lead``."""
        if view.sync is None or me.no_failover or view.config.paused or me.name not in view.sync.holders:
            return False
        newer = max(me.known_epoch, view.newest_known)
        return newer <= view.epoch and me.store == view.sync.holders[me.name].store

    def _wait_seconds(self, view: ClusterView, me: Member) -> float:
        """For how long the node has promised not to try, or lets a successor go first."""
        now, until = self._now(), self._promised_until
        if view.status is not None and view.status.is_released and view.status.epoch == view.epoch == self._known.epoch:
            return self._wait_for_successor(view)  # the leader itself has freed us of what we promised to it
        if self._known.epoch and self._known.leader != me.name:  # an earlier process may have promised it
            until = max(until, self._born + self._config.ttl)
        return max(until - now, self._wait_for_successor(view))

    def _wait_for_successor(self, view: ClusterView) -> float:
        """For how long the node lets the successor of a switchover go first."""
        order, now = view.request, self._now()
        if order is None or order.order != Order.SWITCHOVER.value or order.to in ("", self._me.name):
            return 0.0
        since = now if self._leaderless_since is None else self._leaderless_since
        return max(0.0, since + SUCCESSOR_SECONDS - now)

    async def _try(self, view: ClusterView) -> None:
        """Close the connection to the old leader, say where our log ends, and take the lead if nobody is better."""
        if self.state is FailoverState.FOLLOWER:
            self._move(FailoverState.CANDIDATE)
            self._following = None
            end = await self._node.stop_following()
            self._follows_nobody = False
            self._let_first_until = self._now() + LET_FIRST_SECONDS
            self._log.info(
                "a candidate for the lead, with the log up to {end}", event=Event.FAILOVER_CANDIDATE, end=end
            )
        me = await self._register(view)
        view = await self._read()
        if view.leader is not None:
            return
        order = view.request
        is_named = order is not None and order.to == me.name
        is_forced = is_named and order is not None and order.force
        is_in_doubt = not is_forced and self._is_in_doubt(view)
        if is_in_doubt:
            verdict = may_lead_in_doubt(view, me, self._known)
        else:
            verdict = may_lead(view, me, self._me.is_founder, self._wall())
        if verdict.cause is None:
            self.reason = f"{_older(view, self._known)} ({verdict.why_not})" if is_in_doubt else verdict.why_not
            return
        better = [] if is_named or is_in_doubt else better_candidates(view, me)
        if better and self._now() < (self._let_first_until or 0.0):
            self.reason = f"it lets {', '.join(better)} go first"
            self._clock.callLater(LOOK_SECONDS, self._wake)
            return
        if self._wait_seconds(view, me) > 0 and not is_forced:
            return
        await self._node.check_room()
        await self._take_lead(view, me, verdict.cause, is_forced)

    async def _take_lead(self, view: ClusterView, me: Member, cause: Cause, is_forced: bool) -> None:
        """The transaction that decides who leads. Raises CoordinatorError.

        It fails if the key of a member has changed since it was read: the member may know that the keys are too old.
        """
        sent = await self._keeper.renew()
        lease = await self._keeper.grant()
        cluster_id, is_doubted = self._coordinator.cluster_id, self._is_in_doubt(view)
        epoch = max(view.epoch, me.log_epoch, self._known.epoch, view.newest_known) + 1
        leader = Leader(me.name, me.session, epoch, cluster_id, self._trust.floor(view))
        history = self._new_history(view, me, epoch, cause, is_forced)
        holders = {} if is_doubted else _kept_holders(view, cause)
        sync = SyncSet(epoch, me.name, {**holders, me.name: me.holder()}, 1, cluster_id)
        writes: list[Put | Delete] = [
            Put(self._prefix + LEADER, encode(leader), lease),
            Put(self._prefix + EPOCH, encode(history)),
            Put(self._prefix + SYNC, encode(sync)),
        ]
        if view.request is not None and view.request.order != Order.REINIT.value:
            text = f"{me.name} leads, epoch {epoch}, from {me.end} on"
            writes += self._answering(Answer(view.request.id, view.request.to in ("", me.name), text))
        key = self._prefix + LEADER
        compares = [Compare(key, CompareTarget.CREATE, 0), *(view.unchanged(name) for name in (EPOCH, SYNC, REQUEST))]
        if not is_forced:
            others = sorted((view.names | {*self._known.members}) - {me.name})[:MAX_COMPARED]
            compares += [view.unchanged(MEMBERS + name) for name in others]
        try:
            done = await self._coordinator.transact(compares, writes)
            won = done.succeeded
        except CoordinatorUnavailable:
            won = await self._find_out(leader)
        if won:
            before = view.status
            if before is None or before.epoch != view.epoch:
                before = Status(view.epoch, 0, me.end, stamp=me.log_of)
            try:
                await self._won(leader, history, sync, sent)
            except (DiskFull, NodeFailed) as error:
                await self._give_back(leader, replace(before, epoch=epoch), error)
                raise

    def _new_history(self, view: ClusterView, me: Member, epoch: int, cause: Cause, is_forced: bool) -> History:
        """The changes of the leader with ours, which goes on from the keys, or from what we know if they are too old.

        With an operator's order to lead in any case it also ends what the members that run know of other leaderships.
        """
        history, after = view.history, 0 if view.sync is None else view.sync.number
        if self.doubts_keys:
            history, after = self._known.history, self._known.number
        ends: dict[str, int] = {}
        for member in view.members.values():
            if member.stamp == history.stamp:
                after = max(after, member.number)
            elif member.stamp and is_forced:
                ends[member.stamp] = max(member.number, ends.get(member.stamp, 0))
        stamp = f"{me.session[:STAMP_CHARACTERS]}.{epoch}"
        time = self._wall().isoformat(timespec="milliseconds")
        return history.with_entry(EpochEntry(epoch, me.name, me.end, time, cause.value, stamp, after, ends))

    async def _find_out(self, leader: Leader) -> bool:
        """Whether a transaction without an answer was done. Raises CoordinatorError: then the next step finds out."""
        view = await self._read()
        return view.leader == leader

    async def _give_back(self, leader: Leader, before: Status, error: Exception) -> None:
        """Let another one lead at once: we have taken the lead, and our store could not be made a master's.

        ``before`` is how far the log of the leader before us was.
        """
        self._end_leadership(f"its store could not be made a master's: {error}")
        self._promised_until = max(self._promised_until, self._now() + self._keeper.ttl)
        status = replace(before, is_released=True, is_full=isinstance(error, DiskFull))
        key = self._prefix + LEADER
        with suppress(CoordinatorError):  # the key then ends with its lease, or with the next step
            await self._coordinator.transact(
                [Compare(key, CompareTarget.VALUE, encode(leader))],
                [Delete(key), Put(self._prefix + STATUS, encode(status))],
            )

    async def _won(self, leader: Leader, history: History, sync: SyncSet, sent: float) -> None:
        """We lead, as soon as the store is a master's. Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
        self._move(FailoverState.PROMOTING)
        self.reason = f"it makes its store a master's, epoch {leader.epoch}"
        cause = history.entries[-1].cause
        leadership = Leadership(leader.epoch, self._now, sent + self._keeper.ttl - self._config.margin)
        leadership.require(sync.members)
        self.leadership = leadership
        self._expire_later()
        self._history = history
        await self._note_own(leader.epoch, sync)
        try:
            view = await self._read()
        except (CoordinatorError, InvalidKey) as error:  # renewals may be answered again, and nobody else could lead
            self._end_leadership(f"the keys could not be read before the store was a master's: {error}")
            raise
        held = view.held(LEADER)
        if view.leader == leader and held is not None and leadership.is_held():
            self._created = held.create_revision
            self._tell_sessions(view)
            self._is_led = True
            await self._node.lead(leadership, cause)
            members = self._node.members
            if members is not None and leadership.is_held():
                self._sync = SyncSetKeeper(self._me.name, leadership, members, sync, self._now)
                self._move(FailoverState.LEADER)
                self.reason = f"it leads since {history.entries[-1].time}: {cause}"
                self._log.warn(
                    "this node leads, epoch {epoch}: {cause}",
                    event=Event.FAILOVER_LEADS,
                    epoch=leader.epoch,
                    cause=cause,
                )
                self._wake()
                return
        why = "the lease ended" if self.running else "the node stops"
        self._end_leadership(f"{why} before the store was a master's")

    # Leading

    async def _lead(self, view: ClusterView) -> None:
        """A step of the leader, after all keys were read."""
        leadership, held = self.leadership, view.held(LEADER)
        assert leadership is not None, "a leader has one"
        is_other = view.leader is not None and view.leader.session != self._me.session.hex()
        if is_other and view.leader is not None and view.leader.epoch >= leadership.epoch:
            self._end_leadership(f"{view.leader.node} leads, epoch {view.leader.epoch}")
            return  # a key of an older epoch comes from a coordinator that was set back: it is written again
        if not leadership.is_held():
            self._end_leadership(LEASE_OVER)
            return
        is_ours = held is not None and held.create_revision == self._created
        if not is_ours or self.doubts_keys or self._is_doubted(view):
            await self._write_again(view)
            return
        await self._restore_config(view)
        await self._register(view)
        self._tell_sessions(view)
        await self._lead_on()
        await self._obey(view)
        await self._make_room(view, self._node.facts().is_full)
        await self._publish_status(view)

    def _is_doubted(self, view: ClusterView) -> bool:
        """Whether a member of an older version waits for us to write our keys again."""
        return view.leader is not None and self._trust.floor(view) > view.leader.floor

    async def _lead_on(self) -> None:
        """Look at the members: add to the sync set those that hold everything, leave out those that fell behind."""
        leadership, keeper, members, view = self.leadership, self._sync, self._node.members, self.view
        if leadership is None or keeper is None or members is None or view is None:
            return
        if not leadership.is_held():
            self._end_leadership(LEASE_OVER)
            return
        if not keeper.is_settled:
            await self._settle(keeper, view)
            return
        found = keeper.look(self._node.facts().end, view.members, self._config)
        if found is not None:
            new = keeper.numbered(found, self._coordinator.cluster_id)
            keeper.attempt(new)
            await self._write_sync(keeper, view, new)

    async def _settle(self, keeper: SyncSetKeeper, view: ClusterView) -> None:
        """A transaction was not answered: find out what ``sync`` holds. ``view`` is newer than the transaction.

        If it does not hold what was sent, the transaction may still be on its way. So ``sync`` is written as it was:
        its revision changes, and the late transaction fails.
        """
        if view.sync is not None and keeper.has_attempted(view.sync):
            keeper.settled(view.sync)
        else:
            await self._write_sync(keeper, view, keeper.numbered(keeper.written, self._coordinator.cluster_id))

    async def _write_sync(self, keeper: SyncSetKeeper, view: ClusterView, new: SyncSet) -> None:
        """Write ``sync``, if we lead and it is as in ``view``. Raises CoordinatorError: then the outcome is unknown."""
        mine = Compare(self._prefix + LEADER, CompareTarget.CREATE, self._created)
        self._next_read = 0.0  # whatever becomes of it, the next step reads all keys
        done = await self._coordinator.transact([mine, view.unchanged(SYNC)], [Put(self._prefix + SYNC, encode(new))])
        if done.succeeded:
            await self._note_own(new.epoch, new)
            keeper.settled(new)
            self._log.info(
                "puts wait for {members}",
                event=Event.SYNC_SET,
                members=", ".join(sorted(new.members)) or "no member: this node alone holds the newest messages",
            )

    def _tell_sessions(self, view: ClusterView) -> None:
        assert self.leadership is not None, "a leader has one"
        self.leadership.sessions = {
            member.session: name for name, member in view.members.items() if name != self._me.name
        }

    async def _write_again(self, view: ClusterView) -> None:
        """Our keys are gone, or older than what we wrote, but the right to lead never ended: write them again."""
        leadership, keeper = self.leadership, self._sync
        assert leadership is not None, "a leader has one"
        assert keeper is not None, "a leader has one"
        lease = await self._keeper.grant()
        cluster_id, floor = self._coordinator.cluster_id, self._trust.floor(view)
        leader = Leader(self._me.name, self._me.session.hex(), leadership.epoch, cluster_id, floor)
        sync = keeper.numbered(keeper.written, cluster_id)
        keeper.attempt(sync)
        config = self._config_to_write(view)
        done = await self._coordinator.transact(
            [view.unchanged(name) for name in (LEADER, EPOCH, SYNC, CONFIG)],
            [
                Put(self._prefix + LEADER, encode(leader), lease),
                Put(self._prefix + EPOCH, encode(self._history)),
                Put(self._prefix + SYNC, encode(sync)),
                *config,
            ],
        )
        if done.succeeded:
            self._log.warn("the leader's keys are written again", event=Event.FAILOVER_KEYS_WRITTEN)
            self._tell_config(config)
            await self._note_own(leadership.epoch, sync)
            again = await self._read()
            held = again.held(LEADER)
            if again.leader == leader and again.sync == sync and held is not None:
                self._created = held.create_revision
                keeper.settled(sync)
        self._wake()

    def _config_to_write(self, view: ClusterView) -> list[Put]:
        """The settings, if the coordinator has lost them, or has older ones."""
        held, kept = view.held(CONFIG), self._known.config.encode()
        is_lost = held is None or (self.doubts_keys and held.value != kept)
        return [Put(self._prefix + CONFIG, kept)] if kept and is_lost else []

    async def _restore_config(self, view: ClusterView) -> None:
        """Write the settings if the coordinator has lost them. Raises CoordinatorError."""
        config = self._config_to_write(view)
        if config:
            mine = Compare(self._prefix + LEADER, CompareTarget.CREATE, self._created)
            done = await self._coordinator.transact([mine, view.unchanged(CONFIG)], config)
            if done.succeeded:
                self._tell_config(config)

    def _tell_config(self, written: list[Put]) -> None:
        for put in written:
            self._log.warn(
                "the cluster's settings are written again, because the coordinator had lost them: {settings}",
                event=Event.FAILOVER_SETTINGS_WRITTEN,
                settings=put.value.decode(),
            )

    async def _publish_status(self, view: ClusterView) -> None:
        members = self._node.members
        if members is None or self.leadership is None:
            return
        stamp = self._history.stamp
        status = Status(self.leadership.epoch, members.confirmed_offset, self._node.facts().end, stamp=stamp)
        if status != view.status:
            mine = Compare(self._prefix + LEADER, CompareTarget.CREATE, self._created)
            await self._coordinator.transact([mine], [Put(self._prefix + STATUS, encode(status))])

    # Orders

    async def _obey(self, view: ClusterView) -> None:
        """Do what an operator asks of the leader. Raises CoordinatorError."""
        order, keeper = view.request, self._sync
        if (
            order is None
            or order.order == Order.REINIT.value
            or keeper is None
            or self.state is not FailoverState.LEADER
        ):
            return
        refusal = self._refusal(view, order, keeper)
        if refusal is not None:
            await self._answer(view, order, False, refusal)
            return
        successors = {order.to} if order.to else keeper.written.members
        successor = order.to if order.force else await self._hand_over_log(await self._following_now(view, successors))
        if successor is None:
            names = ", ".join(sorted(successors))
            text = f"{names} did not answer, or did not have the whole log within {HAND_OVER_SECONDS:g} s"
            await self._answer(view, order, False, f"{text}: nothing was changed")
            return
        reason = Cause.FAILOVER if order.force else Cause.SWITCHOVER
        held = view.held(REQUEST)
        named = Put(self._prefix + REQUEST, encode(replace(order, to=successor)), 0 if held is None else held.lease)
        await self._give_up_lead(reason.value, [named])

    async def _make_room(self, view: ClusterView, is_full: bool) -> None:
        """Hand over if the disk is too full to take messages, and a member has room and the whole log."""
        keeper, members = self._sync, self._node.members
        if keeper is None or members is None or self.state is not FailoverState.LEADER:
            return
        if not is_full or view.request is not None or view.config.paused or view.sync is None:
            return
        end = self._node.facts().end
        names = keeper.written.members & view.sync.members & frozenset(view.members)
        successors = [name for name in names if members.holds(name, end)]
        if seconds_of_pause(view, self._wall()) == 0 and any(not view.members[name].is_full for name in successors):
            await self._give_up_lead(Cause.DISK_FULL.value, is_full=True)

    def _refusal(self, view: ClusterView, order: Request, keeper: SyncSetKeeper) -> str | None:
        """Why the leader does not hand over."""
        if order.to == self._me.name:
            # a member that knows more follows nobody before we lead in a newer epoch
            is_behind = view.newest_known > view.epoch or bool(view.doubters)
            return None if order.force and is_behind else f"{order.to} leads already"
        if order.force:
            return (
                None
                if order.to in view.members
                else f"{order.to or 'the successor'} is not there: name a member that runs"
            )
        if order.order == Order.FAILOVER.value:
            return f"{self._me.name} leads, and is alive: use rmqha cluster switchover. --force makes it stop leading"
        if order.to and order.to not in view.members:
            return f"{order.to} is no member that runs: {', '.join(sorted(view.members))} do"
        if order.to and view.members[order.to].no_failover:
            return f"{order.to} has the tag nofailover"
        if self._config.mode == Mode.SYNC.value and order.to and order.to not in keeper.written.members:
            return f"{order.to} does not hold every message yet: it is not in the sync set"
        if not order.to and not keeper.written.members:
            return "no member holds every message"
        return None

    async def _following_now(self, view: ClusterView, names: Collection[str]) -> list[str]:
        """Those of these members that answer: one that stands still could not lead, and nobody would for seconds.

        Any answer will do. A promise does not bind: the leader frees its members when it gives up the lead.
        """
        leadership, there = self.leadership, sorted(name for name in names if name in view.members)
        assert leadership is not None, "a leader has one"
        promise = Promise(self._me.name, leadership.epoch, self._me.session.hex(), ALIVE_SECONDS)
        answers = await DeferredList([Deferred.fromCoroutine(self._ask(view.members[name], promise)) for name in there])
        return [
            name for name, (success, promised) in zip(there, answers, strict=True) if success and promised is not None
        ]

    async def _hand_over_log(self, successors: Collection[str]) -> str | None:
        """Take no messages, and wait until one of these has the whole log. If none has in time, take messages again.

        Returns the one that has, None if none has. Of several it is the one with the highest priority.
        """
        leadership, members, view = self.leadership, self._node.members, self.view
        if leadership is None or members is None or view is None:
            return None
        leadership.hold_puts(True)
        deadline = self._now() + HAND_OVER_SECONDS
        while leadership.is_held() and self._now() < deadline:
            end = self._node.facts().end
            ready = [view.members[name] for name in successors if name in view.members and members.holds(name, end)]
            if ready:
                return max(ready, key=lambda member: (member.priority, member.name)).name
            await deferLater(self._clock, 0.01)
        leadership.hold_puts(False)
        return None

    async def _give_up_lead(self, reason: str, writes: Sequence[Put] = (), is_full: bool = False) -> None:
        """Stop leading, and tell the coordinator, so that another one need not wait for the lease to end."""
        members, leadership = self._node.members, self.leadership
        assert leadership is not None, "a leader has one"
        confirmed = 0 if members is None else members.confirmed_offset
        self._end_leadership(reason)  # first: nothing is promised after the coordinator knows it
        end, stamp = self._node.facts().end, self._history.stamp
        status = Status(leadership.epoch, confirmed, end, is_released=True, is_full=is_full, stamp=stamp)
        mine = Compare(self._prefix + LEADER, CompareTarget.CREATE, self._created)
        await self._coordinator.transact(
            [mine], [Delete(self._prefix + LEADER), Put(self._prefix + STATUS, encode(status)), *writes]
        )

    async def _release(self) -> None:
        """Hand over before the node stops. Raises CoordinatorError."""
        keeper = self._sync
        if keeper is not None and keeper.written.members:
            await self._hand_over_log(keeper.written.members)
        await self._give_up_lead("the node stops")

    async def _reinit(self, view: ClusterView, order: Request) -> None:
        """Copy the leader's log anew, once nobody counts on ours: ``sync`` must not name a member with an empty log.

        Raises CoordinatorError, DiskFull, NodeFailed.
        """
        if view.sync is None or self._me.name in view.sync.holders:
            self.reason = "it copies the leader's log anew as soon as the leader has left it out of the sync set"
            return
        await self._node.check_room()
        await self._answer(view, order, True, f"{self._me.name} sets its log aside, and copies that of the leader")
        self._following = None
        await self._node.reinit()
        self._wake()

    async def _answer(self, view: ClusterView, order: Request, is_done: bool, text: str) -> None:
        answer = Answer(order.id, is_done, text)
        await self._coordinator.transact([view.unchanged(REQUEST)], self._answering(answer))
        self._wake()

    def _answering(self, answer: Answer) -> list[Put | Delete]:
        return [Delete(self._prefix + REQUEST), Put(self._prefix + ANSWER, encode(answer))]

    # The right to lead

    def _renewed(self, sent: float) -> None:
        """The coordinator has renewed the lease; the renewal was sent then."""
        if self.leadership is not None and self.state in (FailoverState.LEADER, FailoverState.PROMOTING):
            self.leadership.extend(sent + self._keeper.ttl - self._config.margin)

    async def _unanswered(self, sent: float) -> None:
        """The coordinator does not answer: go on if all other members promise not to try for the lead."""
        leadership, view = self.leadership, self.view
        if self.state is not FailoverState.LEADER or leadership is None or view is None or not leadership.is_held():
            return
        asked = self._asked(leadership)
        sent, seconds = self._now(), float(self._keeper.ttl)
        promise = Promise(self._me.name, leadership.epoch, self._me.session.hex(), seconds)
        away = sorted(asked - frozenset(view.members))
        if away:
            self._log.warn(
                "{member} does not promise to wait: {reason}",
                event=Event.PROMISE_NOT_GIVEN,
                member=", ".join(away),
                reason="it was away when the coordinator answered last",
            )
            return
        answers = await DeferredList(
            [Deferred.fromCoroutine(self._ask(view.members[name], promise)) for name in sorted(asked)]
        )
        if all(success and promised for success, promised in answers) and leadership.required <= asked:
            leadership.extend(sent + seconds - self._config.margin)

    def _asked(self, leadership: Leadership) -> frozenset[str]:
        """Who must promise: all members that it has ever heard of.

        The keys as they are let only the sync set lead. But the coordinator may have gone back to keys that let another
        member lead, one that has not heard of the newer ones, and no put waits for that one.
        """
        return leadership.required | frozenset(self._known.members) - {self._me.name}

    async def _ask(self, member: Member, promise: Promise) -> bool | None:
        return await self._node.ask_promise(member, promise)

    def promise(self, promise: Promise) -> bool:
        """The leader asks us not to try for the lead for some time. Returns whether we promise it."""
        following = self._following
        if not self.running or self.state is not FailoverState.FOLLOWER or following is None:
            return False
        asked = (promise.leader, promise.epoch, promise.session)
        if asked != (following.name, following.hello.epoch, following.session) or promise.epoch != self._known.epoch:
            return False
        if not 0 < promise.seconds <= MAX_PROMISE_SECONDS:
            return False
        if self._node.facts().state not in CONNECTED:
            return False  # its messages do not come here: it cannot leave us out of ``sync``, and answers no put
        self._promised_until = max(self._promised_until, self._now() + promise.seconds)
        return True

    def _expire_later(self) -> None:
        """Look at the right to lead when it may have ended."""
        leadership = self.leadership
        if leadership is not None and not leadership.is_ended:
            self._expiry = self._clock.callLater(max(0.001, leadership.until - self._now()), self._look_at_right)

    def _look_at_right(self) -> None:
        self._expiry = None
        if self.leadership is not None and not self.leadership.is_held():
            self._end_leadership(LEASE_OVER)
        else:
            self._expire_later()

    def _end_leadership(self, reason: str) -> None:
        """Do not lead any more, from this moment on."""
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()
        self._expiry = None
        if self.leadership is None or self.leadership.is_ended:
            return
        self.leadership.end()
        self.reason = reason
        self._log.warn("this node does not lead any more: {reason}", event=Event.FAILOVER_FENCED, reason=reason)
        self._move(FailoverState.FENCED)
        self._node.fence()
        self._wake()

    async def _become_follower(self, view: ClusterView) -> None:
        """After the lead was lost: the store is a slave's again. Raises CoordinatorError, DiskFull, NodeFailed."""
        held = view.held(LEADER)
        if view.leader is not None and view.leader.session == self._me.session.hex() and held is not None:
            await self._remove_own_key(held.mod_revision)
        self._sync = None
        if self._is_led:
            await self._node.follow(None, await self._broker_id(view))
        self._is_led, self._following, self._follows_nobody = False, None, True
        self._move(FailoverState.FOLLOWER)
        self._wake()


def _kept_holders(view: ClusterView, cause: Cause) -> dict[str, Holder]:
    """The members that hold every message, and run: puts wait for them from the start.

    An old leader is none of them: it may have lost its end, and comes back by itself. An operator's failover may have
    chosen a node with less than they have.
    """
    if view.sync is None or cause is Cause.FAILOVER:
        return {}
    return {
        name: holder
        for name, holder in view.sync.holders.items()
        if name != view.sync.leader
        and name in view.members
        and view.members[name].is_intact(holder)
        and not view.members[name].no_failover
    }


def _older(view: ClusterView, known: Known) -> str:
    what = (
        f"the coordinator's keys, of epoch {view.epoch}, may be older than what the cluster has done (epoch "
        f"{max(known.epoch, view.newest_known)})"
    )
    if view.leader is not None:
        return (
            f"{what}: {view.leader.node}, which leads, may lack messages that this member or another one has. If it "
            "does not write its keys again by itself, name the node that is to lead, also if it leads already: rmqha "
            "cluster failover --to NAME --force"
        )
    away = away_members(view)
    if away:
        return (
            f"{what}: start {', '.join(away)}, then the node that led last leads. If a node is gone for good: "
            "rmqha cluster forget NAME. To go on without its messages: rmqha cluster failover --to NAME --force"
        )
    if view.config.paused:
        return f"{what}, and automatic failover is paused: rmqha cluster resume"
    return (
        f"{what}: the members find out whether the one that led last has most of the log. If that does not end: rmqha "
        "cluster failover --to NAME --force"
    )
