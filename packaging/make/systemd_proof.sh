#!/usr/bin/env bash
# make systemd-proof: boots a bookworm root with systemd and dist/rmqha_*.deb, and lets systemd start a master, a slave
# and a name server, reload them, restart a node that hangs, and leave one stopped whose configuration is wrong.
set -euo pipefail
cd "$(dirname "$0")/../.."
deb=$(ls dist/rmqha_*.deb)
root=$(mktemp -d /var/tmp/rmqha-systemd-XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
packaging/make/bookworm.sh "$root" systemd
cp "$deb" "$root/rmqha.deb"
unshare --mount --pid --fork --mount-proc="$root/proc" chroot "$root" \
    env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /rmqha.deb >"$root/apt.log" 2>&1
sed -i 's/^listenPort=10911/listenPort=24911/' "$root/etc/rmqha/master.conf"
sed -i 's/10912/24912/; s/^listenPort=10921/listenPort=24921/' "$root/etc/rmqha/slave.conf"
echo 'RMQHA_OPTIONS=--port=24876 --bind=127.0.0.1' >"$root/etc/rmqha/namesrv.env"
echo 'brokerRole=NONSENSE' >"$root/etc/rmqha/bad.conf"
mkdir -p "$root/etc/systemd/system/rmqha@slave.service.d"
printf '[Service]\nWatchdogSec=20\n' >"$root/etc/systemd/system/rmqha@slave.service.d/soon.conf"
wanted=$root/etc/systemd/system/multi-user.target.wants
mkdir -p "$wanted"
cat >"$root/etc/systemd/system/probe.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /probe.sh
StandardOutput=file:/probe.log
StandardError=file:/probe.log
ExecStopPost=/bin/touch /over
UNIT
ln -s /etc/systemd/system/probe.service "$wanted/probe.service"
cat >"$root/probe.sh" <<'PROBE'
set -eux
systemctl start rmqha@master rmqha@slave rmqha-namesrv  # returns when they are ready
for unit in rmqha@master rmqha@slave rmqha-namesrv; do systemctl is-active "$unit"; done
systemctl show -P StatusText rmqha@master | grep '^SYNC_MASTER broker-a: SERVING'
systemctl reload rmqha@master rmqha@slave rmqha-namesrv
journalctl -u rmqha@slave | grep 'SIGHUP\|log file reopened'
until rmqha status /var/lib/rmqha/slave | grep IN_SYNC; do sleep 1; done
rmqha put TopicTest hello --count=10 --broker=127.0.0.1:24911 | grep 'SEND_OK 10'
kill -STOP "$(systemctl show -P MainPID rmqha@slave)"  # it hangs: the watchdog notices
until [ "$(systemctl show -P NRestarts rmqha@slave)" = 1 ] && systemctl is-active rmqha@slave; do sleep 1; done
systemctl stop rmqha@master rmqha@slave rmqha-namesrv
[ "$(systemctl show -P Result rmqha@master)" = success ]
rmqha verify /var/lib/rmqha/slave --against /var/lib/rmqha/master
if systemctl start rmqha@bad; then exit 1; fi
sleep 7  # RestartSec is 5
[ "$(systemctl show -P NRestarts rmqha@bad)" = 0 ]
[ "$(systemctl show -P ExecMainStatus rmqha@bad)" = 2 ]
echo PROVED
PROBE
timeout 900 systemd-nspawn --quiet -D "$root" --register=no --keep-unit --kill-signal=SIGKILL --boot >"$root/boot.log" 2>&1 &
until [ -e "$root/over" ] || ! kill -0 $! 2>/dev/null; do sleep 1; done
kill $! 2>/dev/null || true
wait $! || true
if ! grep -q '^PROVED$' "$root/probe.log"; then
    tail -n 40 "$root/probe.log" "$root/boot.log" >&2
    exit 1
fi
echo "proved: systemd starts, reloads, watches and stops nodes of $deb, and leaves one stopped whose configuration is wrong"
