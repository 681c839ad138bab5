#!/usr/bin/env bash
# make deb-proof: installs dist/rmqha_*.deb in a bookworm root, runs a node in it that copies a Java master outside.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
deb=$(ls dist/rmqha_*.deb)
root=$(mktemp -d /var/tmp/rmqha-deb-XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
packaging/make/bookworm.sh "$root"
inside() { unshare --mount --pid --fork --mount-proc="$root/proc" chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }
cp "$deb" "$root/rmqha.deb"
inside apt-get install -y -qq --no-install-recommends /rmqha.deb
rm "$root/rmqha.deb"
[ -z "$(inside dpkg --verify rmqha)" ]
[ "$(inside stat -c "%U %a" /var/lib/rmqha)" = "rmqha 750" ]
RMQHA_ROOT=$root "$python" -m pytest -q --basetemp="$root/pytest" tests/interop/proof_packages.py -k debian
# Away again: what the operator has written stays.
inside apt-get remove -y -qq rmqha
[ ! -e "$root/opt/rmqha" ] || { find "$root/opt/rmqha" | head >&2; echo "removing the package left files in /opt" >&2; exit 1; }
[ -e "$root/etc/rmqha/slave.conf" ] && [ -d "$root/var/lib/rmqha/slave/commitlog" ]
lintian --fail-on error "$deb"
echo "proved: $deb installs in a bookworm root, its node copies a Java master, lintian finds no error, removal keeps the data"
