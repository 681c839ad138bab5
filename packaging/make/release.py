"""Makes a release in ``dist/``, and says what a person must still do: ``make release``.

It builds what is committed, in a folder of its own. Exit codes: 0, all is made and signed; 1, a check refused or a
build failed; 2, wrong usage; 3, this machine cannot make some of it: the lines ``not made`` say what, and why.
"""

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version as installed_version
from pathlib import Path

from rmqha.testing.archive import unpack

ROOT = Path(__file__).resolve().parents[2]
NO_FRAGMENTS = {"README.md", "template.md.jinja"}
NAMED = re.compile(r"\brmqha[-_:](\d+\.\d+\.\d+)|rmqha-image\.tar:(\d+\.\d+\.\d+)")
"""A version that a page names."""
SUMS = "SHA256SUMS"
INCOMPLETE = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """What a checkout says of the release to be made."""

    version: str
    installed: str
    news: str
    changelog: str
    named: frozenset[str]
    fragments: tuple[str, ...]
    branch: str
    changes: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a release has, the command that makes it in ``dist/``, and what that needs of the machine."""

    name: str
    command: tuple[str, ...]
    tools: tuple[str, ...] = ()
    as_root: bool = False

    def missing(self) -> str:
        """Why this machine cannot make it, or an empty text."""
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        if missing:
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        return "only root can" if self.as_root and os.geteuid() else ""


PARTS = (
    Part("sdist and wheel", ("env", "RMQHA_EXTENSION=no", sys.executable, "-m", "build", "--outdir", "dist")),
    Part("man pages and completions", (sys.executable, "packaging/make/pages.py", "dist/pages")),
    Part("Debian package", ("packaging/make/deb.sh",), ("dpkg-buildpackage", "dh_virtualenv", "fakeroot")),
    Part("image", ("packaging/make/image.sh",), ("mmdebstrap", "umoci"), as_root=True),
)


def said(*command: str, cwd: Path = ROOT) -> str:
    """What the command prints. Raises CalledProcessError, OSError."""
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def facts_of(root: Path) -> Facts:
    """Read the checkout. Raises CalledProcessError if it is not one of git, OSError."""
    news = re.search(r"^## rmqha (\S+) \(", (root / "NEWS.md").read_text("utf-8"), re.MULTILINE)
    changelog = re.match(r"rmqha \((\S+)-\d+\)", (root / "packaging/debian/changelog").read_text("utf-8"))
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    return Facts(
        version=tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"],
        installed=installed_version("rmqha"),
        news=news[1] if news else "no version",
        changelog=changelog[1] if changelog else "no version",
        named=frozenset(a or b for page in pages for a, b in NAMED.findall(page.read_text("utf-8"))),
        fragments=tuple(
            sorted(path.name for path in (root / "newsfragments").iterdir() if path.name not in NO_FRAGMENTS)
        ),
        branch=said("git", "branch", "--show-current", cwd=root).strip(),
        changes=tuple(said("git", "status", "--porcelain", cwd=root).splitlines()),
        tags=tuple(said("git", "tag", cwd=root).split()),
    )


def problems(facts: Facts) -> list[str]:
    """Why this must not become a release: a sentence for each reason."""
    version, tag = facts.version, f"v{facts.version}"
    found = []
    if facts.changes:
        more = f" and {len(facts.changes) - 1} more" if len(facts.changes) > 1 else ""
        found.append(f"Not committed: {facts.changes[0][3:]}{more}: commit or remove it first.")
    if facts.branch != "main":
        found.append(f"The branch is {facts.branch or 'a detached commit'}: a release is made from main.")
    if facts.installed != version:
        found.append(f".venv has rmqha {facts.installed}, pyproject.toml says {version}: make install.")
    if facts.news != version:
        found.append(f"NEWS.md begins with {facts.news}, pyproject.toml says {version}: write the news of {version}.")
    if facts.changelog != version:
        found.append(
            f"packaging/debian/changelog begins with {facts.changelog}, pyproject.toml says {version}: add an entry."
        )
    if others := sorted(facts.named - {version}):
        found.append(f"Pages name rmqha {', '.join(others)}, pyproject.toml says {version}: correct the pages.")
    if facts.fragments:
        found.append(
            f"newsfragments/ still has {facts.fragments[0]}{' …' if len(facts.fragments) > 1 else ''}: put it into "
            f"NEWS.md (towncrier build --version {version}), and remove it."
        )
    if tag in facts.tags:
        found.append(f"The tag {tag} is there already: choose another version in pyproject.toml.")
    return found


def export(root: Path, folder: Path) -> None:
    """Write what is committed into a folder, without anything that git ignores. Raises CalledProcessError, OSError."""
    archive = folder.with_suffix(".tar")
    said("git", "archive", f"--output={archive}", "HEAD", cwd=root)
    unpack(archive, folder)
    (root / ".cache").mkdir(exist_ok=True)
    (folder / ".cache").symlink_to(root / ".cache")  # what was downloaded before is used again


def pack(folder: Path, archive: Path, epoch: int) -> None:
    """Pack all files of a folder as ``NAME/`` into ``NAME.tar.gz``: the same bytes each time. Raises OSError."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
        return member

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            name = f"{archive.name.removesuffix('.tar.gz')}/{path.relative_to(folder)}"
            tar.add(path, name, recursive=False, filter=plain)


def build(version: str, parts: list[Part], dist: Path) -> list[Path]:
    """Make all parts of what is committed, and move them to ``dist``. Raises CalledProcessError, OSError."""
    epoch = int(said("git", "log", "-1", "--format=%ct"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHON": sys.executable}
    with tempfile.TemporaryDirectory(prefix="rmqha-release-", dir="/var/tmp") as name:
        source = Path(name) / "source"
        export(ROOT, source)
        made = source / "dist"
        made.mkdir()
        for part in parts:
            print(f"== {part.name}", flush=True)
            subprocess.run(part.command, cwd=source, env=environment, check=True, stdout=sys.stderr)
        sdist = made / f"rmqha-{version}.tar.gz"
        unpack(sdist, source / "sdist")  # as it was packed, it has the time of now
        pack(source / "sdist" / sdist.name.removesuffix(".tar.gz"), sdist, epoch)
        pack(made / "pages", made / f"rmqha-{version}-pages.tar.gz", epoch)
        subprocess.run((sys.executable, "tests/check_wheel.py", str(made)), cwd=source, check=True)
        dist.mkdir(exist_ok=True)
        return [Path(shutil.move(path, dist / path.name)) for path in sorted(made.iterdir()) if path.is_file()]


def write_sums(files: list[Path], sums: Path) -> None:
    """What ``sha256sum --check`` reads."""
    lines = []
    for path in files:
        with path.open("rb") as content:
            digest = sha256()
            while chunk := content.read(1 << 20):
                digest.update(chunk)
        lines.append(f"{digest.hexdigest()}  {path.name}\n")
    sums.write_text("".join(lines))


def no_key() -> str:
    """Why nothing can be signed here, or an empty text."""
    if shutil.which("gpg") is None:
        return "gpg is missing"
    listed = subprocess.run(("gpg", "--list-secret-keys", "--with-colons"), capture_output=True, text=True, check=False)
    return "" if listed.stdout.startswith("sec:") or "\nsec:" in listed.stdout else "gpg has no secret key"


def sign(sums: Path) -> None:
    """Sign the checksums with gpg's default key, and prove the signature. Raises CalledProcessError."""
    signature = f"{sums}.asc"
    subprocess.run(("gpg", "--yes", "--armor", "--output", signature, "--detach-sign", str(sums)), check=True)
    subprocess.run(("gpg", "--verify", signature, str(sums)), check=True)


def steps(facts: Facts, commit: str, not_made: dict[str, str]) -> list[str]:
    """What a person must still do."""
    version = facts.version
    missing = [
        f"Make on a machine that can, and add to dist/{SUMS}: {name}. Here {reason}."
        for name, reason in not_made.items()
        if name != "signature"
    ]
    if "signature" in not_made:
        missing.append(f"Sign where the key is: gpg --armor --detach-sign dist/{SUMS}")
    return [
        f"See that .ci/run has passed for commit {commit}.",
        "Prove the packages, as root: make deb-proof systemd-proof image-proof",
        *missing,
        f'Tag and push: git tag -s v{version} {commit} -m "rmqha {version}" && git push origin main v{version}',
        f"Upload to PyPI: twine upload dist/rmqha-{version}.tar.gz dist/rmqha-{version}-py3-none-any.whl",
        f"Add dist/rmqha_{version}-*.deb to the apt repository. Build it on each further architecture: make deb",
        f"Push the image: skopeo copy oci-archive:dist/rmqha-image.tar:{version} docker://REGISTRY/rmqha:{version}",
        f"Publish dist/{SUMS}, dist/{SUMS}.asc and dist/rmqha-{version}-pages.tar.gz beside the tag.",
        f"Announce it: the section {version} of NEWS.md.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--dry-run", action="store_true", help="check, and say what would be made; build nothing")
    is_dry = parser.parse_args().dry_run
    facts = facts_of(ROOT)
    if wrong := problems(facts):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    commit = said("git", "rev-parse", "--short", "HEAD").strip()
    not_made = {part.name: part.missing() for part in PARTS if part.missing()}
    parts = [part for part in PARTS if part.name not in not_made]
    if reason := no_key():
        not_made["signature"] = reason
    dist = ROOT / "dist"
    if is_dry:
        print(*(f"would make: {part.name}" for part in parts), sep="\n")
    else:
        files = build(facts.version, parts, dist)
        write_sums(files, dist / SUMS)
        if "signature" not in not_made:
            sign(dist / SUMS)
        print(*(f"made: dist/{path.name}, {path.stat().st_size:,} bytes" for path in files), sep="\n")
    for name, reason in not_made.items():
        print(f"not made: {name}: {reason}")
    print(f"rmqha {facts.version} of commit {commit}. A person must still:")
    print(*(f"{number}. {step}" for number, step in enumerate(steps(facts, commit, not_made), 1)), sep="\n")
    return INCOMPLETE if not_made else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd))}: exit status {error.returncode}\n{error.stderr or ''}".rstrip())
