"""Stores that are kept as archives, unpacked on every supported Python."""

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive of ours into ``folder``, which need not exist. Raises OSError, tarfile.TarError.

    Python before 3.11.4, such as Debian 12 has, knows no filters; an archive of ours needs none.
    """
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)
