"""Bugs planted into the product, to see that the fuzzer finds them."""

import inspect
from collections.abc import Callable
from textwrap import dedent
from types import CodeType
from typing import Any


def spoilt_code(function: Callable[..., Any], right: str, wrong: str) -> CodeType:
    """The function's code had its source ``wrong`` where it has ``right``; to be set as its ``__code__``.

    Set there, it is what every importer of the function runs. Raises LookupError when the source has changed.
    """
    function = inspect.unwrap(function)
    source = dedent(inspect.getsource(function)).removeprefix("@staticmethod\n")
    if source.count(right) != 1:
        raise LookupError(f"{function.__qualname__} does not hold {right!r} once: plant this bug anew")
    names: dict[str, Any] = {}
    exec(source.replace(right, wrong), dict(function.__globals__), names)
    code: CodeType = names[function.__name__].__code__
    return code
