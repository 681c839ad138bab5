"""What a slave asks about its master's log: on the remoting port, or else by a probe of the HA port."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from twisted.internet.defer import CancelledError
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger

from rmqha.ha.slave.attempts import Attempts
from rmqha.ha.slave.contact import Contact
from rmqha.ha.slave.probe import probe_last_segment
from rmqha.ha.slave.protocol import HASlaveFactory
from rmqha.ha.slave.replica import MasterView, Misfit, UnsupportedMaster
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.store.messagestore import MessageStore
from rmqha.wire.brokerinfo import settling_seconds

ACL_WORDS = ("aclexception", "no accesskey", "accesskey is configured", "acl")
MORE_QUESTIONS = 2
"""How often a slave without a log asks again in all, if its master does not answer in time."""


@dataclass(frozen=True, slots=True)
class MasterAccess:
    """How a slave reaches its master.

    ``endpoint`` leads to the HA port. ``view`` asks the remoting port, for the segment size too if it is called with
    True; None if there is no such port. ``address`` gives the address of the HA port, if it is known, for log lines.
    """

    endpoint: IStreamClientEndpoint
    view: Callable[[bool], Awaitable[MasterView]] | None = None
    address: Callable[[], str | None] = lambda: None


class MasterQuestions:
    """Asks the master, and keeps what its answers warn of."""

    _log = Logger()

    def __init__(
        self,
        master: MasterAccess,
        store: MessageStore,
        contact: Contact,
        attempts: Attempts,
        factory: HASlaveFactory,
        clock: IReactorTime,
    ) -> None:
        self._master = master
        self._store = store
        self._contact = contact
        self._replica = contact.replica
        self._attempts = attempts
        self._factory = factory
        self._clock = clock
        self._more_questions = MORE_QUESTIONS
        self._answers = True
        self._settling_seconds: float | None = None
        self._told_warning: str | None = None
        self._acl_warning: str | None = None

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator."""
        return [warning for warning in (self._acl_warning, self._told_warning) if warning is not None]

    async def _view(self, with_segment_size: bool) -> MasterView:
        assert self._master.view is not None, "it has a remoting port"
        return await self._master.view(with_segment_size)

    async def ask_why(self) -> None:
        """The HA port cannot be reached. Ask what kind of master it is, and where its log ends.

        Raises UnsupportedMaster.
        """
        try:
            view = await self._view(True)
        except (CancelledError, UnsupportedMaster):
            raise
        except Exception:  # it does not answer either, so we keep the reason that we have
            return
        self._attempts.obstacle = None
        self._contact.master_ends_at(view.max_offset)

    def met(self, misfit: Misfit) -> None:
        """This master cannot be copied with our configuration: log it once, and retry rarely."""
        reason = str(misfit)
        if self._attempts.obstacle != reason:
            self._log.error("{reason}", event=Event.MASTER_UNSUITABLE, reason=reason)
        self._attempts.obstacle = reason

    async def before_first_report(self) -> MasterView | None:
        """What the remoting port says, or else a probe of the HA port; None if neither answers.

        Raises UnsupportedMaster.
        """
        view: MasterView | None = None
        if self._master.view is not None:
            view = await self._answer(self._patient_view(), with_segment_size=True)
        if view is None:
            try:
                view = MasterView(last_segment_offset=await probe_last_segment(self._master.endpoint, self._clock))
            except CancelledError:  # the connection is gone
                raise
            except Exception as error:  # the connection itself will show what is wrong
                if not self._attempts.are_quiet:
                    self._log.info(
                        "the master did not answer a probe of its HA port: {error}",
                        event=Event.MASTER_PROBE_FAILED,
                        error=reason_of(error),
                    )
                self._take_segment_size(None)
                return None
        self._take_segment_size(view.segment_size)
        self._store.adopt_derived_file_settings(view.derived_file_settings)
        return view

    async def _patient_view(self) -> MasterView:
        """Ask a busy master again if we have no log yet: its answer decides the sizes of our files."""
        while self._more_questions > 0 and not self._store.commit_log.segment_bases:
            self._more_questions -= 1
            with suppress(DeferredTimeoutError):
                return await self._view(True)
        return await self._view(True)

    def _take_segment_size(self, size: int | None) -> None:
        """Use the master's segment size, unless ours is configured. None means that the master did not give it."""
        if self._store.settings.mapped_file_size_commit_log is not None:
            return
        if size is not None:
            self._store.adopt_segment_size(size)
        log = self._store.commit_log
        self._replica.knows_segment_size = size is not None or log.verified_offset - log.min_offset > log.segment_size
        if self._acl_warning is not None and not self._replica.knows_segment_size:
            self._log.warn(
                "the master's segment size is not known: using mappedFileSizeCommitLog={size}. If the master has "
                "another size, configure that size here",
                event=Event.SEGMENT_SIZE_UNKNOWN,
                size=log.segment_size,
            )

    async def let_waits_end(self, last_bytes_at: float) -> None:
        """Wait until no producer can be waiting for bytes that we hold, because our first report would confirm them.

        The master says how long its puts wait. If it never has, they may wait as long as ours, or for twice as long.
        ``last_bytes_at`` is when the last bytes came, in the clock's seconds. Raises UnsupportedMaster.
        """
        view = None if self._master.view is None else await self.ask(with_segment_size=True)
        if view is not None and view.settling_seconds is not None:
            self._settling_seconds = view.settling_seconds
        quiet_seconds = self._settling_seconds
        if quiet_seconds is None:
            quiet_seconds = max(settling_seconds({}), 2 * self._store.settings.slave_timeout_ms / 1000)
        remaining = last_bytes_at + quiet_seconds - self._clock.seconds()
        if remaining > 0:
            await deferLater(self._clock, remaining)

    async def ask(self, with_segment_size: bool) -> MasterView | None:
        """What the remoting port says; None if it does not answer. Raises UnsupportedMaster."""
        return await self._answer(self._view(with_segment_size), with_segment_size)

    async def _answer(self, asked: Awaitable[MasterView], with_segment_size: bool) -> MasterView | None:
        try:
            view = await asked
        except (CancelledError, UnsupportedMaster):  # cancelled: the connection is gone, or the service stops
            raise
        except Exception as error:  # without an answer of any kind, we rely on the HA channel
            if self._replica.state is ReplicaState.CONNECTING:
                return None  # the HA port does not answer either, and that is logged already
            if self._answers:
                self._tell_no_answer(reason_of(error))
            self._answers = False
            return None
        self._answers = True
        self._attempts.obstacle = self._acl_warning = None
        if with_segment_size and view.warning != self._told_warning:
            self._told_warning = view.warning
            if view.warning is not None:
                self._log.warn("{warning}", event=Event.MASTER_WARNING, warning=view.warning)
        self._contact.master_ends_at(view.max_offset)
        self._contact.heard()
        return view

    def _tell_no_answer(self, reason: str) -> None:
        if not any(word in reason.lower() for word in ACL_WORDS):
            self._log.warn(
                "the master's remoting port does not answer ({error}); using only its HA port",
                event=Event.MASTER_REMOTING_SILENT,
                error=reason,
            )
            return
        self._acl_warning = (
            f"the master's ACL refuses this slave: give it an account (docs/acl.md), or add {self._own_host()} to "
            "globalWhiteRemoteAddresses in the master's conf/plain_acl.yml. Until then the log is copied, but its "
            "topics, groups and offsets are not"
        )
        self._log.warn("{warning} ({error})", event=Event.MASTER_ACL_REFUSES, warning=self._acl_warning, error=reason)

    def _own_host(self) -> str:
        """Our address on the connection to the master."""
        connection = self._factory.connection
        host = None
        if connection is not None and connection.transport is not None:
            host = getattr(connection.transport.getHost(), "host", None)
        return "this machine's address" if host is None else str(host)
