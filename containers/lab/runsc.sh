#!/bin/sh
# gVisor as it runs in a container with cgroups of both versions and no network to share.
exec /usr/bin/runsc --ignore-cgroups --network=none "$@"
