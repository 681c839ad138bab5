"""Coroutines as tests: they run while the reactor does."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest_twisted

with_reactor: Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]] = pytest_twisted.ensureDeferred
"""A decorator: pytest waits until the coroutine has ended. The type is ours, because pytest_twisted has none."""
