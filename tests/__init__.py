"""The tests. Hypothesis has no deadlines in any of them: a busy machine makes an example slow, and not wrong.

With ``RMQHA_EXAMPLES=quick`` in the environment, as in ``make quick`` and ``make test``, it tries a fifth of the
examples, and the same ones each time: a change is not judged by chance. ``make proofs`` tries all, and new ones.
"""

import os

from hypothesis import HealthCheck
from hypothesis import settings as profiles

ALL_EXAMPLES, QUICK_EXAMPLES = 100, 20

INHERITED = (HealthCheck.differing_executors,)
"""A class of tests is inherited by one that runs them on the kernel (tests/twins.py)."""

profiles.register_profile("all", deadline=None, max_examples=ALL_EXAMPLES, suppress_health_check=INHERITED)
profiles.register_profile(
    "quick", profiles.get_profile("all"), max_examples=QUICK_EXAMPLES, derandomize=True, database=None
)
profiles.load_profile(os.environ.get("RMQHA_EXAMPLES", "all"))


def examples(number: int) -> int:
    """How many examples a test tries that wants ``number`` of them with all the time there is."""
    default = profiles.default
    assert default is not None, "a profile is loaded"
    return max(QUICK_EXAMPLES // 2, number * default.max_examples // ALL_EXAMPLES)
