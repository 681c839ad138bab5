"""Which functions run: compiled or plain ones, and what says so."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha import __version__
from rmqha.wire import compiled
from rmqha.wire.compiled import KernelError, find_kernel
from tests.twins import TWINS, need_kernel

ROOT = Path(__file__).parents[2]


def kernel_of(version: str = __version__, contract: int = compiled.CONTRACT) -> ModuleType:
    """A module that says what a kernel says."""
    module: Any = ModuleType(compiled.NAME)
    module.VERSION, module.CONTRACT = version, contract
    return module  # type: ignore[no-any-return]  # made of Any, because a module has no such attributes


class FindKernelTests(SynchronousTestCase):
    def there_is(self, kernel: ModuleType | ImportError) -> None:
        """Let an import give this kernel, or fail so."""

        def give(name: str) -> ModuleType:
            self.assertEqual(name, compiled.NAME)
            if isinstance(kernel, ImportError):
                raise kernel
            return kernel

        self.patch(compiled, "import_module", give)

    def test_it_is_used_if_it_is_there(self) -> None:
        kernel = kernel_of()
        self.there_is(kernel)
        for wish in (None, "", "0"):
            self.assertEqual(find_kernel(wish), (kernel, ""))

    def test_it_is_not_even_loaded_when_it_is_switched_off(self) -> None:
        self.there_is(ImportError("must not be asked"))
        self.assertEqual(find_kernel("1"), (None, "switched off"))

    def test_one_that_is_not_built_is_missed_only_when_it_is_demanded(self) -> None:
        self.there_is(ModuleNotFoundError("no", name=compiled.NAME))
        self.assertEqual(find_kernel(None), (None, "not built"))
        error = self.assertRaises(KernelError, find_kernel, "0")
        self.assertIn("RMQHA_PURE_PYTHON is 0, but the kernel is not built", str(error))

    def test_one_that_cannot_be_loaded_says_why(self) -> None:
        for error in (ImportError("wrong ELF class"), ModuleNotFoundError("no isal", name="isal")):
            self.there_is(error)
            self.assertEqual(find_kernel(None), (None, f"broken: {error}"))

    def test_one_of_another_version_or_contract_is_never_used(self) -> None:
        for kernel in (kernel_of(version="0.9"), kernel_of(contract=compiled.CONTRACT + 1)):
            self.there_is(kernel)
            found, why_not = find_kernel(None)
            self.assertIsNone(found)
            self.assertIn(f"built for another rmqha ({kernel.VERSION}, contract {kernel.CONTRACT})", why_not)
            self.assertRaises(KernelError, find_kernel, "0")

    def test_another_value_is_refused(self) -> None:
        for wish in ("yes", "2", " 1"):
            self.assertIn(f"{wish!r}", str(self.assertRaises(KernelError, find_kernel, wish)))


class ImplementationTests(SynchronousTestCase):
    def test_it_names_what_runs_and_why(self) -> None:
        self.patch(compiled, "KERNEL", kernel_of())
        self.assertEqual(compiled.implementation(), "kernel")
        self.patch(compiled, "KERNEL", None)
        self.patch(compiled, "WHY_NOT", "not built")
        self.assertEqual(compiled.implementation(), "plain Python: kernel not built")

    def test_each_function_is_of_the_implementation_that_is_named(self) -> None:
        for twin in TWINS:
            used = getattr(twin.module, twin.name)
            expected = twin.plain if compiled.KERNEL is None else getattr(compiled.KERNEL, twin.compiled)
            self.assertIs(used, expected)


class BuiltKernelTests(SynchronousTestCase):
    def setUp(self) -> None:
        super().setUp()
        need_kernel()

    def test_it_is_built_from_the_sources_of_this_checkout(self) -> None:
        sources = b"".join(
            (ROOT / "rmqha/wire" / name).read_bytes()
            for name in ("_kernel.pyx", "_sends.pxi", "_units.pxi", "_index.pxi")
        )
        assert compiled.KERNEL is not None, "setUp has asked"
        digest = hashlib.sha256(sources).hexdigest()
        self.assertEqual(compiled.KERNEL.SOURCE, digest, "the kernel is older than its source: make kernel")


@pytest.mark.process
def test_a_process_obeys_the_environment() -> None:
    need_kernel()
    told = {wish: _what_a_process_says(wish) for wish in ("0", "1", "never")}
    assert told["0"] == "kernel"
    assert told["1"] == "plain Python: kernel switched off"
    assert "RMQHA_PURE_PYTHON is 'never'" in told["never"]


def _what_a_process_says(wish: str) -> str:
    code = "from rmqha.wire import compiled, scan; print(compiled.implementation())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RMQHA_PURE_PYTHON": wish},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr).strip()
