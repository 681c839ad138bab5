"""The columns that name the broker of a message. Only rows that come over the network have them."""

import pyarrow as pa

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.network.segment import NetworkSegment
from rmqha.pipeline.options import View
from rmqha.pipeline.schema import BROKER_COLUMNS

VIEWS = (View.RECORDS, View.STATS, View.SPLITS)


def check_view(view: View) -> None:
    """Raises OptionError for a view that reads files."""
    if view not in VIEWS:
        *others, last = (each.value for each in VIEWS)
        views = f"{', '.join(others)} and {last}"
        raise OptionError(f"view={view.value} reads the files of a store: over the network there are {views}")


def broker_columns(segment: NetworkSegment | None, rows: int) -> dict[str, pa.Array]:
    """The columns for this many rows, which ``segment`` has sent last; none of a local store."""
    if segment is None:
        return {}
    values = segment.broker, segment.broker_id
    return {
        name: pa.repeat(pa.scalar(value, kind), rows)
        for (name, kind), value in zip(BROKER_COLUMNS.items(), values, strict=True)
    }
