"""The certificates of a process that runs, read again."""

import time
from collections.abc import Sequence

from twisted.logger import Logger

from rmqha.ha.slave.contact import iso_of
from rmqha.kit.events import Event
from rmqha.kit.threads import CallInThread
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import TLSSources

_log = Logger()


async def reread_certificates(sources: Sequence[TLSSources], run_in_thread: CallInThread) -> None:
    """Use the certificates that the files have now. If one of them cannot be used, all stay as they are."""
    used = [each for each in sources if each.is_used]
    if not used:
        return
    try:
        found = await run_in_thread(lambda: [pair for each in used for pair in each.read(time.time())])
    except TLSError as error:
        _log.error(
            "SIGHUP: the certificates stay as they are: {reason}",
            event=Event.CERTIFICATES_NOT_REREAD,
            reason=str(error),
        )
        return
    changed = [(source, files) for source, files in found if source.use(files)]
    for source, files in changed:
        own = "" if files.own is None else f"; {source.certificate_path} ends {iso_of(files.own.expires_at)}"
        _log.info("SIGHUP: new connections use other certificates{own}", event=Event.CERTIFICATES_CHANGED, own=own)
    if not changed:
        _log.info("SIGHUP: the certificates are the same as before", event=Event.CERTIFICATES_SAME)
