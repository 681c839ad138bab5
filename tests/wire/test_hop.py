"""Following the sizes of messages, one by one or in runs of one size."""

from hypothesis import given
from hypothesis import strategies as st

from rmqha.wire import layout
from rmqha.wire.columns import FIRST_GUESS, HOPS_BEFORE_A_GUESS, hop

SMALLEST = layout.FIXED_BYTES
MAGICS = (layout.MESSAGE_MAGIC_CODE, layout.MESSAGE_MAGIC_CODE_V2)


def one_by_one(content: bytes, position: int, limit: int) -> tuple[list[int], int]:
    found = []
    while position + SMALLEST <= limit:
        size, magic = layout.BLANK_HEADER.unpack_from(content, position)
        if magic not in MAGICS or not SMALLEST <= size <= limit - position:
            break
        found.append(position)
        position += size
    return found, position


RUNS = st.lists(
    st.tuples(
        st.integers(1, 3 * (HOPS_BEFORE_A_GUESS + FIRST_GUESS)),
        st.sampled_from((SMALLEST, SMALLEST + 1, 120, 300)),
        st.sampled_from((*MAGICS, *MAGICS, layout.BLANK_MAGIC_CODE, 0)),
    ),
    max_size=6,
)


@given(RUNS, st.integers(0, 20), st.integers(0, 400))
def test_runs_of_one_size_are_followed_as_single_messages_are(
    runs: list[tuple[int, int, int]], before: int, cut: int
) -> None:
    """Until the first that is no message, or that goes beyond the limit."""
    log = b"".join(layout.BLANK_HEADER.pack(size, magic).ljust(size, b"\0") * count for count, size, magic in runs)
    content = bytes(before) + log
    limit = max(before, len(content) - cut)
    assert hop(content, before, limit) == one_by_one(content, before, limit)
