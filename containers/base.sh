#!/usr/bin/env bash
# Make a Debian base image from the Debian archive alone, where no container registry can be reached.
#
# usage: containers/base.sh SUITE TAG [PACKAGE,PACKAGE...]
#
# The mirror is the one this machine's apt uses, else mmdebstrap's own; MIRROR=URL overrides it.
# DOCKER names the docker client. Needs mmdebstrap and the Debian archive keyring.
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
suite=$1
tag=$2
packages=${3:-ca-certificates,python3}
docker=${DOCKER:-docker}

# Both formats of apt's source lists are read by apt itself.
configured_mirror() {
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    sed -n 's/^Debian|Debian|//p' | head -n 1
}

mirror=${MIRROR:-$(configured_mirror)}

mmdebstrap --quiet --variant=minbase --include="$packages" \
  --aptopt='Acquire::Retries "3"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -rf "$1"/var/cache/apt/*.bin "$1"/var/lib/apt/lists/* "$1"/var/log/*.log' \
  "$suite" - ${mirror:+"deb $mirror $suite main"} |
  "$docker" import -c 'CMD ["/bin/bash"]' -c 'ENV LANG=C.UTF-8' - "$tag"
