#!/bin/sh
# Make or remove an imitated GPU on a lab host; runs there as root, see gpuhost.py.
# usage: host.sh make <TAR | host.sh remove
set -eu
STATE=/run/imitated-gpu
DRIVER=/proc/driver
BUS=/sys/bus/pci/devices

engine_answers() { docker info >/dev/null 2>&1; }

# wait_for COMMAND...: at most 30 seconds.
wait_for() {
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ "$tries" -lt 150 ] || { echo "waited too long for: $*" >&2; exit 1; }
    sleep 0.2
  done
}

is_gone() { ! kill -0 "$1" 2>/dev/null; }

# Before Docker 28 only a daemon that starts with the feature registers the driver for CDI.
restart_engine() {
  if pid=$(cat /run/docker.pid 2>/dev/null); then
    kill "$pid" 2>/dev/null || true
    wait_for is_gone "$pid"
  fi
  setsid lab-dockerd >>/var/log/dockerd.log 2>&1 </dev/null &
  wait_for engine_answers
}

# A mount is on top of another where making was interrupted.
unmount() {
  while mountpoint -q "$1"; do umount "$1"; done
}

remove() {
  for path in "$DRIVER" "$BUS" "$STATE/unmasked/proc" "$STATE/unmasked/sys" /usr/bin/python3.11; do
    unmount "$path"
  done
  [ ! -e "$STATE/placed" ] || while read -r path; do rm -f "$path"; done <"$STATE/placed"
  rmdir /dev/nvidia-caps /etc/cdi /etc/docker 2>/dev/null || true
  ldconfig
  if [ -e "$STATE/has-cdi" ]; then restart_engine; fi
  rm -rf "$STATE"
}

# Nothing of the host is ever replaced: removing could not bring it back.
place() {
  [ ! -e "$1" ] || { echo "$1 is there already, and not by an imitation" >&2; exit 1; }
  echo "$1" >>"$STATE/placed"
}

place_files() {
  (cd "$STATE/root" && find . ! -type d) | while read -r path; do
    path=/${path#./}
    place "$path"
    mkdir -p "${path%/*}"
    cp -a "$STATE/root$path" "$path"
    case $path in
      *.so.*) # the link that ldconfig would make, and nobody would remove
        link=${path%.so.*}.so.1
        place "$link"
        ln -s "${path##*/}" "$link"
        ;;
    esac
  done
}

# The numbers are those of /dev/null: the node of a GPU that is not there must reach no other driver.
place_nodes() {
  while read -r path mode; do
    place "$path"
    mkdir -p "${path%/*}"
    mknod -m "$mode" "$path" c 1 3
  done <"$STATE/nodes"
}

# A container's own /proc is a new one, which shows neither of these.
mask() {
  for path in "$DRIVER" "$BUS"; do mount -t tmpfs imitated-gpu "$path"; done
  cp -r "$STATE/driver/." "$DRIVER"
  cp -r "$STATE/bus/." "$BUS"
  # In a user namespace the kernel lets nobody mount a new /proc where a part of each one in sight is
  # covered; Apptainer needs that, so one of each is shown uncovered (mount_too_revealing in
  # fs/namespace.c). Bound after the above, as mounts are shared here.
  for name in proc sys; do
    mkdir -p "$STATE/unmasked/$name"
    mount --bind "/$name" "$STATE/unmasked/$name"
  done
}

# The only Python is then one of another version, or one that says so.
place_python() {
  version=$(cat "$STATE/python")
  mkdir -p /usr/lib/python3/dist-packages
  for path in "/usr/bin/python$version" /usr/local/bin/python3; do place "$path"; done
  cp -a /usr/bin/python3.11 "/usr/bin/python$version"
  ln -s "/usr/bin/python$version" /usr/local/bin/python3
  mount --bind /dev/null /usr/bin/python3.11 # is no program, and `command -v` passes it by
}

case ${1:-} in
  make)
    if [ -d "$STATE" ]; then remove; fi
    mkdir -p "$STATE"
    tar -xf - -C "$STATE"
    place_files
    place_nodes
    mask
    ldconfig
    if [ -e "$STATE/python" ]; then place_python; fi
    if [ -e "$STATE/root/etc/docker/daemon.json" ]; then
      : >"$STATE/has-cdi"
      restart_engine
    fi
    ;;
  remove) if [ -d "$STATE" ]; then remove; fi ;;
  *)
    sed -n '3s/^# //p' "$0" >&2
    exit 2
    ;;
esac
