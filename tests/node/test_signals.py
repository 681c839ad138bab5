"""What ends a node from outside."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.testing.nodes import TwistdNode

pytestmark = pytest.mark.process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sent_again_and_again_does_not_spoil_a_clean_end(number: signal.Signals, tmp_path: Path) -> None:
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0"]) as node:
        node.port("remoting")
        while node.is_running:
            with suppress(ProcessLookupError):
                os.kill(node.pid, number)
            time.sleep(0.002)  # signals in quick succession, not a busy loop
        assert node.wait() == 0
        assert node.errors() == []
        assert node.events(Event.NODE_STOPPED)
