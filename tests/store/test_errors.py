"""What a node says of an error of its store."""

import errno
from pathlib import Path

from rmqha.store.errors import with_advice


def test_a_full_disk_is_told_with_the_place_and_what_to_do() -> None:
    """A write to an open file does not name it."""
    for error in (OSError(errno.ENOSPC, "full", "/data/a/00"), OSError(errno.EDQUOT, "full")):
        said = with_advice(error, Path("/data/a"))
        assert "'/data/a" in said
        assert "make room, 4 MiB or more" in said
    assert with_advice(OSError(errno.EIO, "bad"), Path("/data/a")) == "[Errno 5] bad"
