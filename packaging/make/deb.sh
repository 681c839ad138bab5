#!/usr/bin/env bash
# make deb: builds dist/rmqha_VERSION_ARCH.deb with dh-virtualenv, for the Debian release of this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in dpkg-buildpackage dh_virtualenv; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing: apt-get install --no-install-recommends dpkg-dev debhelper dh-virtualenv build-essential fakeroot python3-venv" >&2
        exit 1
    }
done
python=${PYTHON:-.venv/bin/python}
work=.cache/deb
rm -rf "$work"
mkdir -p "$work" dist
"$python" -m build --sdist --outdir "$work" . >"$work/sdist.log"
tar -xzf "$work"/rmqha-*.tar.gz -C "$work"
rm "$work"/rmqha-*.tar.gz
source=$(echo "$work"/rmqha-*)
"$python" packaging/make/pages.py "$source/pages"
cp -a packaging/debian "$source/debian"
cp "packaging/systemd/rmqha@.service" "$source/debian/rmqha.rmqha@.service"
cp packaging/systemd/rmqha-namesrv.service "$source/debian/rmqha.rmqha-namesrv.service"
for kind in sysusers tmpfiles; do cp "packaging/systemd/rmqha.$kind" "$source/debian/rmqha.$kind"; done
(cd "$source" && PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg-buildpackage --no-sign --build=binary) >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    echo "the whole log is $work/build.log" >&2
    exit 1
}
mv "$work"/rmqha_*.deb dist/
rm -rf "$source"
ls -l dist/rmqha_*.deb
