#!/usr/bin/env bash
# Unpacks a minimal Debian bookworm with Python into the folder $1. The archive stays in .cache for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=.cache/bookworm.tar
if [ ! -s "$archive" ]; then
    mkdir -p .cache
    mmdebstrap --quiet --variant=minbase \
        --include=python3,ca-certificates,systemd-standalone-sysusers,systemd-standalone-tmpfiles bookworm "$archive.part"
    mv "$archive.part" "$archive"
fi
tar -xf "$archive" -C "$1" --numeric-owner
