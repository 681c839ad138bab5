"""Java's ``String.hashCode``, which consume queues and index files use (spec/store.md 3.11, 7.1).

h = 31·h + c over UTF-16 code units c, modulo 2³², read as a signed 32-bit integer.
"""

from functools import lru_cache

MASK = 0xFFFFFFFF
SIGN = 0x80000000
"".encode("utf-16-be")  # Python loads the codec from a file when it is first used: not in a turn of the reactor


def java_hash(text: str, before: int = 0) -> int:
    """The hash code of a string, signed. ``before`` is the hash code of the text that precedes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = before
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & MASK
    return value - (1 << 32) if value & SIGN else value


@lru_cache(maxsize=4096)
def tags_hash(tags: str) -> int:
    """The tagsCode of a message with these TAGS, 0 for none. Cached, because few different tags occur."""
    return java_hash(tags)
