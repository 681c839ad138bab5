"""The status page of a node, and status.json with the same facts.

Jinja2 writes the page. It escapes every value unless the template says otherwise, and a page takes it about a
millisecond, in which the reactor does nothing else. (twisted.web.template escapes too, but
takes ten times as long.)
"""

import base64
import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import rmqha
from rmqha.ha.slave.contact import iso_of
from rmqha.kit.printing import printable
from rmqha.kit.steps import Steps
from rmqha.store.nodefacts import Kind, facts_of
from rmqha.store.nodestate import NodeState
from rmqha.web.interfaces import ILiveNode
from rmqha.web.plots import HEIGHT, WIDTH, path_of, place_before_end
from rmqha.web.sampling import HISTORY_SECONDS, WorkProgress
from rmqha.web.server import Server
from rmqha.web.watchednode import (
    WatchedNode,
    consumer_lags,
    puts_by_status,
    slaves_of,
    slots_of,
)

REFRESH_SECONDS = 2
SHOWN_SLAVES = 50
SHOWN_SLOTS = 20
SHOWN_GROUPS = 10
SHOWN_CHANGES = 5
MAX_NAME_CHARS = 100
RECENT_SECONDS = 60.0
GOOD = frozenset({"SERVING", "IN_SYNC"})
BAD = frozenset({"GAP", "AHEAD", "DIVERGED", "REPAIRING", "STALLED"})
"""All other states are on the way to a good one."""
KINDS = ("min", "confirmed", "flushed", "verified", "written")

UNKNOWN = "unknown"

Facts = dict[str, Any]


def shown(value: Any) -> Any:
    """The value with all texts printable, and not too long: others have chosen them."""
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= 4 * MAX_NAME_CHARS else f"{text[: 4 * MAX_NAME_CHARS - 1]}…"
    if isinstance(value, dict):
        return {printable(str(name)): shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value


def name(text: str) -> str:
    """A name in a table."""
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 1]}…"


def count(number: float | None) -> str:
    """A number with its thousands apart."""
    if number is None:
        return UNKNOWN
    return f"{number:,.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.2f}"


def byte_size(number: float | None) -> str:
    """Bytes in the largest unit that gives at least 1."""
    if number is None:
        return UNKNOWN
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    at = 0
    while abs(number) >= 1024 and at < len(units) - 1:
        number, at = number / 1024, at + 1
    return f"{number:.0f} B" if at == 0 else f"{number:.1f} {units[at]}"


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"


def moment(text: str) -> str:
    """A time of ISO 8601 as people read it, in UTC; another text as it is."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return text


WORDS: dict[Kind, Any] = {
    Kind.BYTES: byte_size,
    Kind.SECONDS: duration,
    Kind.OFFSET: count,
    Kind.NUMBER: count,
    Kind.MOMENT: moment,
}


def _rows(found: Facts, of_slaves: bool) -> Iterator[tuple[str, str, str]]:
    """The rows of the node's facts that have no place of their own: label, words, and the metric's name."""
    for each in facts_of(NodeState):
        if each.label and each.of_slaves == of_slaves:
            value = found[each.key]
            yield each.label, UNKNOWN if value is None else WORDS.get(each.kind, str)(value), each.metric


def environment() -> Environment:
    """What the templates of all pages share."""
    made = Environment(
        loader=PackageLoader("rmqha.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(count=count, bytes=byte_size, duration=duration, name=name, moment=moment)
    return made


def security_headers(template: str) -> dict[str, str]:
    """The headers that let a page do nothing but use the one style sheet that it contains."""
    style = re.search(r"<style>(.*?)</style>", template, re.DOTALL)
    assert style is not None, "each page has a style sheet"
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    }


class FactsPage(ABC):
    """A page, and the same facts as JSON. Subclasses find the facts, and set the template."""

    _template: Template

    @abstractmethod
    def status(self) -> Steps[Facts]:
        """All facts, by the names that status.json uses. Found in steps."""

    @staticmethod
    def _page_of(found: Facts, refresh: int = REFRESH_SECONDS) -> Facts:
        """What the template shows."""
        return {"s": found, "refresh": refresh}

    def json(self) -> Steps[bytes]:
        """The facts as JSON, found in steps."""
        found = yield from self.status()
        return orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n"

    def html(self, refresh: int = REFRESH_SECONDS) -> Steps[bytes]:
        """The page, whose browser asks for it again every ``refresh`` seconds; 0 for never."""
        found = yield from self.status()
        yield
        return self._template.render(self._page_of(found, refresh)).encode()


class StatusPage(FactsPage):
    """Makes the page and the JSON. ``server`` is the HTTP server, whose limits are shown too."""

    def __init__(self, facts: WatchedNode, server: Server) -> None:
        self._facts = facts
        self._server = server
        self._started_at = time.time()
        made = environment()
        self._template = made.get_template("node.html")
        self.headers = security_headers(self._template.render(self._page_of(_no_facts())))

    @staticmethod
    def _page_of(found: Facts, refresh: int = REFRESH_SECONDS) -> Facts:
        state = found["state"]
        grade = "good" if state in GOOD else "bad" if state in BAD else "warn"
        history = found["history"]
        rates = [each["messagesPerSecond"] for each in history]
        p99s = [each["p99Seconds"] for each in history]
        offsets = found["offsets"]
        first, end = (0, 0) if offsets is None else (offsets["min"], offsets["written"])
        return {
            "s": found,
            "grade": grade,
            "refresh": refresh,
            "copy_rows": list(_rows(found, of_slaves=True)),
            "work_rows": [row for row in _rows(found, of_slaves=False) if row[1] != UNKNOWN],
            "plot": {"width": WIDTH, "height": HEIGHT},
            "rates": path_of(rates, max(rates, default=0.0)),
            "most_rate": max(rates, default=0.0),
            "p99s": path_of(p99s, max((each for each in p99s if each is not None), default=0.0)),
            "most_p99": max((each for each in p99s if each is not None), default=None),
            "marks": []
            if offsets is None
            else [
                (kind, offsets[kind], end - offsets[kind], place_before_end(offsets[kind], first, end))
                for kind in KINDS
            ],
        }

    def status(self) -> Steps[Facts]:
        """See ``FactsPage``."""
        live = self._facts.node.live_node()
        lags = {} if live is None else (yield from consumer_lags(live))
        if self._facts.node.live_node() is not live:
            live = None
        found: Facts = shown({**_no_facts(), **self._of_node(live), **self._of_process()})
        if live is not None:
            found.update(shown(self._of_live(live)))
            found["groups"] = shown(_top_groups(lags))
        return found

    def _of_node(self, live: ILiveNode | None) -> Facts:
        facts, settings = self._facts, self._facts.node.settings
        state = None if live is None else live.state()
        found: Facts = {} if state is None else state.as_json()
        offsets = None if state is None else {kind: found.pop(kind) for kind in KINDS}
        found.pop("peers", None)
        return {
            **found,
            "offsets": offsets,
            "role": facts.role,
            "state": facts.name_of_state(state),
            "phase": facts.node.shown_phase(),
            "name": settings.broker_name,
            "cluster": settings.broker_cluster_name,
            "store": str(settings.store_path_root_dir),
            "failover": facts.node.cluster(SHOWN_CHANGES),
        }

    def _of_process(self) -> Facts:
        facts, now = self._facts, time.time()
        disk = facts.sampler.disk
        recent, history = facts.sampler.history.overall(RECENT_SECONDS), facts.sampler.history.rates()
        return {
            "version": rmqha.__version__,
            "time": iso_of(now),
            "uptimeSeconds": round(now - self._started_at, 1),
            "rates": None
            if recent is None
            else {"messagesPerSecond": recent.messages, "bytesPerSecond": recent.bytes, "p99Seconds": recent.p99},
            "history": [
                {"seconds": each.seconds, "messagesPerSecond": each.messages, "p99Seconds": each.p99}
                for each in history
            ],
            "historySeconds": HISTORY_SECONDS,
            "disk": {
                "usedRatio": disk.used_ratio,
                "freeBytes": disk.free_bytes,
                "totalBytes": disk.total_bytes,
                "problem": disk.problem,
            },
            "certificateExpires": None if facts.tls is None else iso_of(facts.tls.expires_at),
            "ports": {
                port: {"connections": connections, "refused": dict(refused)}
                for port, (connections, refused) in facts.ports(self._server).items()
            },
            "log": [each._asdict() for each in reversed(facts.warnings.last)],
            "progress": _as_facts(facts.sampler.progress),
        }

    def _of_live(self, live: ILiveNode) -> Facts:
        slaves = sorted(slaves_of(live), key=lambda slave: -(slave["lagBytes"] or 0))
        slots = sorted(slots_of(self._facts, live), key=lambda slot: -slot["retainedBytes"])
        settings = self._facts.node.settings
        needs = live.serving is not None and live.serving.group_transfer is not None
        return {
            "slaves": slaves[:SHOWN_SLAVES],
            "slavesCount": len(slaves),
            "inSyncSlaves": sum(slave["inSync"] for slave in slaves),
            "inSyncSlavesNeeded": settings.in_sync_replicas - 1 if needs else None,
            "slots": slots[:SHOWN_SLOTS],
            "slotsCount": len(slots),
            "takesPuts": live.store.takes_puts,
            "puts": puts_by_status(live.store),
            "flushBehindBytes": max(0, live.store.commit_log.max_offset - live.store.commit_log.flushed_offset),
            "dispatchBehindBytes": max(0, live.store.derived.dispatcher.behind_bytes),
            "recordsRefused": {} if live.slave is None else dict(live.slave.refusals),
            "topics": None if live.broker is None else len(live.broker.topics.table.rows),
        }


def _as_facts(progress: WorkProgress | None) -> Facts | None:
    if progress is None:
        return None
    return {
        "what": progress.what,
        "doneBytes": progress.done_bytes,
        "totalBytes": progress.total_bytes,
        "bytesPerSecond": progress.bytes_per_second,
        "secondsLeft": progress.seconds_left,
    }


def _top_groups(lags: dict[tuple[str, str], int]) -> list[Facts]:
    worst = sorted(lags.items(), key=lambda item: -item[1])[:SHOWN_GROUPS]
    return [{"group": group, "topic": topic, "lagMessages": lag} for (topic, group), lag in worst]


def _no_facts() -> Facts:
    """What a node shows before its store is open."""
    of_node = {
        each.key: each.kind.as_json(each.default) for each in facts_of(NodeState) if each.kind is not Kind.NUMBERS
    }
    unknown = (
        *(
            "offsets",
            "storeId",
            "epoch",
            "epochStart",
            "rates",
            "inSyncSlavesNeeded",
            "takesPuts",
            "topics",
            "certificateExpires",
        ),
        *("flushBehindBytes", "dispatchBehindBytes", "historySeconds", "progress"),
    )
    texts = ("role", "state", "phase", "name", "cluster", "store", "version", "time")
    empty: Facts = {
        "slaves": [],
        "slavesCount": 0,
        "inSyncSlaves": 0,
        "slots": [],
        "slotsCount": 0,
        "groups": [],
        "log": [],
        "history": [],
        "puts": {},
        "ports": {},
        "recordsRefused": {},
        "uptimeSeconds": 0.0,
        "disk": {"usedRatio": None, "freeBytes": None, "totalBytes": None, "problem": None},
    }
    of_node.pop("peers")
    return {**of_node, **dict.fromkeys(unknown), **dict.fromkeys(texts, ""), **empty}
