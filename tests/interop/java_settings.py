"""The keys that Java's broker takes from its broker.conf, by the setters of its configuration classes.

``python -m tests.interop.java_settings`` writes ``rmqha/settings/java_settings.txt`` from the jars of Maven Central.
Java takes a key for each public setter of one simple value: ``setFileReservedTime`` is ``fileReservedTime``
(``MixAll.properties2Object``).
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from rmqha.settings.confkeys import JAVA_SETTINGS

RELEASES = ("4.9.3", "4.9.8", "5.0.0", "5.1.4", "5.3.3", "5.5.0")
CLASSES = (
    ("rocketmq-common", "org.apache.rocketmq.common.BrokerConfig", "4.9.3"),
    ("rocketmq-common", "org.apache.rocketmq.common.BrokerIdentity", "5.0.0"),
    ("rocketmq-store", "org.apache.rocketmq.store.config.MessageStoreConfig", "4.9.3"),
    ("rocketmq-remoting", "org.apache.rocketmq.remoting.netty.NettyServerConfig", "4.9.3"),
    ("rocketmq-remoting", "org.apache.rocketmq.remoting.netty.NettyClientConfig", "4.9.3"),
    ("rocketmq-auth", "org.apache.rocketmq.auth.config.AuthConfig", "5.3.3"),
    ("rocketmq-tiered-store", "org.apache.rocketmq.tieredstore.MessageStoreConfig", "5.3.3"),
)
"""The classes of which a broker makes one object each of its file: the jar that has it, and since which release."""
VALUE = r"java\.lang\.(?:String|Integer|Long|Double|Boolean|Float)|int|long|double|boolean|float"
SETTER = re.compile(rf"public (?:final )?void set(\w+)\((?:{VALUE})\);")
HEADER = """\
# The keys of broker.conf that Java's brokers know, and the releases that know them. Made from the jars by
# python -m tests.interop.java_settings
"""


@cache
def _jar(artifact: str, release: str) -> Path:
    """The jar, in Maven's local repository."""
    coordinates = f"org.apache.rocketmq:{artifact}:{release}"
    path = Path.home() / ".m2/repository/org/apache/rocketmq" / artifact / release / f"{artifact}-{release}.jar"
    if not path.exists():
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get"
        subprocess.run(["mvn", "-q", "-B", goal, "-Dtransitive=false", f"-Dartifact={coordinates}"], check=True)
    return path


def keys_of_release(release: str) -> set[str]:
    """All keys that a broker of this release knows."""
    keys = set()
    for artifact, name, since in CLASSES:
        if RELEASES.index(release) < RELEASES.index(since):
            continue
        command = ["javap", "-public", "-cp", str(_jar(artifact, release)), name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = SETTER.findall(shown)
        assert found, f"{name} of {release} has no setters"
        keys |= {setter[0].lower() + setter[1:] for setter in found}
    return keys


def request_codes(release: str) -> dict[str, int]:
    """The codes of all requests of this release, by name."""
    artifact = "common" if release.startswith("4.") else "remoting"
    name = f"org.apache.rocketmq.{artifact}.protocol.RequestCode"
    command = ["javap", "-public", "-constants", "-cp", str(_jar(f"rocketmq-{artifact}", release)), name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {found[1]: int(found[2]) for found in re.finditer(r"(?:int|short) (\w+) = (\d+);", shown)}


def listing() -> str:
    """The content of ``rmqha/settings/java_settings.txt``."""
    by_release = {release: keys_of_release(release) for release in RELEASES}
    lines = [
        " ".join([key, *(release for release in RELEASES if key in by_release[release])])
        for key in sorted(set().union(*by_release.values()))
    ]
    return HEADER + "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    JAVA_SETTINGS.write_text(listing())
    print(f"{JAVA_SETTINGS} is written", file=sys.stderr)
