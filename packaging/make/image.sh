#!/usr/bin/env bash
# make image: builds the image that Containerfile describes, without a registry: dist/rmqha-image.tar (OCI layout).
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in mmdebstrap umoci; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install --no-install-recommends mmdebstrap umoci" >&2; exit 1; }
done
python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'import rmqha; print(rmqha.__version__)')
work=$(mktemp -d /var/tmp/rmqha-image-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
layout=$work/layout
umoci init --layout "$layout"
umoci new --image "$layout:$version"
umoci unpack --image "$layout:$version" "$work/bundle"
root=$work/bundle/rootfs
packaging/make/bookworm.sh "$root"
# The environment is made where it will be in the image: /opt/rmqha. The image has no pip then. Its Python compiles the kernel.
/usr/bin/python3 -m venv "$root/opt/rmqha"
"$root/opt/rmqha/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/wheel" . >"$work/wheel.log"
"$root/opt/rmqha/bin/pip" install --quiet --disable-pip-version-check --no-compile "$work"/wheel/*.whl
"$root/opt/rmqha/bin/pip" uninstall --quiet --yes pip setuptools
grep -rlI "^#!$root/opt/rmqha" "$root/opt/rmqha/bin" | xargs sed -i "1s|$root||"
install -m 755 packaging/container/rmqha-container "$root/usr/local/bin/rmqha-container"
ln -s /opt/rmqha/bin/rmqha "$root/usr/local/bin/rmqha"
echo "rmqha:x:10911:10911::/data:/usr/sbin/nologin" >>"$root/etc/passwd"
echo "rmqha:x:10911:" >>"$root/etc/group"
install -d -o 10911 -g 10911 -m 750 "$root/data"
chroot "$root" /opt/rmqha/bin/python -m compileall -q /opt/rmqha/lib
chroot "$root" /opt/rmqha/bin/python -c 'from twisted.plugin import IPlugin, getPlugins; list(getPlugins(IPlugin))'
rm -rf "$root"/dev/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/*
umoci repack --image "$layout:$version" "$work/bundle"
umoci config --image "$layout:$version" --config.user 10911:10911 --config.workingdir /data --config.volume /data \
    --config.entrypoint /usr/local/bin/rmqha-container --config.cmd "" --config.stopsignal SIGTERM \
    --config.exposedports 10909/tcp --config.exposedports 10911/tcp --config.exposedports 10912/tcp \
    --config.exposedports 10919/tcp --config.exposedports 10921/tcp --config.exposedports 10922/tcp \
    --config.exposedports 5557/tcp --config.label "org.opencontainers.image.version=$version" \
    --config.label org.opencontainers.image.licenses=Apache-2.0
umoci gc --layout "$layout"
mkdir -p dist
tar -cf dist/rmqha-image.tar -C "$layout" .
ls -l dist/rmqha-image.tar
