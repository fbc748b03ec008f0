#!/bin/sh
# Install locked wheels into a venv of their own: the same steps for the venv of vm, for the image and
# for the SIF of a site without Docker.
#
# usage: sh install.sh WHEELS VENV [PYTHON], both folders as absolute paths
#
# WHEELS holds the wheels and requirements.lock; no network is used. Installed again at the same path,
# every file is the same byte for byte.
set -eu
umask 022
unset PYTHONPATH PYTHONHOME PYTHONOPTIMIZE PYTHONPYCACHEPREFIX
wheels=$1 venv=$2 python=${3:-python3}

rm -rf "$venv"
"$python" -I -m venv --without-pip "$venv"
# -B: what is imported here would leave byte code that is checked against the clock.
PYTHONPATH=$(echo "$wheels"/pip-*.whl) "$venv/bin/python" -B -m pip --isolated install --quiet \
  --no-index --find-links "$wheels" --require-hashes --no-compile --no-cache-dir \
  --disable-pip-version-check --requirement "$wheels/requirements.lock"
cp "$wheels/requirements.lock" "$venv/requirements.lock"

# What byte code holds depends on all that its compiler compiled before, so each compiler gets the same
# few files in the same order. A package may hold a file for a later Python, which does not matter.
cd /
find "$venv/lib" -name '*.py' -print0 | LC_ALL=C sort -z |
  PYTHONHASHSEED=0 xargs -0 -n 250 -P "$(nproc 2>/dev/null || echo 1)" \
    "$venv/bin/python" -s -B -m compileall -q -f --invalidation-mode unchecked-hash \
    >/dev/null 2>&1 || true
