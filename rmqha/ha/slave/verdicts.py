"""What the log and the status say of a verdict: the master's log and ours do not fit together."""

from collections.abc import Awaitable, Callable

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.ha.slave.contact import Contact
from rmqha.ha.slave.oncerun import OnceRun
from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.replica import Diverged, Verdict
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event


class VerdictReport:
    """Tells each verdict once, and then looks for the first record that differs."""

    _log = Logger()

    def __init__(self, contact: Contact, owner: ISlaveOwner, once: OnceRun) -> None:
        self._contact = contact
        self._replica = contact.replica
        self._owner = owner
        self._once = once
        self._told: str | None = None
        self._describing: Deferred[None] = succeed(None)
        self._described: str | None = None
        self.describe_fork: Callable[[], Awaitable[str]] | None = None
        """Finds where our log and the master's part. Gives a line that names the first record that differs."""

    def tell(self, verdict: Verdict) -> None:
        """Log a verdict, but only once while it stays the same. Retries have their own log lines."""
        if self._replica.state is not verdict.state or self._told != str(verdict):
            self._told = str(verdict)
            self._log.error(
                "{state}: {reason}", event=Event.SLAVE_VERDICT, state=verdict.state.name, reason=str(verdict)
            )

    def describe(self, verdict: Verdict) -> bool:
        """Look for the first record that differs, once for each verdict. False if there is nothing to look for."""
        if not isinstance(verdict, Diverged) or verdict.noticed_at is None or self.describe_fork is None:
            return False
        if self._describing.called and self._described != str(verdict):
            self._describing = Deferred.fromCoroutine(self._describe_verdict(verdict, self.describe_fork()))
            self._describing.addErrback(self._failed)
        return True

    async def _describe_verdict(self, verdict: Diverged, description: Awaitable[str]) -> None:
        self._described, found = str(verdict), str(verdict)
        try:
            found = await description
        except CancelledError:
            raise
        except Exception as error:  # of any kind: the verdict stands, but we know less about it
            self._log.warn(
                "the first record that differs is not found: {reason}",
                event=Event.FORK_NOT_FOUND,
                reason=reason_of(error),
            )
            self._described = None
        else:
            if self._replica.state is verdict.state:
                self._contact.reason = found
                self._log.error("{state}: {reason}", event=Event.FORK_FOUND, state=verdict.state.name, reason=found)
                self._owner.in_state(verdict.state)
        self._once.finish(verdict.exit_code, f"{verdict.state.name}: {found}")

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("polling the master failed", failure, event=Event.MASTER_POLL_FAILED)

    def stop(self) -> None:
        """Look no further."""
        self._describing.cancel()
