"""Photographs the pages of real nodes for docs/images: ``python docs/make/screenshots.py``. It needs chromium.

A name server, a SYNC_MASTER and its slave run for a while with some load. The images have few colours, so that they
stay small: all together have at most ``MAX_BYTES``.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port

IMAGES = Path(__file__).parents[1] / "images"
MAX_BYTES = 150 * 1024
COLOURS = 24
SECONDS_OF_LOAD = 40
DARK = "--blink-settings=preferredColorScheme=0"


class Picture(NamedTuple):
    """A page of a node, photographed at this size in pixels."""

    name: str
    node: str
    width: int
    height: int
    options: tuple[str, ...] = ()


PICTURES = (
    Picture("master", "master", 900, 1180),
    Picture("lost-master", "slave", 400, 760, (DARK,)),
    Picture("cluster", "names", 900, 520),
)


def photograph(picture: Picture, port: int, work: Path) -> None:
    """Write a picture of the page that a port shows. Raises subprocess.CalledProcessError."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "Debian's package chromium has it"
    taken, kept = work / f"{picture.name}.png", IMAGES / f"{picture.name}.png"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={work / 'c'}"]
    options += [f"--window-size={picture.width},{picture.height}", f"--screenshot={taken}", *picture.options]
    subprocess.run([chromium, *options, f"http://127.0.0.1:{port}/?refresh=0"], check=True, capture_output=True)
    with Image.open(taken) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(kept, optimize=True)


def put_for_a_while(port: int) -> None:
    """Put messages into a few topics, more and more of them."""
    ends = time.monotonic() + SECONDS_OF_LOAD
    count = 40
    while time.monotonic() < ends:
        for topic in ("Orders", "Payments"):
            command = [sys.executable, "-m", "rmqha.cli", "put", topic, "hello", f"--count={count}"]
            subprocess.run([*command, f"--broker=127.0.0.1:{port}"], check=True, capture_output=True)
        count += 60


def main() -> None:
    """Start the nodes, and take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        names_port, port = free_port(), free_port()
        common = [f"--namesrv=127.0.0.1:{names_port}", "--name=broker-a", "--http-port=0"]
        with (
            NameServerNode(work, [f"--port={names_port}", "--http-port=0"]) as names,
            TwistdNode(work, ["--role=sync-master", f"--port={port}", *common], name="master") as master,
            TwistdNode(
                work,
                ["--role=slave", "--port=0", f"--master=127.0.0.1:{port + 1}", "--broker-id=1", *common],
                name="slave",
            ) as slave,
        ):
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            ports = {"names": names.port("http"), "master": master.port("http"), "slave": slave.port("http")}
            put_for_a_while(port)
            for picture in PICTURES:
                if picture.name == "lost-master":
                    continue
                photograph(picture, ports[picture.node], work)
            master.kill()
            slave.wait_for_event(Event.SLAVE_STATE, state="CONNECTING")
            photograph(PICTURES[1], ports["slave"], work)
    total = sum(path.stat().st_size for path in IMAGES.glob("*.png"))
    print(f"{total} bytes in {IMAGES}")
    assert total <= MAX_BYTES, "the pictures are too large"


if __name__ == "__main__":
    main()
