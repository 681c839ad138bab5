#!/usr/bin/env bash
# Unpacks a minimal Debian bookworm with Python into the folder $1; with systemd if $2 says so, else without.
# The archives stay in .cache for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=${2:-plain}
case $kind in
plain) packages=systemd-standalone-sysusers,systemd-standalone-tmpfiles ;;
systemd) packages=systemd,systemd-sysv ;;
esac
archive=.cache/bookworm-$kind.tar
if [ ! -s "$archive" ]; then
    mkdir -p .cache
    mmdebstrap --quiet --variant=minbase --format=tar --include="python3,ca-certificates,$packages" bookworm "$archive.part"
    mv "$archive.part" "$archive"
fi
tar -xf "$archive" -C "$1" --numeric-owner
