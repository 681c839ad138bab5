"""Which functions run: those of the compiled kernel, or the plain Python that specifies them.

The kernel (``_kernel.pyx``) is optional: an installation without a compiler has none, and works. ``RMQHA_PURE_PYTHON``
in the environment decides when this module is imported: ``1`` never uses the kernel, ``0`` demands it, and if it is not
set, the kernel is used if it is there.
"""

import os
from importlib import import_module
from types import ModuleType
from typing import TypeVar, cast

from rmqha import __version__

Function = TypeVar("Function")

PURE_PYTHON = "RMQHA_PURE_PYTHON"
CONTRACT = 2
"""It changes whenever arguments, results or meaning of a compiled function change. The kernel has the same number."""
NAME = "rmqha.wire._kernel"
NOT_BUILT, SWITCHED_OFF = "not built", "switched off"


class KernelError(ImportError):
    """RMQHA_PURE_PYTHON demands what is not there, or says neither 0 nor 1."""


def find_kernel(wish: str | None) -> tuple[ModuleType | None, str]:
    """The kernel, or None and why it is not used. ``wish`` is the value of RMQHA_PURE_PYTHON. Raises KernelError."""
    if wish not in (None, "", "0", "1"):
        raise KernelError(f"{PURE_PYTHON} is {wish!r}: it may be 0, 1, or not set")
    if wish == "1":
        return None, SWITCHED_OFF
    kernel, missing = _load()
    if kernel is None and wish == "0":
        raise KernelError(f"{PURE_PYTHON} is 0, but the kernel is {missing}: see docs/install.md")
    return kernel, missing


def _load() -> tuple[ModuleType | None, str]:
    """The kernel if it fits to this Python code; else why there is none."""
    try:
        kernel = import_module(NAME)
    except ImportError as error:
        is_there = not isinstance(error, ModuleNotFoundError) or error.name != NAME
        return None, f"broken: {error}" if is_there else NOT_BUILT
    if (__version__, CONTRACT) != (kernel.VERSION, kernel.CONTRACT):
        return None, f"built for another rmqha ({kernel.VERSION}, contract {kernel.CONTRACT})"
    return kernel, ""


KERNEL, WHY_NOT = find_kernel(os.environ.get(PURE_PYTHON))
"""The kernel that this process uses, or None and the reason."""


def compiled_or(plain: Function, name: str) -> Function:
    """The function of this name of the kernel if it is used, else ``plain``, its specification."""
    return plain if KERNEL is None else cast(Function, getattr(KERNEL, name))


IN_USE, PLAIN = "kernel", "plain Python: kernel "
FINE_IMPLEMENTATIONS = (IN_USE, PLAIN + NOT_BUILT, PLAIN + SWITCHED_OFF)
"""Others say that there is a kernel which cannot be used."""


def implementation() -> str:
    """``kernel``, or ``plain Python`` with the reason, as ``--version``, ``rmqha doctor`` and the metrics show it."""
    return IN_USE if KERNEL is not None else PLAIN + WHY_NOT
