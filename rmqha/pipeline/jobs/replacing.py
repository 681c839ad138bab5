"""Puts a manifest in the place of others, in one step, and removes the files that do not count any more.

``compact`` and ``expire`` do so. The new manifest has the range of one or more old ones. The moment at which its file
gets its name is the moment at which the new files count. An intent in ``_manifest/replacing`` is written before, and
says what to remove. If a process dies before that moment, nothing happened. If it dies later, ``mend`` does the rest:
each job and each commit of a stream calls it first.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from rmqha.pipeline.jobs.manifest import MANIFEST_FOLDER, Archive, ArchiveError, Manifest, make_folder, range_of
from rmqha.pipeline.jobs.manifestfields import field_of, file_name, items, mapping, path_in_archive
from rmqha.pipeline.jobs.tableformats import replace_in_tables, table_logs, update_tables
from rmqha.store.log.mappedfile import sync_folder
from rmqha.store.smallfiles import write_small

INTENTS_FOLDER = "replacing"


@dataclass(frozen=True, slots=True)
class _Intent:
    """What the manifest of the intent's name replaces: other manifests, and paths of files.

    ``keeps_rows`` says that its files hold the same messages.
    """

    manifests: tuple[str, ...]
    files: tuple[str, ...]
    keeps_rows: bool

    @classmethod
    def read(cls, path: Path) -> "_Intent":
        """Raises ArchiveError, OSError."""
        try:
            content = mapping(orjson.loads(path.read_bytes()), "it")
            manifests = [file_name(one, "a manifest") for one in items(field_of(content, "manifests"), "manifests")]
            files = [path_in_archive(one, "a file") for one in items(field_of(content, "files"), "files")]
            for name in manifests:
                range_of(Path(name))
            return cls(tuple(manifests), tuple(files), field_of(content, "keeps_rows") is True)
        except ValueError as error:
            raise ArchiveError(f"{path} does not say what to replace ({error}): move it elsewhere") from error


def replace_manifests(archive: Archive, old: Sequence[Manifest], new: Manifest, keeps_rows: bool) -> bool:
    """Put ``new`` in the place of ``old``, whose ranges follow each other and make up its range.

    Returns False, and does nothing, if the old ones are not there any more. Call it under ``locked``. Raises
    OptionError, ArchiveError, OSError.
    """
    assert (old[0].start, old[-1].end) == (new.start, new.end), "it covers what they cover"
    if [archive.manifest(one.name) for one in old] != list(old):
        return False
    folder = archive.root / MANIFEST_FOLDER / INTENTS_FOLDER
    make_folder(folder)
    kept = {file.path for file in new.files}
    intent = _Intent(
        tuple(one.name for one in old if one.name != new.name),
        tuple(file.path for one in old for file in one.files if file.path not in kept),
        keeps_rows,
    )
    _check_inside(archive.root, intent.files)
    write_small(folder / new.name, asdict(intent))
    archive.put(new)
    _finish(archive, folder / new.name)
    return True


def mend(archive: Archive) -> None:
    """Complete what a process that died had begun: commits, replacements, tables. Call it under ``locked``.

    Raises OptionError, ArchiveError, OSError.
    """
    for path in sorted((archive.root / MANIFEST_FOLDER / INTENTS_FOLDER).glob("*.json")):
        _finish(archive, path)
    archive.complete()
    update_tables(archive)


def _finish(archive: Archive, path: Path) -> None:
    """Do what is left of a replacement, or nothing if it was not committed; then the intent goes."""
    intent = _Intent.read(path)
    manifest = archive.manifest(path.name)
    if manifest is not None and not {file.path for file in manifest.files} & set(intent.files):
        for name in intent.manifests:
            (path.parent.parent / name).unlink(missing_ok=True)
        if table_logs(archive.root):  # a table's readers see the old files until its commit
            archive.publish(manifest)
            update_tables(archive)
            replace_in_tables(archive, intent.files, manifest, intent.keeps_rows)
            _remove(archive.root, intent.files)
        else:  # a reader who lists the folder must not see a message twice
            _remove(archive.root, intent.files)
            archive.publish(manifest)
    path.unlink()


def _check_inside(root: Path, paths: Sequence[str]) -> None:
    """Raises ArchiveError if a path leads elsewhere by a link to a folder: others may have packed the archive."""
    whole = root.resolve()
    for folder in {Path(path).parent for path in paths}:
        if (root / folder).resolve() != whole / folder:
            raise ArchiveError(f"{root / folder} is a link, or in one: only files in the archive itself are removed")


def _remove(root: Path, paths: Sequence[str]) -> None:
    """Remove files, and the folders that are empty then. Raises ArchiveError, OSError."""
    _check_inside(root, paths)
    folders = {(root / path).parent for path in paths}
    for path in paths:
        (root / path).unlink(missing_ok=True)
    for folder in folders:
        with suppress(OSError):  # other files are in it, or it is gone
            sync_folder(folder)
            folder.rmdir()
            folder.parent.rmdir()
