#!/bin/sh
# The lab host's Docker Engine, with gVisor as a further runtime; its configuration file is left to others.
exec dockerd --log-level=warn --add-runtime runsc=/usr/local/sbin/lab-runsc "$@"
