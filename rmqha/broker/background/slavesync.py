"""SlaveSynchronize: a slave copies its master's topics, groups and offsets (spec/remoting.md 9, spec/ha.md 10).

The slave asks for four tables and replaces its own with them. A master of ours tells it which of them have changed
(AWAIT_TABLE_CHANGES): new topics, groups and deletions come at once, offsets within a second. A Java master is asked
every ten seconds, and within a second if a message came of a topic that our table does not have.

A table that the slave cannot get, or cannot read, stays as it is until the next time. state.json says whether the
tables are in sync, separately from the log, because the log may be in sync while the tables are not.

Two tables speak of the log: the delay offsets, and the progress of the transaction check among the consumer offsets.
They count only when our log is the beginning of the master's, and flushed up to where that one ended after it sent
them. If this slave were promoted before, nobody would deliver a delayed message, or ask about a half message, that they
have passed and our log still has.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, gatherResults, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.broker.addresses import MasterAddresses, OwnAddresses
from rmqha.broker.background.held import Held
from rmqha.broker.background.restarts import RestartJudge
from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.background.timercheck import TimerCheckPoints
from rmqha.broker.interfaces import NO_NODE, Connect, IBrokersNode
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.groups import TOOLS_CONSUMER_GROUP
from rmqha.ha.slave.contact import iso_of
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.net.endpoints import fast_address_of
from rmqha.remoting.asking import log_range, read_runtime_info
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.client import RemotingClient
from rmqha.remoting.turns import Turns
from rmqha.store.deletions import DeletedTopicTable
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import (
    DATA_VERSION,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    NamedTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    topic_at_group,
)
from rmqha.store.nodestate import TOPICS_UP_TO
from rmqha.store.timers import TimerCheckPoint
from rmqha.wire import slavefields
from rmqha.wire.beans import unknown_fields
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient, loads_table_in_steps
from rmqha.wire.record import Blank, decode_record
from rmqha.wire.requestfields import SUBSCRIPTION_FLAG
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, TRANSACTION_GROUP

FIRST_LOOK_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""How often a slave looks whether it is time to ask, and how long a master of ours holds a question."""
SYNC_SECONDS = 10.0
"""How often a master is asked that does not tell of changes."""
MEMBER_SYNC_SECONDS = 1.0
"""The same in a failover cluster: what is not copied is lost when the slave takes over."""
MOST_OF_TIME = 0.05
"""How much of its time a slave spends at most on copying tables."""
ANSWER_SECONDS = 5.0
"""How long a slave waits for the answer to a question that may be held."""
LEAST_REST_SECONDS = 0.1
MAX_UNKNOWN = 1000
"""How many topics without a row, of which messages came, let the master be asked before its time."""
MAX_ROWS = 1_000_000
TABLE_NAMES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topicConfigTable",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "offsetTable",
    RequestCode.GET_ALL_DELAY_OFFSET: "offsetTable",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
}
"""The tables, in the order of the requests, with the JSON key of each table's rows."""
VERSION_NAMES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: slavefields.TOPICS,
    RequestCode.GET_ALL_CONSUMER_OFFSET: slavefields.OFFSETS,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: slavefields.GROUPS,
}
"""The name of each table's version, if a master of ours tells it."""

PROGRESS_OF_TRANSACTIONS = tuple(topic_at_group(topic, TRANSACTION_GROUP) for topic in (HALF_TOPIC, OPERATION_TOPIC))
"""The rows of the consumer offsets that belong to a place in the log."""

PULL_OF_ONE = {
    "consumerGroup": TOOLS_CONSUMER_GROUP,
    "maxMsgNums": "1",
    "sysFlag": str(SUBSCRIPTION_FLAG),
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}
"""What a pull of one message has besides its place. Each broker knows the group."""


class MasterClient:
    """Connections to a master's main port and, if its address gives one, to its fast port."""

    def __init__(self, address: str, connect: Connect, clock: IReactorTime) -> None:
        """Raises ValueError for an invalid address."""
        fast_address = fast_address_of(address)
        self._turns = Turns(clock)
        self._main = RemotingClient(connect(address), clock)
        self._fast = None if fast_address is None else RemotingClient(connect(fast_address), clock)
        for client in self._clients:
            client.start()

    @property
    def _clients(self) -> list[RemotingClient]:
        return [self._main] if self._fast is None else [self._main, self._fast]

    async def ask(self, code: RequestCode) -> Any:
        """A table, in Java's form. Raises RemotingError, TimeoutError, ValueError or what connecting raises."""
        if code == RequestCode.GET_ALL_TOPIC_CONFIG and self._fast is not None:
            try:
                return await self._ask(self._fast, code)
            except CancelledError:
                raise
            except Exception:  # of any kind: the main port answers the same
                pass
        return await self._ask(self._main, code)

    async def log_end(self) -> int:
        """Where the master's log ends. Raises RemotingError, TimeoutError or what connecting raises."""
        return log_range(read_runtime_info(await self._main.call(RequestCode.GET_BROKER_RUNTIME_INFO)))[1]

    async def await_changes(self, known: Mapping[str, str], hold_seconds: float) -> RemotingCommand:
        """The versions of the tables, once they are not those that are known. Raises what ``log_end`` raises."""
        fields = {**known, slavefields.HOLD_MS: str(int(hold_seconds * 1000))}
        return await self._main.call(RequestCode.AWAIT_TABLE_CHANGES, fields, timeout=ANSWER_SECONDS)

    async def timer_check_point(self) -> bytes:
        """The check point of a 5.x master's timer wheel. Raises what ``log_end`` raises."""
        return (await self._main.call(RequestCode.GET_TIMER_CHECK_POINT)).body

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that comes next in a queue, 0 if there is no such queue. Raises what ``log_end`` raises."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        return int((await self._main.call(RequestCode.GET_MAX_OFFSET, fields)).ext_fields["offset"])

    async def place_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the message at a queue offset is in the log. Raises what ``log_end`` raises, or ValueError."""
        fields = {**PULL_OF_ONE, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
        record = decode_record((await self._main.call(RequestCode.PULL_MESSAGE, fields)).body)
        if isinstance(record, Blank):
            raise ValueError("the master sent the end of a segment in place of a message")
        return record.physical_offset

    async def _ask(self, client: RemotingClient, code: RequestCode) -> Any:
        """Ask, and parse the rows in turns, because a table may be as large as a frame."""
        body, name = (await client.call(code)).body, TABLE_NAMES[code]
        content, rows = await self._turns.run(loads_table_in_steps(body, name, MAX_ROWS))
        return {**content, name: rows} if rows else content

    def stop(self) -> Deferred[list[None]]:
        """Disconnect."""
        return gatherResults([client.stop() for client in self._clients])


@dataclass(frozen=True, slots=True)
class MasterLookup:
    """How a slave finds its master's remoting port.

    ``configured_address`` counts while no name server knows of a master. A master at
    our ``own`` address is the slave itself. ``is_member`` is for a member of a failover cluster.
    """

    connect: Connect
    own: OwnAddresses
    configured_address: str | None = None
    is_member: bool = False
    node: IBrokersNode = NO_NODE


class SlaveSynchronize(PeriodicService):
    """Copies the tables of the master, whose address is from a name server or configured, while it is known."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        tables: CopiedTables,
        schedule: ScheduleMessageService,
        lookup: MasterLookup,
        clock: IReactorTime,
        timers: TimerCheckPoints | None = None,
    ) -> None:
        super().__init__(
            "copying the master's tables", LOOK_SECONDS, self._synchronize, clock, first_after=FIRST_LOOK_SECONDS
        )
        self._seconds = MEMBER_SYNC_SECONDS if lookup.is_member else SYNC_SECONDS
        self._rests_until = self._regular_at = 0.0
        self._is_hurried = False
        """Whether the log shows something that the master is asked about before its time."""
        self._tells_changes: bool | None = None
        """Whether the master tells of changes: a Java broker does not. None: not asked yet."""
        self._versions: Mapping[str, str] = {}
        """The versions of the master's tables, as it sent them last; empty if it sends none."""
        self._changes_problem: str | None = None
        self._taken: dict[str, str] = {}
        """The versions of the tables that were copied."""
        self._log_end_before = 0
        """Where our log ended before we asked for these versions."""
        self._unknown_topics: set[str] = set()
        """Topics of messages that were not in the table since the last regular look."""
        self._store = store
        self._restart_judge = RestartJudge(store)
        store.subscribe(self._message_arrived)
        store.on_restart(self._found_restart)
        self._held_progress: Held[ConsumerOffsetTable] | None = None
        """The progress of the transaction check that counts when our log is flushed up to an offset."""
        self._timers = timers
        self._deleted = tables.deleted
        self._topics = tables.topics
        self._groups = tables.groups
        self._consumer_offsets = tables.consumer_offsets
        self._schedule = schedule
        self._connect = lookup.connect
        self._own = lookup.own
        self._clock = clock
        self._turns = Turns(clock)
        self._configured_address = lookup.configured_address
        self._found_address: str | None = None
        self._master: MasterClient | None = None
        self._master_address: str | None = None
        self._failing: dict[RequestCode, str] = {}
        self._node = lookup.node
        self._in_sync: bool | None = None
        self._in_sync_since = time.time()
        self._running: Deferred[None] | None = None

    @property
    def master_address(self) -> str | None:
        """The address that the tables are copied from; None while it is unknown."""
        address = self._found_address or self._configured_address
        return None if address == self._own.broker_addr else address

    def master_found(self, addresses: MasterAddresses) -> None:
        """Take the master's address from a name server; None in it if there is no master."""
        former, self._found_address = self.master_address, addresses.master_addr
        if self.master_address != former:
            self._forget_held()

    def _forget_held(self) -> None:
        """What waits for a place in the log of a former master is not for that of another one."""
        self._held_progress = None
        self._schedule.forget_held()
        if self._timers is not None:
            self._timers.forget_held()

    def stopService(self) -> Deferred[None]:
        """Synchronise no more; fires when all connections are closed."""
        if self._running is not None:
            self._running.cancel()
        return super().stopService().addCallback(lambda _: Deferred.fromCoroutine(self._follow(None)))

    def _synchronize(self) -> Deferred[None]:
        now = self._clock.seconds()
        if now < self._rests_until and not self._is_hurried:
            return succeed(None)
        if now >= self._regular_at:
            self._regular_at = now + self._seconds - LOOK_SECONDS / 2
            self._unknown_topics.clear()
        self._running = Deferred.fromCoroutine(self._follow_changes())
        return self._running.addErrback(self._ended)

    async def _follow_changes(self) -> None:
        """Copy the tables, and go on while the master tells of changes."""
        self._is_hurried = False
        while True:
            await self._follow(self.master_address)
            if self._master is None:
                return
            await self._await_changes(self._master)
            begun = self._clock.seconds()
            await self.synchronize()
            now = self._clock.seconds()
            rest = max(LEAST_REST_SECONDS, min(SYNC_SECONDS, (now - begun) / MOST_OF_TIME))
            if not self._tells_changes:
                self._rests_until = max(self._regular_at, now + rest)
                return
            await deferLater(self._clock, rest)

    async def _await_changes(self, master: MasterClient) -> None:
        """Wait until a table has changed, or for a second, and take the deletions. Does not wait for a Java master."""
        self._log_end_before = self._store.commit_log.verified_offset
        self._changes_problem = None
        if self._tells_changes is not False:
            await self._ask_for_changes(master)
        if self._tells_changes is False and self._store.restarts:
            await self._judge_restarts(master)

    async def _judge_restarts(self, master: MasterClient) -> None:
        """Take what a Java master has deleted. What fails is tried again at the next look."""
        try:
            await self._take_topics(await master.ask(RequestCode.GET_ALL_TOPIC_CONFIG))
        except CancelledError:
            raise
        except Exception:  # of any kind: ``synchronize`` asks for the table too, and tells why it failed
            return
        judged, ends = await self._restart_judge.judge(master, self._topics.table.data_version.timestamp)
        try:
            await self._deleted.found(ends)
        except OSError as error:  # the disk may be full
            self._changes_problem = reason_of(error)
        else:
            self._store.restarts.drop(judged)  # dispatch comes to later ones after the marks in a later turn

    async def _ask_for_changes(self, master: MasterClient) -> None:
        known = {name: self._taken[name] for name in slavefields.AWAITED if name in self._taken}
        failing = None
        try:
            answer = await master.await_changes(known, LOOK_SECONDS)
            self._tells_changes = True
            self._store.restarts.clear()  # it tells where it has deleted them
            self._versions = answer.ext_fields
            if answer.body:
                table = await self._turns.run(DeletedTopicTable.reading(loads_lenient(answer.body)))
                await self._deleted.follow(table, int(answer.ext_fields[slavefields.MIN_OFFSET]))
            self._taken[slavefields.DELETED] = answer.ext_fields[slavefields.DELETED]
        except CancelledError:
            raise
        except RemotingError as error:
            is_unknown = error.answer is not None and error.answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._tells_changes, self._versions = (False if is_unknown else None), {}
            failing = None if is_unknown else reason_of(error)
        except Exception as error:  # of any kind: it is asked for again
            self._tells_changes, self._versions = None, {}
            failing = reason_of(error)
        self._changes_problem = failing

    def _found_restart(self, request: DispatchRequest) -> None:
        """A Java master does not tell that it has deleted a topic, but its next message there has queue offset 0."""
        if not self._tells_changes:  # it may be a Java master that we ask later
            self._store.restarts.add(request)
            self._is_hurried = True

    def _message_arrived(self, request: DispatchRequest, _: int) -> None:
        """A Java master does not tell of a new topic, but its first message does: ask for the table soon."""
        topic = request.topic
        if (
            topic not in self._topics.table.rows
            and topic not in self._unknown_topics
            and len(self._unknown_topics) < MAX_UNKNOWN
        ):
            self._unknown_topics.add(topic)
            self._is_hurried = True

    def _ended(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("copying the master's tables failed", failure, event=Event.TABLES_SYNC_FAILED)

    async def synchronize(self) -> None:
        """Copy all tables now that have changed, if the master's address is known."""
        await self._follow(self.master_address)
        if self._master is None:
            return
        if self._changes_problem is not None:
            self._judge(dict.fromkeys(TABLE_NAMES, self._changes_problem))
            return
        failing: dict[RequestCode, str] = {}
        for code in TABLE_NAMES:
            try:
                await self._copy_if_changed(self._master, code)
            except CancelledError:
                raise
            except Exception as error:  # of any kind: the other tables are still copied
                failing[code] = reason_of(error)
        await self._take_held_progress()
        if RequestCode.GET_ALL_TOPIC_CONFIG not in failing:
            await self._topics.written()
            if self._store.has_masters_log:  # messages of ours alone may have topics that the master does not know
                self._store.topics_up_to = self._log_end_before
        if failing:
            self._tells_changes = None
        if self._timers is not None and self._timers.is_needed:
            await self._copy_timers(self._timers, self._master, failing)
        self._judge(failing)

    async def _copy_if_changed(self, master: MasterClient, code: RequestCode) -> None:
        """Copy a table, unless the master says that it is the one that we took last."""
        name = VERSION_NAMES.get(code, "")
        version = self._versions.get(name)
        if version is None or self._taken.get(name) != version:
            self._taken.pop(name, None)
            await self._take(code, await master.ask(code))
            if version is not None:
                self._taken[name] = version

    @staticmethod
    async def _copy_timers(timers: TimerCheckPoints, master: MasterClient, failing: dict[RequestCode, str]) -> None:
        """Copy the timer check point of a 5.x master. A master without a timer wheel does not know the request."""
        code = RequestCode.GET_TIMER_CHECK_POINT
        try:
            point = TimerCheckPoint.parse(await master.timer_check_point())
            if not timers.is_holding:
                timers.hold(point, await master.log_end())
            await timers.write_if_flushed()
        except CancelledError:
            raise
        except RemotingError as error:
            if error.answer is None or error.answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                failing[code] = reason_of(error)
        except Exception as error:  # of any kind: it is asked for again
            failing[code] = reason_of(error)

    async def _take(self, code: RequestCode, content: Any) -> None:
        """Replace a table by the master's, which is in Java's form. Raises ValueError."""
        if code is RequestCode.GET_ALL_TOPIC_CONFIG:
            await self._take_topics(content)
        elif code is RequestCode.GET_ALL_CONSUMER_OFFSET:
            await self._take_consumer_offsets(content)
        elif code is RequestCode.GET_ALL_DELAY_OFFSET:
            await self._take_delay_offsets(content)
        else:
            await self._take_groups(content)

    async def _follow(self, address: str | None) -> None:
        """Keep connections to the master at this address only; None for no connection."""
        if address == self._master_address:
            return
        former, self._master, self._master_address = self._master, None, address
        self._tells_changes, self._versions, self._changes_problem = None, {}, None
        self._taken.clear()
        self._forget_held()
        if former is not None:
            await former.stop()
        if address is not None:
            self._failing.clear()
            self._log.info(
                "copying the tables of the master at {address}", event=Event.TABLES_SYNC_STARTED, address=address
            )
            try:
                self._master = MasterClient(address, self._connect, self._clock)
            except ValueError as error:
                self._log.error(
                    "no tables are copied from {address}: {error}",
                    event=Event.TABLES_ADDRESS_INVALID,
                    address=address,
                    error=str(error),
                )

    def _judge(self, failing: dict[RequestCode, str]) -> None:
        """Log once which tables are not copied, those with the same reason together."""
        in_sync = not failing
        if in_sync is not self._in_sync:
            self._in_sync, self._in_sync_since = in_sync, time.time()
            self._node.tables_in_sync_changed()
        new = {code: reason for code, reason in failing.items() if code not in self._failing}
        for reason in dict.fromkeys(new.values()):
            tables = [code.name for code in new if new[code] == reason]
            self._log.warn(
                "{tables} of the master at {address} {are} not copied: {reason}",
                event=Event.TABLES_NOT_COPIED,
                tables=", ".join(tables),
                are="is" if len(tables) == 1 else "are",
                address=self._master_address,
                reason=reason,
            )
        again = [code.name for code in self._failing if code not in failing]
        if again:
            self._log.info(
                "copied from the master again: {tables}", event=Event.TABLES_COPIED_AGAIN, tables=", ".join(again)
            )
        self._failing = failing

    def facts(self) -> dict[str, Any]:
        """Whether topics, groups and offsets equal the master's (None: not asked yet), since when, and why not."""
        reasons = dict.fromkeys(self._failing.values())
        return {
            "inSync": self._in_sync,
            "since": iso_of(self._in_sync_since),
            "reason": "; ".join(reasons) if self._failing else None,
            **({} if self._store.topics_up_to is None else {TOPICS_UP_TO: self._store.topics_up_to}),
        }

    @staticmethod
    def _is_known(content: Any, ours: NamedTable[Any]) -> bool:
        """Whether the table has the version that we have, and the same unknown fields. Then its rows are ignored."""
        if not isinstance(content, dict) or DataVersion.from_json(content.get(DATA_VERSION)) != ours.data_version:
            return False
        return unknown_fields(ours.KNOWN, content) == ours.unknown

    async def _take_topics(self, content: Any) -> None:
        if self._is_known(content, self._topics.table):
            return
        table = await self._turns.run(TopicConfigTable.reading(content))
        self._topics.replace(table)

    async def _take_consumer_offsets(self, content: Any) -> None:
        table = await self._turns.run(ConsumerOffsetTable.reading(content))
        rows = table.offset_table
        progress = {key: rows.pop(key) for key in PROGRESS_OF_TRANSACTIONS if key in rows}
        await self._turns.run(self._consumer_offsets.merging(table))
        await self._take_held_progress()  # the one that waited goes first
        if progress and self._held_progress is None:
            assert self._master is not None, "it has just sent the table"
            held = ConsumerOffsetTable(progress, unknown=table.unknown)
            self._held_progress = Held(await self._master.log_end(), held)
            await self._take_held_progress()
        await self._consumer_offsets.persist()

    async def _take_held_progress(self) -> None:
        """Take the progress of the transaction check that waits, if our log is flushed as far as it belongs to."""
        held = self._held_progress
        if held is None:
            return
        if held.needs_flush(self._store):
            await self._store.flushed()
        if held.is_over(self._store):
            self._held_progress = None
            await self._turns.run(self._consumer_offsets.merging(held.thing))

    async def _take_delay_offsets(self, content: Any) -> None:
        table = DelayOffsetTable.from_json(content)
        assert self._master is not None, "it has just sent the table"
        self._schedule.replace(table, await self._master.log_end())

    async def _take_groups(self, content: Any) -> None:
        if self._is_known(content, self._groups.table):
            return
        table = await self._turns.run(SubscriptionGroupTable.reading(content))
        self._groups.replace(table)
