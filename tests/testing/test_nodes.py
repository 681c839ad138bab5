"""Ports that nodes of tests may listen at: several runs of tests at a time do not give one twice."""

import subprocess
import sys

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.testing import nodes

CLAIMS = "import sys; from rmqha.testing.nodes import claim_port; print([base for base in {} if claim_port(base)])"


class FreePortTests(SynchronousTestCase):
    def test_a_port_is_given_once(self) -> None:
        given = nodes.free_port()
        self.patch(nodes, "PORTS", range(given, given + 1))
        self.assertRaises(nodes.NodeError, nodes.free_port)


@pytest.mark.process
def test_a_port_is_not_given_to_another_process() -> None:
    """Nor is it kept for a process that has ended."""
    ours, other = nodes.free_port(), nodes.free_port()
    nodes._claims.pop(other).close()
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", CLAIMS.format([ours, other])], capture_output=True, check=True)
        assert done.stdout == b"[%d]\n" % other
