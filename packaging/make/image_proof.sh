#!/usr/bin/env bash
# make image-proof: unpacks dist/rmqha-image.tar, and runs it in namespaces: it copies a Java master outside.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d /var/tmp/rmqha-run-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir "$work/layout"
tar -xf dist/rmqha-image.tar -C "$work/layout"
version=$("$python" -c 'import rmqha; print(rmqha.__version__)')
umoci unpack --image "$work/layout:$version" "$work/bundle"
"$python" - "$work/bundle/config.json" <<'PYTHON'
import json, sys
process = json.load(open(sys.argv[1]))["process"]
assert process["user"]["uid"] == process["user"]["gid"] == 10911, process["user"]
assert process["cwd"] == "/data", process["cwd"]
assert process["args"][0] == "/usr/local/bin/rmqha-container", process["args"]
PYTHON
RMQHA_ROOT=$work/bundle/rootfs "$python" -m pytest -q --basetemp="$work/pytest" tests/interop/proof_packages.py -k image
echo "proved: the image runs as user 10911, keeps its store in /data, answers the health check, and copies a Java master"
