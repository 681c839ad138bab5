"""systemd takes our units, finds them well hardened, and restarts what a restart can mend."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmqha.kit.exitcodes import NOT_MENDED_BY_RESTART
from rmqha.namesrv_tap import Options as NameServerOptions
from rmqha.settings.settings import make_settings, read_properties
from rmqha.tap import Options as NodeOptions
from tests.needs import need
from tests.pages.pages import all_blocks

SYSTEMD = Path(__file__).parents[2] / "packaging" / "systemd"
UNITS = ("rmqha@.service", "rmqha-namesrv.service")
TWISTD = "/opt/rmqha/bin/twistd"
MOST_EXPOSED = 15
"""The limit of ``systemd-analyze security``, in tenths: 0 is fully hardened, 100 is not at all."""


def unit(name: str) -> configparser.ConfigParser:
    """A unit's settings. The last one counts where a name comes twice."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(SYSTEMD / name)
    return parser


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """A folder with our units. They start this environment's twistd, because /opt/rmqha may be missing."""
    twistd = str(Path(sys.executable).with_name("twistd"))
    for name in UNITS:
        (tmp_path / name).write_text((SYSTEMD / name).read_text().replace(TWISTD, twistd))
    return tmp_path


def test_the_files_of_a_member_of_a_failover_cluster_are_what_its_unit_reads(tmp_path: Path) -> None:
    """docs/failover.md, *Set it up*: the node's settings and options, and the name server's."""
    (block,) = (
        block
        for block in all_blocks()
        if block.section == "failover: Set it up" and block.lines[0].startswith("# /etc/")
    )
    conf, node, names = re.split(r"^# /etc/.*\n", "\n".join(block.lines), flags=re.MULTILINE)[1:]
    (tmp_path / "a.conf").write_text(conf)
    options = NodeOptions()
    options.parseOptions([f"--conf={tmp_path / 'a.conf'}", *node.removeprefix("RMQHA_OPTIONS=").split()])
    assert options.failover is not None
    assert (options.failover.member, options.failover.is_founder) == ("a", True)
    name_server = NameServerOptions()
    name_server.parseOptions(names.removeprefix("RMQHA_OPTIONS=").split())
    assert name_server["witness"] == "9877"


def need_systemd(tool: str) -> None:
    """Skips the test without this tool."""
    need(None if shutil.which(tool) else f"{tool} is missing: Debian's package systemd has it")


def analyze(*arguments: str) -> tuple[int, str]:
    need_systemd("systemd-analyze")
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_no_mistake(name: str, runnable: Path) -> None:
    assert analyze("verify", "--man=no", str(runnable / name)) == (0, "")


@pytest.mark.process
def test_a_mistake_is_found(runnable: Path) -> None:
    path = runnable / UNITS[0]
    path.write_text(path.read_text().replace("WatchdogSec=60", "WatchdogSeconds=60"))
    _, said = analyze("verify", "--man=no", str(path))
    assert "WatchdogSeconds" in said


@pytest.mark.process
@pytest.mark.parametrize("name", UNITS)
def test_the_units_are_hardened(name: str, runnable: Path) -> None:
    status, said = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(runnable / name))
    assert status == 0, said


@pytest.mark.process
def test_a_unit_without_hardening_is_found(runnable: Path) -> None:
    path = runnable / UNITS[0]
    path.write_text(re.sub(r"(?m)^(Protect|Private|Restrict|SystemCall)\w+=.*\n", "", path.read_text()))
    assert analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(path))[0] != 0


@pytest.mark.parametrize("name", UNITS)
def test_only_a_restart_that_can_help_is_made(name: str) -> None:
    service = unit(name)["Service"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert [int(code) for code in service["RestartPreventExitStatus"].split()] == [*map(int, NOT_MENDED_BY_RESTART)]


@pytest.mark.parametrize("name", UNITS)
def test_what_tls_needs_is_not_forbidden(name: str) -> None:
    """pyOpenSSL's callbacks need memory that is writable and executable."""
    assert "MemoryDenyWriteExecute" not in unit(name)["Service"]


@pytest.mark.parametrize("name", ["slave", "master"])
def test_the_examples_of_configurations_are_valid(name: str) -> None:
    settings = make_settings(read_properties(SYSTEMD.parent / "etc" / f"{name}.conf"))
    assert settings.store_path_root_dir == Path(f"/var/lib/rmqha/{name}")
    assert settings.bind_address == "127.0.0.1"


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sysusers", "tmpfiles"])
def test_users_and_folders_are_made(kind: str, tmp_path: Path) -> None:
    tool = shutil.which(f"systemd-{kind}")
    need_systemd(f"systemd-{kind}")
    assert tool is not None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nrmqha:x:123:123::/var/lib/rmqha:/bin/sh\n")
    (tmp_path / "etc" / "group").write_text("root:x:0:\nrmqha:x:123:\n")
    if kind == "sysusers":
        for name in ("passwd", "group"):
            path = tmp_path / "etc" / name
            path.write_text(path.read_text().splitlines()[0] + "\n")
    options = ["--create"] if kind == "tmpfiles" else []
    if os.geteuid() != 0:
        pytest.skip("only root may give files to others")
    subprocess.run([tool, f"--root={tmp_path}", *options, str(SYSTEMD / f"rmqha.{kind}")], check=True)
    if kind == "sysusers":
        assert "rmqha" in (tmp_path / "etc" / "passwd").read_text()
    else:
        modes = {path: (tmp_path / path).stat().st_mode & 0o777 for path in ("var/lib/rmqha", "etc/rmqha")}
        assert modes == {"var/lib/rmqha": 0o750, "etc/rmqha": 0o750}
