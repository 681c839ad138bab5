"""Header fields of the questions that slaves of ours ask a master of ours (spec/remoting.md 2.23, 2.25)."""

CONFIRMED, KNOWN = "offset", "after"
"""The confirmed end of the log, in an answer, and the one that the slave knows, in its question."""
CONFIRMED_HOLD_SECONDS = 5.0
"""How long a question is held if nothing more is confirmed."""

TOPICS, GROUPS, DELETED, OFFSETS, MIN_OFFSET, HOLD_MS = "topics", "groups", "deleted", "offsets", "minOffset", "holdMs"
"""The versions of four tables, where the log starts, and how long a question may be held."""
AWAITED = (TOPICS, GROUPS, DELETED)
"""The tables whose changes a question waits for. Consumer offsets change all the time."""
