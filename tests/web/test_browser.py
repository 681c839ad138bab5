"""The pages in a real browser: every state is shown, nothing is blocked; a telephone and a dark screen do."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.testing.nodes import TwistdNode
from rmqha.web.server import Page
from rmqha.web.watchednode import STATES
from tests.waiting import WAIT_SECONDS
from tests.web import test_namesrvweb
from tests.web.nodes import NodeWebTestCase
from tests.web.test_exposition import HOSTILE

CHROMIUM = shutil.which("chromium")
HARNESS = Path(__file__).with_name("harness.html")
HACK = "<script>var hacked = 1</script><img src=x onerror='var hacked = 1'>\"'>"
GOOD = {"SERVING", "IN_SYNC"}
BAD = {"GAP", "AHEAD", "DIVERGED", "REPAIRING", "STALLED"}
SLAVE_STATES = {state.name for state in ReplicaState}
SCHEMES = {"light": "1", "dark": "0"}
"""The values of chromium's setting preferredColorScheme."""
MIN_CONTRAST = 4.5
"""What WCAG asks of text."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="chromium is missing (Debian's package)"),
]


def command_of(work: Path, *options: str) -> list[str]:
    """The browser without a window. Its complaints about the page are on stderr."""
    assert CHROMIUM is not None, "CI installs Debian's package chromium"
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]
    return [*command, f"--user-data-dir={work / 'profile'}", "--enable-logging=stderr", *options]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The HTTP port of a master."""
    work = tmp_path_factory.mktemp("browser")
    with TwistdNode(work, ["--role=async-master", "--port=0", "--http-port=0"]) as node:
        node.wait_for_event(Event.LISTENING, purpose="remoting")
        yield node.port("http")


def test_the_browser_blocks_nothing_and_shows_the_state(tmp_path: Path, port: int) -> None:
    command = command_of(tmp_path, "--dump-dom", f"http://127.0.0.1:{port}/?refresh=0")
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ASYNC_MASTER" in shown.stdout
    assert "Content Security Policy" not in shown.stderr
    assert "Refused" not in shown.stderr


def pages_of_a_slave(case: NodeWebTestCase) -> Iterator[tuple[str, Page]]:
    """A page for each state, and one on which every text is hostile."""
    node = case.begin("SLAVE", brokerId="1")
    for state in sorted(SLAVE_STATES):
        node.state_facts = {"state": state, "reason": f"why it is {state}", "master": "broker-a.example.com:10912"}
        yield state, case.get("/", refresh="0")
    node.state_facts = {"state": "DIVERGED", "reason": HACK, "master": HACK * 9, "warnings": (HACK, *HOSTILE)}
    for number, name in enumerate((HACK, *HOSTILE, "x" * 500, "Topic-" * 16)):
        node.broker.consumer_offsets.table.offset_table[f"{name}@{name}"] = {0: -number}
    yield "hostile", case.get("/", refresh="0")
    case.node = None
    for phase in sorted(set(STATES) - SLAVE_STATES - {"SERVING"}):
        case.phase = phase
        yield phase, case.get("/", refresh="0")
    case.node, case.phase = node, "RUNNING"


def pages_of_a_master(case: NodeWebTestCase) -> Iterator[tuple[str, Page]]:
    node = case.begin("SYNC_MASTER")
    for number in range(60):
        assert node.serving is not None
        connection = node.serving.factory.buildProtocol(None)
        assert connection is not None
        connection.identity = connection.peer = f"slave-{number}.a-long-name.example.com:{number}"
    for number in range(3000):
        node.broker.consumer_offsets.table.offset_table[f"Topic-{number:040}@Group-{number:040}"] = {0: -number}
    yield "SERVING", case.get("/", refresh="0")


def pages_of_a_name_server() -> Iterator[tuple[str, Page]]:
    case = test_namesrvweb.ClusterPageTests()
    case.setUp()
    case.register("broker-a", 0, "broker-a-0.example.com:10911")
    case.register("broker-a", 1, "broker-a-1.example.com:10911")
    yield "cluster", case.get("/")
    for _ in range(3):
        case.register("broker-a", 0, "broker-a-0.example.com:10911")
        case.register("broker-a", 0, "broker-a-2.example.com:10911")
    for number, name in enumerate((*HOSTILE, HACK)):
        case.register(name, number % 2, f"{name}:{number}")
    yield "hostile-cluster", case.get("/")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """All pages that are looked at."""
    found = dict(pages_of_a_name_server())
    for make in (pages_of_a_slave, pages_of_a_master):
        case = NodeWebTestCase()
        case.mktemp = lambda: str(tmp_path_factory.mktemp("node") / "folder")  # type: ignore[method-assign]
        case.setUp()
        try:
            found.update(make(case))
        finally:
            case.doCleanups()
    return found


@contextmanager
def served(pages: dict[str, Page]) -> Iterator[tuple[str, "threading.Event", dict[str, Any]]]:
    """A server of the pages and of the harness: its address, and what the harness has found once the event is set."""
    found: dict[str, Any] = {}
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.removeprefix("/page/"))
            if page is not None:
                policy = page.headers["Content-Security-Policy"].replace("; frame-ancestors 'none'", "")
                self.answer(page.body, page.content_type, {"Content-Security-Policy": policy})
            elif self.path == "/names":
                self.answer(json.dumps(list(pages)).encode(), "application/json")
            else:
                self.answer(HARNESS.read_bytes(), "text/html")

        def do_POST(self) -> None:
            found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(b"", "text/plain")
            done.set()

        def answer(self, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(200)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", done, found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Seen = dict[str, dict[str, dict[str, Any]]]
"""By page and width of the window: what a reader sees."""


@pytest.fixture(scope="module", params=SCHEMES)
def seen(request: pytest.FixtureRequest, pages: dict[str, Page], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What the browser shows of all pages, in light and in dark."""
    work = tmp_path_factory.mktemp("harness")
    with served(pages) as (address, done, found), (work / "chromium.log").open("wb") as log:
        options = [f"--blink-settings=preferredColorScheme={SCHEMES[request.param]}", "--remote-debugging-port=0"]
        browser = subprocess.Popen(command_of(work, *options, address), stdout=log, stderr=log)
        try:
            assert done.wait(WAIT_SECONDS), (work / "chromium.log").read_text()
        finally:
            browser.terminate()
            browser.wait()
    is_dark = found["SERVING"]["400"]["pageColour"] != "rgb(255, 255, 255)"
    assert is_dark == (request.param == "dark"), "the browser has the scheme"
    return found


def test_every_state_has_its_words_and_its_colour(seen: Seen) -> None:
    assert set(STATES) <= set(seen), "every state has a page"
    colours: dict[str, set[str]] = {}
    for state in STATES:
        for page in seen[state].values():
            assert state in page["box"]
            assert page["title"].startswith(state)
            assert ("why it is" in page["box"]) == (state in SLAVE_STATES)
            grade = "good" if state in GOOD else "bad" if state in BAD else "warn"
            assert page["grades"] == ["state", grade], state
            colours.setdefault(grade, set()).add(page["boxColour"])
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 3, "the three look different"
    assert seen["cluster"]["400"]["grades"] == ["state", "good"]
    assert seen["hostile-cluster"]["400"]["grades"] == ["state", "bad"]


def test_a_telephone_needs_no_scrolling_sideways(seen: Seen) -> None:
    for name, widths in seen.items():
        assert (widths["400"]["width"], widths["1000"]["width"]) == (400, 1000)
        for page in widths.values():
            assert page["tooWide"] <= 0, name
            assert "groups" not in page["scrolled"], "the number of messages is in sight"


def test_all_text_can_be_read(seen: Seen) -> None:
    for name, widths in seen.items():
        for page in widths.values():
            assert page["leastContrast"][0] >= MIN_CONTRAST, (name, page["leastContrast"])


def test_the_keyboard_reaches_everything_and_shows_where_it_is(seen: Seen) -> None:
    for name, widths in seen.items():
        assert widths["400"]["unseen"] == [], name


def test_hostile_names_are_only_text(seen: Seen) -> None:
    for name in ("hostile", "hostile-cluster"):
        page = seen[name]["400"]
        assert "<script>" in page["text"]
        assert not page["hacked"]
        assert not {"script", "img", "iframe"} & set(page["elements"])
        assert all(line.isprintable() for line in page["text"].replace("\t", " ").splitlines())
