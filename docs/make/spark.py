"""Writes the columns of a record into docs/spark.md: ``make pages``."""

import re
from pathlib import Path

from rmqha.pipeline.schema import COLUMNS

PAGE = Path(__file__).parents[1] / "spark.md"


def page() -> str:
    """The page with its list written again."""
    listed = f"<!-- columns -->{', '.join(COLUMNS)}<!-- end -->"
    return re.sub("<!-- columns -->.*<!-- end -->", listed, PAGE.read_text())
