"""What a test needs of the machine, and may not be there."""

import os

import pytest


def need(problem: str | None) -> None:
    """Skips the test if there is a problem; on CI it fails."""
    if problem is not None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(problem)
        pytest.skip(problem)
