"""Whose log a split is of, and which archive its messages belong to.

An archive is that of one log. Name servers may know several brokers, now or later, so each has an archive of its own
in the folder that was given::

    OUTPUT/brokerName=broker-a/_manifest/…  OUTPUT/brokerName=broker-a/date=2026-11-21/hour=01/…
    OUTPUT/brokerName=broker-b/_manifest/…

Engines that find columns in the names of folders find this one too. A store, or one broker that ``rmqha://`` names, is
archived in the folder itself.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rmqha.pipeline.address import RemoteLog, is_network
from rmqha.pipeline.brokers import plan_of_split, state_of
from rmqha.pipeline.jobs.manifest import MANIFEST_FOLDER, Archive, ArchiveError, WrongArchive
from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.store.log.splits import Split
from rmqha.store.nodestate import NodeState
from rmqha.store.tablesnapshots import read_tables

FOLDER_PREFIX = "brokerName="
NOT_IN_A_NAME = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
"""What Spark and Hive write as %XX in the name of a partition's folder."""
MARK = "_"
"""Before a name that engines could take for another value than a text: they find the type of a column in such names."""
NO_TEXTS = frozenset(
    ["true", "false", "null", "none", "nan", "inf", "infinity", "epoch", "now", "today", "tomorrow", "yesterday"]
)
"""Words that an engine may take for another value. Numbers, dates and times do not begin with a letter."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A log that is archived: the folder of a store, or a broker of an ``address``; ``store`` is None then."""

    name: str
    store: Path | None = None
    address: str = ""
    in_cluster: bool = False

    @classmethod
    def of(cls, split: Split) -> "Origin":
        """Whose log the split is of."""
        if not is_network(split.path):
            store = Path(split.path).parent.parent
            return cls(str(store), store)
        remote = RemoteLog.parse(split.path)
        return cls(remote.broker, None, remote.address, remote.in_cluster)

    def archive(self, output: Path) -> Archive:
        """The archive of this log, if ``output`` is the folder that was given. Raises WrongArchive, OSError."""
        check_layout(output, self.in_cluster)
        return Archive(broker_folder(output, self.name) if self.in_cluster else output)

    def state(self, split: Split) -> NodeState | None:
        """The state of its node: of a store now, of a broker when the split was planned. Raises StoreError, OSError."""
        return NodeState.read(self.store) if self.store is not None else state_of(RemoteLog.parse(split.path))

    def plan(self, split: Split, options: Options) -> LogPlan:
        """The log, for reading what is archived. Raises StoreError, OSError, OptionError."""
        if self.store is not None:
            return open_log(replace(options, path=self.store, output=None))
        return plan_of_split(split, replace(options, path=Path(self.address), output=None))

    def tables(self) -> Mapping[str, str]:
        """Topics, groups and offsets, as texts by the names of their files; none over the network. Raises OSError."""
        return {} if self.store is None else read_tables(self.store)


def broker_folder(output: Path, broker: str) -> Path:
    """The archive of a broker of a cluster. One that has its name without the mark from before keeps it."""
    escaped = NOT_IN_A_NAME.sub(lambda one: f"%{ord(one[0]):02X}", broker)
    known = output / f"{FOLDER_PREFIX}{escaped}"
    is_text = broker[:1].isalpha() and broker.lower() not in NO_TEXTS
    return known if is_text or (known / MANIFEST_FOLDER).is_dir() else output / f"{FOLDER_PREFIX}{MARK}{escaped}"


def check_layout(output: Path, in_cluster: bool) -> None:
    """Raises WrongArchive if the folder is the archive of one log, and not of a cluster's brokers, or the reverse."""
    if in_cluster and (output / MANIFEST_FOLDER).is_dir():
        raise WrongArchive(
            f"{output} is the archive of one log, and the brokers of a cluster have an archive each: archive them to "
            "another folder, or this one broker by rmqha://HOST:PORT"
        )
    if not in_cluster and (found := broker_folders(output)):
        raise WrongArchive(
            f"{output} has an archive for each broker of a cluster: archive one of them alone to {found[0]}, for "
            "example"
        )


def broker_folders(output: Path) -> list[Path]:
    """The archives of a cluster's brokers. Raises OSError."""
    return sorted(path.parent for path in output.glob(f"{FOLDER_PREFIX}*/{MANIFEST_FOLDER}"))


def archives_in(output: Path) -> list[Archive]:
    """All archives of the folder: itself, or those of a cluster's brokers. Raises OSError."""
    return [Archive(folder) for folder in broker_folders(output) or [output] if (folder / MANIFEST_FOLDER).is_dir()]


def check_origins(origins: Iterable[Origin]) -> None:
    """Raises ArchiveError if two logs would get into one archive."""
    known: dict[str, Origin] = {}
    for one in origins:
        other = known.setdefault(one.name if one.in_cluster else "", one)
        other = next((each for each in known.values() if each.in_cluster != one.in_cluster), other)
        if other != one:
            names = " and ".join(sorted(_shown(each) for each in (one, other)))
            raise ArchiveError(f"an archive belongs to one store, not to {names}")


def _shown(origin: Origin) -> str:
    return f"{origin.name} of {origin.address}" if origin.store is None else origin.name
