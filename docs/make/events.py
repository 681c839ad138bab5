"""Lists the events of the log in docs/events.md: ``make pages``."""

from pathlib import Path

from rmqha.kit.events import ALARM_LEVELS, Event

PAGE = Path(__file__).parents[1] / "events.md"
HEAD = """\
# The events of the log

`docs/make/events.py` makes this page from `rmqha/kit/events.py`. A test keeps both equal.

With `--log-format=json` each line of the log of a node or a name server is a JSON object. Its fields:

| field | meaning |
|---|---|
| `event` | what happened: one of the names below. Lines of Twisted and of other libraries have none |
| `time` | seconds since 1970 |
| `level` | `debug`, `info`, `warn`, `error` or `critical` |
| `namespace` | the module that logged it |
| `message` | the text for people, as in the text format |
| `traceback` | only with errors that have one |
| others | the facts in the text, such as `peer`, `offset` or `reason` |

Choose lines by `event` and by facts. **The text may change with each release; the names stay.** If a name must go, the
news of the release say so. For example:

```sh
twistd -n --pidfile= rmqha --role=async-master --store=/data/master --port=10911 --log-format=json > node.log
grep '"event":"listening"' node.log | grep '"purpose":"ha"'
```

If you alert on logs, alert at least on `process_ends`, `slave_verdict`, `rival_broker`, `not_registered`,
`tables_not_copied`, `reads_wait`, `disk_full`, `dispatch_waits_for_disk` and `nothing_deleted`. The
[runbook](runbook.md) says what to type when a state or a warning shows. The metric `rmqha_log_events_total`
counts the alarms by level: see [observability.md](observability.md).

## Alarms

The levels `warn`, `error` and `critical`. A line with `critical` has a traceback, or says why the process ends.
"""
NEWS_HEAD = """
## News

The levels `info` and `debug`: what a healthy process says.
"""


def table(levels: tuple[str, ...]) -> str:
    """The rows of a table in Markdown."""
    rows = "".join(f"| `{event}` | {event.level} | {event.meaning} |\n" for event in Event if event.level in levels)
    return f"\n| event | level | meaning |\n|---|---|---|\n{rows}"


def page() -> str:
    """The whole page, in Markdown."""
    return HEAD + table(ALARM_LEVELS) + NEWS_HEAD + table(("info", "debug"))
