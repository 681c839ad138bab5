"""A witness as its own process, for tests: a name server that runs one."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from rmqha.testing.nodes import NameServerNode, free_port


class WitnessNode(NameServerNode):
    """``twistd -n rmqha-namesrv --witness=PORT``. It keeps its port and its folder when it is started again."""

    def __init__(self, work: Path, options: Sequence[str] = (), name: str = "witness") -> None:
        """``options`` are further options of the name server."""
        self.witness_port = free_port()
        super().__init__(work, (f"--port={free_port()}", f"--witness={self.witness_port}", *options), name=name)
        self.witness_folder = self.folder / "witness"

    @property
    def witness_address(self) -> str:
        """The witness's port, HOST:PORT."""
        return f"127.0.0.1:{self.witness_port}"

    def pause(self) -> None:
        """Send SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
