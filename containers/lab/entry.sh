#!/bin/bash
# First process of a lab host: devices, host keys, the Docker Engine, and sshd, started again when killed.
set -u

if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi
install -d -o bench -g bench -m 700 /run/user/1000 /home/bench/.ssh
install -d /run/sshd

keys=/home/bench/.ssh/authorized_keys
touch "$keys"
grep -qxF "$LAB_PUBKEY" "$keys" || printf '%s\n' "$LAB_PUBKEY" >>"$keys"
chown bench:bench "$keys"
chmod 600 "$keys"

# The host keys live as long as the home volume, so that a new container is still the same host.
install -d -m 700 /home/.lab-keys
if [ ! -e /home/.lab-keys/ssh_host_ed25519_key ]; then
  ssh-keygen -q -t ed25519 -N '' -f /home/.lab-keys/ssh_host_ed25519_key
fi
cp /home/.lab-keys/ssh_host_ed25519_key* /etc/ssh/

# Mounts made inside have to reach the engine's containers; a pid file of an earlier life stops it.
mount --make-rshared /
rm -f /run/docker.pid /run/docker/containerd/containerd.pid
lab-dockerd >/var/log/dockerd.log 2>&1 &

trap 'kill "$sshd" "$(cat /run/docker.pid)" 2>/dev/null; wait; exit 0' TERM INT
while :; do
  /usr/sbin/sshd -D -e >>/var/log/sshd.log 2>&1 &
  sshd=$!
  wait "$sshd"
  sleep 1
done
