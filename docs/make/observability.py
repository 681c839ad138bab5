"""Writes the tables of metrics into docs/observability.md: ``make pages``."""

from pathlib import Path

from rmqha.web.catalogue import NAME_SERVER, NODE, Metric

PAGE = Path(__file__).parents[1] / "observability.md"
TABLES = {"node": NODE, "name server": NAME_SERVER}


def table(metrics: tuple[Metric, ...]) -> str:
    """The rows of a table in Markdown."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows)


def page() -> str:
    """The page with its tables written again."""
    text = PAGE.read_text()
    for name, metrics in TABLES.items():
        begin, end = f"<!-- metrics of a {name} -->\n", "\n<!-- end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{table(metrics)}{end}{after}"
    return text
