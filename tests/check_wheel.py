"""`make wheel`: checks sdist and wheel, installs the wheel elsewhere, and asks twistd for rmqha there.

It builds them, or takes those of a folder: ``python tests/check_wheel.py [DIST]``.
"""

import email
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
EXTRAS = {"spark", "compression", "delta", "iceberg", "dev", "fuzz", "docs"}
IN_SDIST = {
    *("LICENSE", "NOTICE", "README.md", "NEWS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"),
    *("pyproject.toml", "rmqha/py.typed", "rmqha/settings/java_settings.txt", "twisted/plugins/rmqha_plugin.py"),
    *("packaging/systemd/rmqha@.service", "packaging/debian/control", "packaging/container/Containerfile"),
    *(
        "newsfragments/README.md",
        "packaging/make/pages.py",
        "docs/operating.md",
        "tests/conftest.py",
        "tac/slave.tac",
        "ops/alerts.yml",
        "rmqha/wire/_kernel.pyx",
        "rmqha/wire/_kernel.pyi",
        "rmqha/wire/_sends.pxi",
    ),
}
NEVER_IN_SDIST = (".venv/", ".cache/", ".git/", "__pycache__", "dropin.cache", ".pyc", "twistd.log", ".so", "_kernel.c")


def run(*command: str, cwd: Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_metadata(metadata: Message, where: str) -> None:
    """Raises SystemExit if something is missing that a registry, an installer or a reader needs."""
    wrong = [
        name
        for name in ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords", "Author")
        if not metadata[name]
    ]
    wrong += [] if metadata["Description-Content-Type"] == "text/markdown" else ["Description-Content-Type"]
    wrong += [] if metadata.get_all("License-File") == ["LICENSE", "NOTICE"] else ["License-File"]
    wrong += [] if set(metadata.get_all("Provides-Extra", [])) == EXTRAS else ["Provides-Extra"]
    wrong += [] if len(metadata.get_all("Classifier", [])) > 10 else ["Classifier"]
    wrong += [] if "# rmqha" in str(metadata.get_payload()) else ["the description"]
    if wrong:
        raise SystemExit(f"{where}: missing or wrong in the metadata: {', '.join(wrong)}")


def check_sdist(path: Path) -> None:
    """Raises SystemExit if the sdist misses a file of the project, or has one that is not of it."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        info = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert info is not None, "every sdist has it"
        check_metadata(email.message_from_bytes(info.read()), path.name)
    missing = sorted(IN_SDIST - names)
    strays = sorted(name for name in names if any(part in name for part in NEVER_IN_SDIST))
    if missing or strays:
        raise SystemExit(f"{path.name}: missing {missing}, should not be there: {strays}")


def main(given: Path | None = None) -> None:
    """Raises SystemExit with the reason where the wheel or the sdist is not as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        dist = given or work / "dist"
        if given is None:
            run(sys.executable, "-m", "build", "--outdir", str(dist), cwd=PROJECT)
        (sdist,) = dist.glob("rmqha-*[0-9].tar.gz")
        check_sdist(sdist)
        (wheel,) = dist.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (info,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            check_metadata(email.message_from_bytes(archive.read(info)), wheel.name)
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
        has_kernel = any(name.startswith("rmqha/wire/_kernel.") and name.endswith(".so") for name in names)
        version = run(str(binaries / "rmqha"), "--version", cwd=work)
        if ("(kernel)" in version) != has_kernel or ("CI" in os.environ and given is None and not has_kernel):
            raise SystemExit(f"{wheel.name}: with a compiled kernel: {has_kernel}; what is installed says: {version}")
        run(str(binaries / "pip"), "uninstall", "--yes", "--quiet", "rmqha", cwd=work)
        run(str(binaries / "twistd"), "--help", cwd=work)
    print(f"{sdist.name}: complete; {wheel.name}: twistd lists rmqha from it, elsewhere")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else None)
