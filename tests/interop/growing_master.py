"""A master of ours that appends when told to: ``python growing_master.py STORE HA_PORT SEGMENT_SIZE``.

A line "COUNT BODY_BYTES" on standard input appends so many records, a few at a time, as producers would; it is answered
by the log's end. The end of standard input ends the process.
"""

import random
import sys
from itertools import count
from typing import Any

from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import connectionDone
from twisted.internet.stdio import StandardIO
from twisted.internet.task import deferLater
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from rmqha.ha.master.protocol import HAMasterFactory, MasterOptions
from rmqha.settings.settings import make_settings
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.messagestore import MessageStore
from rmqha.testing.records import make_record

LARGEST_BURST = 8
reactor: Any = installed_reactor


class Appender(LineOnlyReceiver):
    """Standard input and output."""

    delimiter = b"\n"

    def __init__(self, log: CommitLog) -> None:
        self._commit_log = log
        self._numbers = count()
        self._rng = random.Random(1)

    def lineReceived(self, line: bytes) -> None:
        Deferred.fromCoroutine(self._append(*map(int, line.split()))).addErrback(self._failed)

    async def _append(self, wanted: int, body_bytes: int) -> None:
        while wanted > 0:
            burst = min(wanted, self._rng.randint(1, LARGEST_BURST))
            for _ in range(burst):
                body = self._rng.randbytes(self._rng.randint(1, 2 * body_bytes))
                self._commit_log.append(make_record(next(self._numbers), body))
            wanted -= burst
            await deferLater(reactor, self._rng.uniform(0, 0.005))
        self.sendLine(b"%d" % self._commit_log.max_offset)

    def _failed(self, failure: Failure) -> None:
        failure.printTraceback(sys.stderr)
        reactor.stop()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        reactor.stop()


def main(store_folder: str, ha_port: str, segment_size: str) -> None:
    """Serve until standard input ends."""
    settings = make_settings({"storePathRootDir": store_folder, "mappedFileSizeCommitLog": segment_size})
    log = MessageStore(settings).commit_log
    factory = HAMasterFactory(log, reactor, MasterOptions(settings.ha_transfer_batch_size_bytes))
    listening = TCP4ServerEndpoint(reactor, int(ha_port), interface="127.0.0.1").listen(factory)
    listening.addCallback(lambda _: StandardIO(Appender(log)))
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
