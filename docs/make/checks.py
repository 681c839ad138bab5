"""Lists the checks of ``rmqha doctor`` in docs/checks.md: ``make pages``."""

from pathlib import Path

from rmqha.ops.doctor.checks import CHECKS
from rmqha.ops.doctor.findings import CheckResult

PAGE = Path(__file__).parents[1] / "checks.md"
HEAD = """\
# The checks of rmqha doctor

`docs/make/checks.py` makes this page from `CHECKS` in `rmqha/ops/doctor/checks.py`. A test keeps both equal.

```sh
rmqha doctor broker-a:10911 broker-b:10911        # a master and its slave, ours or Java's
rmqha doctor --namesrv ns-a:9876                  # all brokers that a name server lists
rmqha doctor /data/slave --conf broker.conf       # a store on this machine
```

All three may be combined. Brokers and name servers are asked at the same time, and each request has a time limit of a
few seconds. rmqha doctor writes nothing. It only connects to HA ports, and sends nothing there. From the brokers it
learns the name servers, and from those the other brokers of the same brokerName, and asks them too.

| verdict | means |
|---|---|
"""
CHECKS_HEAD = """
The exit code is 1 if a check fails. WARN and FAIL come with what to do. `--all` also shows PASS and SKIP, and `--json`
always does.

| check | passes if |
|---|---|
"""


def page() -> str:
    """The whole page, in Markdown."""
    verdicts = "".join(f"| {verdict.name} | {verdict.value} |\n" for verdict in CheckResult)
    checks = "".join(f"| {check.name} | {check.meaning} |\n" for check in CHECKS)
    return HEAD + verdicts + CHECKS_HEAD + checks
