"""Removes the begin of an archive: the messages that were stored before a time.

An archive follows the log, so the oldest messages are its begin. Files go from there on, as long as all messages of a
file are older. A later file stays even if a clock that stepped back made its messages look older. The manifests keep
their ranges: nobody archives the removed messages again, and a restore says where the archive starts now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.jobs.manifest import ArchivedFile, ArchiveError, Manifest, existing_archive
from rmqha.pipeline.jobs.replacing import mend, replace_manifests
from rmqha.pipeline.jobs.tableformats import remove_orphans


@dataclass(frozen=True, slots=True)
class Expired:
    """What was removed, or would be without ``done``: the log from ``start`` to before ``end``.

    ``oldest_left`` is the earliest store time that stays, in milliseconds; None if nothing stays. ``restorable`` is the
    first offset from which a store can be made, None if there is none or if it is not known.
    """

    done: bool
    start: int
    end: int
    files: int
    messages: int
    bytes: int
    oldest_left: int | None
    restorable: int | None

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job expire --json``."""
        return {
            "done": self.done,
            "from": self.start,
            "to": self.end,
            "files": self.files,
            "messages": self.messages,
            "bytes": self.bytes,
            "oldestLeft": self.oldest_left,
            "restorableFrom": self.restorable,
        }


def expire(root: Path, before: int, dry_run: bool = False, bar: IBar = NO_BAR) -> Expired:
    """Remove the files at the begin of the archive ``root`` whose messages were all stored before ``before``, in
    milliseconds.

    Streams may archive meanwhile; another job may not. Raises NoStore if it is not an archive, OptionError, StoreInUse,
    StoreError, OSError.
    """
    archive = existing_archive(root)
    if dry_run:
        return _expired(archive.manifests(), before, done=False)
    with archive.job_locked():
        with archive.locked():
            mend(archive)
            remove_orphans(root)
            manifests = archive.manifests()
        found = _expired(manifests, before, done=True)
        touched = [one for one in manifests if _left(one, found.end) != one]
        for number, manifest in enumerate(touched):
            with archive.locked():
                if not replace_manifests(archive, [manifest], _left(manifest, found.end), keeps_rows=False):
                    raise ArchiveError(f"another process has changed the manifests of {root}: run the job again")
            bar.show(number + 1, len(touched))
        return found


def _expired(manifests: Sequence[Manifest], before: int, done: bool) -> Expired:
    files = [file for one in manifests for file in one.files]
    old = list(_old(files, before))
    left = files[len(old) :]
    start = max([manifests[0].start, *(one.expired for one in manifests if one.expired is not None)])
    end = left[0].start if left else manifests[-1].end
    return Expired(
        done=done,
        start=start,
        end=end if old else start,
        files=len(old),
        messages=sum(file.rows for file in old),
        bytes=sum(file.bytes for file in old),
        oldest_left=min((file.min_store_timestamp for file in left), default=None),
        restorable=_restorable(manifests, end if old else start) if left else None,
    )


def _old(files: Sequence[ArchivedFile], before: int) -> Iterator[ArchivedFile]:
    for file in files:
        if file.max_store_timestamp >= before:
            return
        yield file


def _restorable(manifests: Sequence[Manifest], start: int) -> int | None:
    """The first segment of the log that begins at or after ``start``, if the archive has a part of it."""
    sizes = {one.restore.segment_size for one in manifests if one.restore.segment_size is not None}
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    base = -(-start // size) * size
    return base if base < manifests[-1].end else None


def _left(manifest: Manifest, end: int) -> Manifest:
    """The manifest without what is before the offset ``end``; the same one if it has nothing there."""
    reached = min(end, manifest.end)
    if reached <= max(manifest.start, manifest.expired or 0):
        return manifest
    facts = manifest.restore
    return replace(
        manifest,
        files=tuple(file for file in manifest.files if file.start >= end),
        skipped=0 if reached == manifest.end else manifest.skipped,
        hashes=tuple(one for one in manifest.hashes if one.start >= end),
        restore=replace(facts, blanks=tuple(blank for blank in facts.blanks if blank.start >= end)),
        expired=reached,
    )
