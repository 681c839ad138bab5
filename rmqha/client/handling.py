"""Gives messages to the handler of a push consumer: many at the same time, or each queue in its order."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from rmqha.client.consuming import ConsumerOptions, Handler, RetryLater
from rmqha.client.errors import ClientError
from rmqha.client.reading import QueueReader
from rmqha.client.received import BodyError, ReceivedMessage
from rmqha.client.retrying import SendBack
from rmqha.kit.events import Event
from rmqha.wire.record import Record

TURN_SECONDS = 0.01
"""After handlers took this long without giving up the reactor, others have their turn."""
SEND_BACK_AGAIN_SECONDS = 5.0
DEAD_LETTER = -1


class IHandlingOwner(Interface):
    """The consumer whose messages are handled."""

    def handler_ended(reader: QueueReader) -> None:
        """A handler has ended: there may be room, or a dropped queue has ended."""

    def has_lock(reader: QueueReader) -> bool:
        """Whether no other client can have the queue now. Only an ordered consumer is asked."""


class Handling(Protocol):
    """Gives messages to the handler."""

    def take(self, reader: QueueReader, records: Sequence[Record]) -> None:
        """These messages were pulled."""

    def go_on(self, reader: QueueReader) -> None:
        """The queue may be handled again: its lock is there."""

    def stop(self, grace_seconds: float) -> Deferred[None]:
        """Start no more handlers. Fires when the running ones have ended; they are cancelled after this time."""


class _Handlers(ABC):
    """What both kinds share: queues with waiting messages, running handlers, and turns of the reactor."""

    _log = Logger()

    def __init__(
        self,
        handler: Handler,
        options: ConsumerOptions,
        send_back: SendBack,
        clock: IReactorTime,
        owner: IHandlingOwner,
    ) -> None:
        self._handler = handler
        self._options = options
        self._send_back = send_back
        self._clock = clock
        self._owner = owner
        self._ready: deque[QueueReader] = deque()
        self._running: set[Deferred[None]] = set()
        self._handlers = 0
        self._is_stopping = self._is_cancelled = self._is_pumping = False
        self._next_turn: IDelayedCall | None = None

    @property
    def _has_place(self) -> bool:
        return self._handlers < self._options.concurrency and not self._is_stopping

    def _pump(self) -> None:
        """Start handlers while there are messages and places."""
        if self._is_pumping or self._next_turn is not None:
            return
        self._is_pumping = True
        until = self._clock.seconds() + TURN_SECONDS
        try:
            while self._has_place and self._start_next():
                if self._clock.seconds() >= until:
                    self._next_turn = self._clock.callLater(0, self._take_turn)
                    break
        finally:
            self._is_pumping = False

    def _take_turn(self) -> None:
        self._next_turn = None
        self._pump()

    @abstractmethod
    def _start_next(self) -> bool:
        """Start the next handler; whether there was anything to do."""

    def _run(self, reader: QueueReader, record: Record) -> None:
        reader.running += 1
        running = Deferred.fromCoroutine(self._handle(reader, record))
        self._running.add(running)

        def over(_: object) -> None:
            self._running.discard(running)
            reader.running -= 1
            self._owner.handler_ended(reader)
            self._pump()

        running.addErrback(self._ended).addBoth(over)

    def _ended(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("handling a message ended", failure, event=Event.HANDLING_FAILED)

    @abstractmethod
    async def _handle(self, reader: QueueReader, record: Record) -> None:
        """Call the handler, and deal with its failure."""

    async def _try(self, reader: QueueReader, record: Record, tries: int = 0) -> RetryLater | None:
        """Call the handler. Returns None if it has succeeded. Raises CancelledError if it was stopped."""
        self._handlers += 1
        try:
            message = ReceivedMessage.of(record, reader.queue, tries)
            await maybeDeferred(self._handler, message)
        except RetryLater as later:
            self._log.info(
                "{place} is to come again: {reason}", event=Event.MESSAGE_RETRY, place=_place(record), reason=str(later)
            )
            return later
        except CancelledError:
            if self._is_cancelled:
                raise
            return RetryLater("its handler was cancelled")
        except BodyError as error:
            self._log.error(
                "{place} has no handler called: {error}",
                event=Event.MESSAGE_BODY_INVALID,
                place=_place(record),
                error=str(error),
            )
            return RetryLater(str(error))
        except Exception as error:  # of any kind: the message was not handled
            self._log.failure("the handler failed with {place}", event=Event.HANDLER_FAILED, place=_place(record))
            return RetryLater(repr(error))
        finally:
            self._handlers -= 1
            self._pump()  # a place is free, also while the message is given back or waits for its next try
        return None

    async def _give_back(self, reader: QueueReader, record: Record, delay_level: int) -> None:
        """Give it back to a broker; try again until one takes it. Until then its offset is not passed."""
        while True:
            try:
                await self._send_back.send(reader.queue, record, delay_level)
            except ClientError as error:
                self._log.warn(
                    "{place} is not given back: {error}",
                    event=Event.MESSAGE_NOT_GIVEN_BACK,
                    place=_place(record),
                    error=str(error),
                )
            else:
                reader.finish(record)
                return
            if reader.is_dropped:
                return
            await deferLater(self._clock, SEND_BACK_AGAIN_SECONDS)

    def stop(self, grace_seconds: float) -> Deferred[None]:
        """Start no more handlers. Fires when the running ones have ended; they are cancelled after this time."""
        self._is_stopping = True
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        limit = self._clock.callLater(grace_seconds, self._cancel)
        ended = DeferredList(list(self._running))

        def over(_: object) -> None:
            if limit.active():
                limit.cancel()

        return ended.addCallback(over)

    def _cancel(self) -> None:
        self._log.warn(
            "{count} messages are not handled in time, and are left",
            event=Event.HANDLERS_LEFT,
            count=len(self._running),
        )
        self._is_cancelled = True
        for running in list(self._running):
            running.cancel()


def _place(record: Record) -> str:
    return f"message {record.queue_offset} of queue {record.queue_id} of {record.topic}"


class ConcurrentHandling(_Handlers):
    """Calls the handler for up to ``concurrency`` messages at the same time, in any order.

    A message whose handler fails is given back to its broker, or forgotten by a consumer that broadcasts.
    """

    def take(self, reader: QueueReader, records: Sequence[Record]) -> None:
        """These messages were pulled."""
        reader.waiting.extend(records)
        self._ready.extend([reader] * len(records))  # as often as it has waiting messages
        self._pump()

    def go_on(self, reader: QueueReader) -> None:
        """It never waits for locks."""

    def _start_next(self) -> bool:
        if not self._ready:
            return False
        reader = self._ready.popleft()
        if reader.waiting:  # else it was dropped
            self._run(reader, reader.waiting.popleft())
        return True

    async def _handle(self, reader: QueueReader, record: Record) -> None:
        later = await self._try(reader, record)
        if later is None or self._options.broadcasts:
            reader.finish(record)
        else:
            await self._give_back(reader, record, later.delay_level)


class OrderedHandling(_Handlers):
    """Calls the handler for one message of each queue at a time, in the order of the queue, while the queue is locked.

    A message whose handler fails is tried again after a pause. If it fails too often, it goes to the dead letters.
    """

    def __init__(
        self,
        handler: Handler,
        options: ConsumerOptions,
        send_back: SendBack,
        clock: IReactorTime,
        owner: IHandlingOwner,
    ) -> None:
        super().__init__(handler, options, send_back, clock, owner)
        self._busy: set[QueueReader] = set()  # ready, or running

    def take(self, reader: QueueReader, records: Sequence[Record]) -> None:
        """These messages were pulled."""
        reader.waiting.extend(records)
        self.go_on(reader)

    def go_on(self, reader: QueueReader) -> None:
        """The queue may be handled again: its lock is there."""
        if reader.waiting and reader not in self._busy:
            self._busy.add(reader)
            self._ready.append(reader)
            self._pump()

    def _start_next(self) -> bool:
        if not self._ready:
            return False
        reader = self._ready.popleft()
        if reader.waiting and self._owner.has_lock(reader):
            self._run(reader, reader.waiting.popleft())
        else:  # dropped, or it waits until its lock is renewed
            self._busy.discard(reader)
        return True

    async def _handle(self, reader: QueueReader, record: Record) -> None:
        try:
            await self._until_done(reader, record)
        finally:
            self._busy.discard(reader)
            self.go_on(reader)

    async def _until_done(self, reader: QueueReader, record: Record) -> None:
        tries, limit = 0, self._options.max_tries
        while (later := await self._try(reader, record, tries)) is not None:
            tries += 1
            if later.delay_level < 0 or (limit is not None and record.reconsume_times + tries > limit):
                await self._give_back(reader, record, DEAD_LETTER)
                return
            if self._is_stopping or reader.is_dropped:
                return
            await deferLater(self._clock, self._options.retry_pause_seconds)
            if self._is_stopping or reader.is_dropped:
                return
            if not self._owner.has_lock(reader):
                reader.waiting.appendleft(record)
                return
        reader.finish(record)
