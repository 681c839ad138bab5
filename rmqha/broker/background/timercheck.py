"""Keeps ``config/timercheck`` of a slave whose master of 5.x has timer messages.

A broker that starts on the slave's store needs it: see ``rmqha.store.timers``. The file is written when our log has
all that the master's had when it sent its check point. Before that our log may not have a message that the check point
calls delivered, and nobody would deliver it.
"""

from pathlib import Path

from rmqha.broker.background.held import Held
from rmqha.kit.threads import RunInThread
from rmqha.remoting.turns import Turns
from rmqha.store.messagestore import MessageStore
from rmqha.store.timers import TimerCheckPoint, finding_first_waiting
from rmqha.wire.timers import TIMER_QUEUE_ID, TIMER_TOPIC


class TimerCheckPoints:
    """Takes the master's check points, and writes ours."""

    def __init__(self, config: Path, store: MessageStore, turns: Turns, run_in_thread: RunInThread) -> None:
        self._config = config
        self._store = store
        self._turns = turns
        self._run_in_thread = run_in_thread
        self._held: Held[TimerCheckPoint] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether the log has timer messages. Raises OSError."""
        return self._store.reader.next_offset(TIMER_TOPIC, TIMER_QUEUE_ID) > 0

    @property
    def is_holding(self) -> bool:
        """Whether a check point waits until the log is flushed. It goes before later ones."""
        return self._held is not None

    def hold(self, point: TimerCheckPoint, log_end: int) -> None:
        """Let the master's check point wait. Its log ended there after it sent it."""
        self._held = Held(log_end, point)

    def forget_held(self) -> None:
        """The slave has another master now: a check point that waits is not for its log."""
        self._held = None

    async def write_if_flushed(self) -> None:
        """Write the check point that waits, if our log is flushed so far. Raises OSError."""
        held = self._held
        if held is None:
            return
        if held.needs_flush(self._store):
            self._store.flush()
        if not held.is_over(self._store) or self._store.derived.dispatcher.reput_offset < held.log_end:
            return
        self._held = None
        await self._write(held.thing)

    async def _write(self, point: TimerCheckPoint) -> None:
        queue = self._store.derived.queues.get(TIMER_TOPIC, TIMER_QUEUE_ID)
        if queue is None:
            return
        last = TimerCheckPoint.read(self._config, self._store.disk)  # it may have been set aside with the log
        start = 0 if last is None or last.last_read_ms > point.last_read_ms else last.queue_offset
        steps = finding_first_waiting(queue, self._store.reader.message_at, min(start, queue.max_offset), point)
        found = point.from_offset(await self._turns.run(steps), queue.max_offset)
        if found != last:
            await self._run_in_thread(lambda: self._put(found))

    def _put(self, point: TimerCheckPoint) -> None:
        point.write(self._config, self._store.disk)
