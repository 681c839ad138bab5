"""Our small JSON files in a store. Each is read as a whole, and replaced as a whole."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import orjson

from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk

Content = TypeVar("Content")


def read_small(
    path: Path, parse: Callable[[bytes], Content], missing: Content, is_not: str, remedy: str = "", disk: Disk = DISK
) -> Content:
    """What ``parse`` makes of the file; ``missing`` if there is none.

    Raises StoreError if ``parse`` cannot: the path ``is_not`` what it should be, and ``remedy`` follows the reason;
    OSError.
    """
    try:
        return parse(disk.read(path))
    except FileNotFoundError:
        return missing
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} {is_not} ({error}){remedy}") from error


def write_small(path: Path, content: object, disk: Disk = DISK) -> None:
    """Replace the file durably, for people to read. Raises OSError."""
    disk.replace(path, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def write_or_remove(path: Path, content: object, disk: Disk = DISK) -> None:
    """As ``write_small``. Without content there is durably no file. Raises OSError."""
    if content:
        write_small(path, content, disk)
    else:
        disk.remove_durably(path)
