"""The collector of cycles, while modules are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_are_kept() -> Iterator[None]:
    """Let the collector of cycles pass over what is imported, now and later: modules stay until the process ends.

    It would look at them again and again while more are imported, and once more at the end: a quarter of a command's
    processor time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
