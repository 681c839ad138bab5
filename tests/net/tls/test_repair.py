"""``rmqha repair --from tls:HOST:PORT``: fetches bad bytes from a node that requires certificates."""

import subprocess
from pathlib import Path

import pytest

from rmqha.testing.nodes import TwistdNode
from tests.commands import rmqha
from tests.fixtures import copy_of, max_offset, segment_size
from tests.net.tls.authority import Authority
from tests.store.logs import file_bytes, write_at

pytestmark = pytest.mark.process
SIZE = segment_size()
END = max_offset("slave")


def repaired(store: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    return rmqha("repair", store, "--from", source, *options)


def test_a_store_is_repaired_over_tls_from_a_node_that_asks_for_a_certificate(tmp_path: Path) -> None:
    ca, other_ca = Authority(tmp_path / "ca"), Authority(tmp_path / "other", "other")
    store, replica = copy_of("slave", tmp_path / "store"), copy_of("slave", tmp_path / "replica")
    good = file_bytes(store / "commitlog")[:END]
    write_at(store / "commitlog", 3 * SIZE + 29, b"\xa5\x5a\xa5", SIZE)
    spoilt = file_bytes(store / "commitlog")[:END]
    served = [f"--tls-cert={ca.issue('localhost')}", f"--tls-ca={ca.path}", "--tls-verify-slaves"]
    options = ["--role=async-master", "--port=0", "--allow-slaves=operator", *served]
    trusting, shown = f"--tls-ca={ca.path}", f"--tls-cert={ca.issue('operator')}"
    with TwistdNode(tmp_path, options, replica, "replica") as node:
        source = f"tls:localhost:{node.port()}"
        for wrong, told in (
            ((trusting,), "certificate required"),
            ((f"--tls-ca={other_ca.path}", shown), "is signed by none of the authorities trusted here"),
            ((trusting, f"--tls-cert={other_ca.issue('operator')}"), "tls"),
        ):
            done = repaired(store, source, *wrong)
            assert (done.returncode, done.stderr.count("\n")) == (7, 1), done
            assert told in done.stderr.lower()
            assert file_bytes(store / "commitlog")[:END] == spoilt
        done = repaired(store, source, trusting, f"--tls-cert={ca.issue('somebody')}")
        assert (done.returncode, done.stderr.count("\n")) == (7, 1), done
        done = repaired(store, source, trusting, shown)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout.startswith("repaired ")
        assert node.stop() == 0
    assert file_bytes(store / "commitlog")[:END] == good
