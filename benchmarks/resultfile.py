"""A file of what a benchmark measured, with facts of the machine: ``--json FILE``, in the format of *pyperf*.

``python -m pyperf compare_to OLD.json NEW.json --table`` compares two files, and ``python -m pyperf metadata FILE``
prints the facts. Values are seconds, less is better: a rate is kept as seconds a message.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyperf

JSON_HELP = "write all rounds to this file too, for python -m pyperf compare_to"


def save(path: Path, figures: Mapping[str, Sequence[float]]) -> None:
    """Write the values of all rounds, in seconds, by the names of the figures. Replaces the file. Raises OSError."""
    suite = pyperf.BenchmarkSuite(
        [
            pyperf.Benchmark([pyperf.Run([value], metadata={"name": name, "unit": "second"}) for value in values])
            for name, values in figures.items()
        ]
    )
    suite.dump(str(path), replace=True)
