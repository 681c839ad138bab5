"""`make wheel`: builds the wheel, installs it into a bare environment, and asks twistd for rmqha from there."""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Raises SystemExit with the reason where the wheel is not as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--outdir", str(work / "dist"), cwd=PROJECT)
        (wheel,) = (work / "dist").glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        strays = [name for name in names if name.startswith("twisted/") and name != "twisted/plugins/rmqha_plugin.py"]
        tests = [name for name in names if name.startswith("tests/")]
        needed = {"twisted/plugins/rmqha_plugin.py", "rmqha/py.typed", "rmqha/pipeline/log4j2.properties"}
        needed |= {"pyspark_rmqha.py", "pyspark_rmqha_archive.py"}
        if not needed.issubset(names) or strays or tests:
            raise SystemExit(f"the wheel holds the wrong files: {names}")
        venv.create(work / "venv", with_pip=True)
        binaries = work / "venv" / "bin"
        run(str(binaries / "pip"), "install", "--quiet", str(wheel), cwd=work)
        if "rmqha" not in run(str(binaries / "twistd"), "--help", cwd=work):
            raise SystemExit("twistd does not list rmqha from the installed wheel")
        for plugin in ("rmqha", "rmqha-namesrv"):
            run(str(binaries / "twistd"), plugin, "--help", cwd=work)
        run(str(binaries / "rmqha"), "--version", cwd=work)
        run(str(binaries / "pip"), "uninstall", "--yes", "--quiet", "rmqha", cwd=work)
        run(str(binaries / "twistd"), "--help", cwd=work)
    print(f"{wheel.name}: twistd lists rmqha from it, elsewhere")


if __name__ == "__main__":
    main()
