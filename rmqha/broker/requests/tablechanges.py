"""Tells slaves of ours when topics, groups or deletions change, so that they copy them at once (spec/remoting.md 2.25).

A question is held until something changes, so an idle slave costs a small answer a second, and a change costs each
slave one copy. A slave asks for the tables themselves as Java's do.
"""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as WaitedInVain
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.broker.requests.admin import WholeTable
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.configmanager import ITableObserver
from rmqha.remoting.header import Header
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.slavefields import AWAITED, DELETED, HOLD_MS, MIN_OFFSET

MAX_HOLD_MS = 5_000
MAX_HELD_QUESTIONS = 256
"""Further questions are answered at once."""


class _Counted(NamedTuple):
    """The number of changes of each table."""

    topics: int
    groups: int
    deleted: int
    offsets: int


@implementer(ITableObserver)
class TableChangesProcessor:
    """Answers AWAIT_TABLE_CHANGES."""

    def __init__(self, tables: CopiedTables, store: MessageStore, clock: IReactorTime) -> None:
        self._tables = tables
        self._store = store
        self._clock = clock
        self._run = secrets.token_hex(8)
        """Numbers of changes count in this run of the broker only."""
        self._deleted = WholeTable(tables.deleted)
        self._waiting: set[Deferred[None]] = set()
        self._is_waking = False
        for table in (tables.topics, tables.groups, tables.deleted):
            table.subscribe(self)

    def processors(self) -> Processors:
        """By request code."""
        return {RequestCode.AWAIT_TABLE_CHANGES: self.await_changes}

    def await_changes(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The versions of the tables, as soon as one of them is not the slave's, or after ``holdMs``.

        The body has the deleted topics if their version is not the slave's.
        """
        header = Header(request)
        known = {name: header.text(name, "") for name in AWAITED}
        hold_ms = max(0, min(header.integer(HOLD_MS, default=0), MAX_HOLD_MS))
        return Deferred.fromCoroutine(self._answer_later(connection, known, hold_ms))

    async def _answer_later(
        self, connection: RemotingProtocol, known: Mapping[str, str], hold_ms: int
    ) -> RemotingCommand:
        if hold_ms and len(self._waiting) < MAX_HELD_QUESTIONS and self._is_same(known):
            await self._next_change(hold_ms / 1000)
        versions = self._versions()
        body = b"" if versions[DELETED] == known[DELETED] else await self._deleted.encoded(connection.turns)
        return RemotingCommand(
            ResponseCode.SUCCESS, ext_fields={**versions, MIN_OFFSET: str(self._store.commit_log.min_offset)}, body=body
        )

    def _versions(self) -> dict[str, str]:
        tables = self._tables
        counted = _Counted(
            tables.topics.changes, tables.groups.changes, tables.deleted.changes, tables.consumer_offsets.changes
        )
        return {name: f"{self._run}-{number}" for name, number in counted._asdict().items()}

    def _is_same(self, known: Mapping[str, str]) -> bool:
        versions = self._versions()
        return all(versions[name] == version for name, version in known.items())

    def _next_change(self, seconds: float) -> Deferred[None]:
        waiting: Deferred[None] = Deferred()
        self._waiting.add(waiting)

        def ended(result: Failure | None) -> Failure | None:
            self._waiting.discard(waiting)
            return None if isinstance(result, Failure) and result.check(WaitedInVain) else result

        return waiting.addTimeout(seconds, self._clock).addBoth(ended)

    def table_changed(self, row: object | None) -> None:
        """Answer in the next turn: an administrator's list changes many rows in one."""
        if self._waiting and not self._is_waking:
            self._is_waking = True
            self._clock.callLater(0, self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        for waiting in list(self._waiting):
            waiting.callback(None)
