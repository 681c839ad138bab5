"""SlaveSynchronize: a slave copies its master's topics, groups and offsets (spec/remoting.md 9, spec/ha.md 10).

Every ten seconds the slave asks for four tables and replaces its own with them. A table that it cannot get, or cannot
read, stays as it is until the next time. state.json says whether the tables are in sync, separately from the log,
because the log may be in sync while the tables are not.

Two tables speak of the log: the delay offsets, and the progress of the transaction check among the consumer offsets.
They count only when our log is flushed up to where the master's ended after it sent them. If this slave were promoted
before, nobody would deliver a delayed message, or ask about a half message, that they have passed and our log still
has.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, gatherResults, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.broker.background.held import Held
from rmqha.broker.background.outerapi import MasterAddresses
from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.background.timercheck import TimerCheckPoints
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.connecting import reason_of
from rmqha.endpoints import fast_address_of
from rmqha.events import Event
from rmqha.ha.slave.contact import iso_of
from rmqha.remoting.asking import log_range, read_runtime_info
from rmqha.remoting.client import RemotingClient
from rmqha.remoting.protocol import RemotingError
from rmqha.remoting.turns import Turns
from rmqha.services import PeriodicService
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
from rmqha.wire.beans import unknown_fields
from rmqha.wire.command import RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_table_in_steps
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, TRANSACTION_GROUP

FIRST_SYNC_SECONDS = 3.0
SYNC_SECONDS = 10.0
MEMBER_SYNC_SECONDS = 1.0
"""The same in a failover cluster: what is not copied is lost when the slave takes over."""
MOST_OF_TIME = 0.05
"""How much of its time a slave spends at most on copying tables."""
MAX_ROWS = 1_000_000
TABLE_NAMES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topicConfigTable",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "offsetTable",
    RequestCode.GET_ALL_DELAY_OFFSET: "offsetTable",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
}
"""The JSON key of each table's rows."""

PROGRESS_OF_TRANSACTIONS = tuple(topic_at_group(topic, TRANSACTION_GROUP) for topic in (HALF_TOPIC, OPERATION_TOPIC))
"""The rows of the consumer offsets that belong to a place in the log."""

Connect = Callable[[str], IStreamClientEndpoint]
"""Makes an endpoint from an address. Raises ValueError for an invalid address."""
Take = Callable[[Any], Awaitable[None]]
"""Replaces a table by one in Java's form. Raises ValueError."""


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

    async def timer_check_point(self) -> bytes:
        """The check point of a 5.x master's timer wheel. Raises what ``log_end`` raises."""
        return (await self._main.call(RequestCode.GET_TIMER_CHECK_POINT)).body

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
    ``own_address`` is the slave itself. ``is_member`` is for a member of a failover cluster.
    """

    connect: Connect
    own_address: Callable[[], str]
    configured_address: str | None = None
    is_member: bool = False


class SlaveSynchronize(PeriodicService):
    """Copies the tables of the master, whose address is from a name server or configured, while it is known."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        tables: BrokerTables,
        schedule: ScheduleMessageService,
        lookup: MasterLookup,
        clock: IReactorTime,
        timers: TimerCheckPoints | None = None,
    ) -> None:
        seconds = MEMBER_SYNC_SECONDS if lookup.is_member else SYNC_SECONDS
        first_after = MEMBER_SYNC_SECONDS if lookup.is_member else FIRST_SYNC_SECONDS
        super().__init__("copying the master's tables", seconds, self._synchronize, clock, first_after=first_after)
        self._is_member = lookup.is_member
        self._rests_until = 0.0
        self._store = store
        self._held_progress: Held[ConsumerOffsetTable] | None = None
        """The progress of the transaction check that counts when our log is flushed up to an offset."""
        self._timers = timers
        self._topics = tables.topics
        self._groups = tables.groups
        self._consumer_offsets = tables.consumer_offsets
        self._schedule = schedule
        self._connect = lookup.connect
        self._own_address = lookup.own_address
        self._clock = clock
        self._turns = Turns(clock)
        self._configured_address = lookup.configured_address
        self._found_address: str | None = None
        self._master: MasterClient | None = None
        self._master_address: str | None = None
        self._failing: dict[RequestCode, str] = {}
        self._in_sync: bool | None = None
        self._in_sync_since = time.time()
        self._running: Deferred[None] | None = None

    @property
    def master_address(self) -> str | None:
        """The address that the tables are copied from; None while it is unknown."""
        address = self._found_address or self._configured_address
        return None if address == self._own_address() else address

    def master_found(self, addresses: MasterAddresses) -> None:
        """Take the master's address from a name server; None in it if there is no master."""
        self._found_address = addresses.master_addr

    def stopService(self) -> Deferred[None]:
        """Synchronise no more; fires when all connections are closed."""
        if self._running is not None:
            self._running.cancel()
        return super().stopService().addCallback(lambda _: Deferred.fromCoroutine(self._follow(None)))

    def _synchronize(self) -> Deferred[None]:
        begun = self._clock.seconds()
        if begun < self._rests_until:
            return succeed(None)

        def rest(result: Any) -> Any:
            if self._is_member:
                now = self._clock.seconds()
                self._rests_until = now + min(SYNC_SECONDS, (now - begun) / MOST_OF_TIME)
            return result

        self._running = Deferred.fromCoroutine(self.synchronize())
        return self._running.addErrback(self._ended).addBoth(rest)

    def _ended(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("copying the master's tables failed", failure, event=Event.TABLES_SYNC_FAILED)

    async def synchronize(self) -> None:
        """Copy all tables now, if the master's address is known."""
        await self._follow(self.master_address)
        if self._master is None:
            return
        failing: dict[RequestCode, str] = {}
        for code, take in self._tables().items():
            try:
                await take(await self._master.ask(code))
            except CancelledError:
                raise
            except Exception as error:  # of any kind: the other tables are still copied
                failing[code] = reason_of(error)
        if self._timers is not None and self._timers.is_needed:
            await self._copy_timers(self._timers, self._master, failing)
        self._judge(failing)

    @staticmethod
    async def _copy_timers(timers: TimerCheckPoints, master: MasterClient, failing: dict[RequestCode, str]) -> None:
        """Copy the timer check point of a 5.x master. A master without a timer wheel does not know the request."""
        code = RequestCode.GET_TIMER_CHECK_POINT
        try:
            await timers.take(await master.timer_check_point(), master.log_end)
        except CancelledError:
            raise
        except RemotingError as error:
            if error.answer is None or error.answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                failing[code] = reason_of(error)
        except Exception as error:  # of any kind: it is asked for again
            failing[code] = reason_of(error)

    def _tables(self) -> Mapping[RequestCode, Take]:
        """The functions that take each table, in the order of the requests."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._take_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._take_consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._take_delay_offsets,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._take_groups,
        }

    async def _follow(self, address: str | None) -> None:
        """Keep connections to the master at this address only; None for no connection."""
        if address == self._master_address:
            return
        former, self._master, self._master_address = self._master, None, address
        self._held_progress = None
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
        await self._take_held_progress()
        if progress and self._held_progress is None:
            assert self._master is not None, "it has just sent the table"
            held = ConsumerOffsetTable(progress, unknown=table.unknown)
            self._held_progress = Held(await self._master.log_end(), held)
            await self._take_held_progress()
        await self._consumer_offsets.persist()

    async def _take_held_progress(self) -> None:
        """Take the progress of the transaction check that waits, if our log is flushed as far as it belongs to."""
        held, log = self._held_progress, self._store.commit_log
        if held is None:
            return
        if held.needs_flush(log):
            await self._store.flushed()
        if held.is_over(log):
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
