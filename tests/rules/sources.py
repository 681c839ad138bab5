"""What the tests of rules share: each source is parsed once, as all of them run in one worker."""

import ast
from functools import cache


@cache
def parsed(source: str) -> ast.Module:
    """The syntax of a module; not to be changed. Raises SyntaxError."""
    return ast.parse(source)
