"""Reads a small YAML file whose writer may be hostile: its size, its aliases and its depth are limited.

``plainloader`` limits the last two.
"""

from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 1024 * 1024


class AclFileError(ValueError):
    """A file with keys or rules cannot be used. The text names the file and the reason, and never shows its content."""


def parse_yaml(data: bytes, path: Path) -> dict[str, Any]:
    """The mapping in the content of a file; an empty file is an empty mapping. Raises AclFileError."""
    if len(data) > MAX_FILE_BYTES:
        raise AclFileError(f"{path}: the file is larger than {MAX_FILE_BYTES} bytes")
    import yaml  # most nodes and commands read no such file, and start quicker

    from rmqha.acl.plainloader import PlainLoader

    try:
        content = yaml.load(data.decode("utf-8"), PlainLoader)  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise AclFileError(f"{path}: it is not YAML{line}: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if type(error) is yaml.YAMLError else type(error).__name__
        raise AclFileError(f"{path}: it is not YAML: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise AclFileError(f"{path}: it is not a mapping of names to values")
    return {str(name): value for name, value in content.items()}


def read_bytes(path: Path) -> bytes:
    """The file's bytes, one more than the limit at most. Raises AclFileError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise AclFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises AclFileError."""
    return parse_yaml(read_bytes(path), path)
