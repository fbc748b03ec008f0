#!/bin/bash
# First process of a node: munge, slurmd on a compute node, slurmctld on the login node.
set -u

if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi
# Slurm takes only device nodes for GPUs; no program asks these for more than a read.
for number in 0 1; do
  if [ ! -e "/dev/fakegpu$number" ]; then mknod "/dev/fakegpu$number" c 1 3; fi
done
until [ -s /run/lab-munge.key ]; do sleep 0.1; done
install -o munge -g munge -m 400 /run/lab-munge.key /etc/munge/munge.key
install -d -o munge -g munge /run/munge
install -d /var/lib/slurm/d
install -d -o slurm -g slurm /var/lib/slurm/ctld /var/log/slurm
install -d -o bench -g bench /home/bench
setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged
case $(uname -n) in
  slurm-login) exec setpriv --reuid=slurm --regid=slurm --clear-groups /usr/sbin/slurmctld -D ;;
  *) exec /usr/sbin/slurmd -D ;;
esac
