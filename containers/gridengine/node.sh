#!/bin/bash
# First process of a machine: sge_qmaster on the login node, sge_execd on an execution host.
set -u
export SGE_ROOT=/var/lib/gridengine SGE_CELL=default SGE_ND=1 # in the foreground
LAB=/etc/gridengine-lab
NODES=(ge-c1 ge-c2)

until_true() { until "$@" >/dev/null 2>&1; do sleep 0.2; done; }

# change NAME SHOW MODIFY EXPRESSION: read a part of the configuration with qconf, edit it, and write it back.
change() {
  qconf "$2" | sed -E "$4" >"/run/$1" && qconf "$3" "/run/$1"
}

# The master has no host and no queue at first, and takes orders from its own machine alone.
set_up() {
  local node
  until_true qconf -sconf
  for node in "${NODES[@]}"; do
    until_true getent hosts "$node"
    qconf -ah "$node"
  done
  qconf -as ge-login
  { qconf -sc && echo 'gpu gpu INT <= YES YES 0 0'; } >/run/complexes && qconf -Mc /run/complexes
  change global -sconf -Mconf 's/^(load_report_time) .*/\1 00:00:05/; s/^(max_unheard) .*/\1 00:00:20/'
  change scheduler -ssconf -Msconf 's/^(schedule_interval) .*/\1 0:0:2/; s/^(flush_(submit|finish)_sec) .*/\1 1/'
  qconf -Ap "$LAB/smp.pe"
  for node in "${NODES[@]}"; do
    until_true qconf -se "$node"
    qconf -aattr exechost complex_values gpu=2 "$node"
  done
  qconf -Aq "$LAB/main.q"
  sed 's/^qname .*/qname single/; s/^hostlist .*/hostlist ge-c1/; s/^h_rt .*/h_rt 00:10:00/' "$LAB/main.q" >/run/single.q
  qconf -Aq /run/single.q
}

if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi
install -d -o bench -g bench /home/bench
echo ge-login >"$SGE_ROOT/$SGE_CELL/common/act_qmaster"
# The engine's names of machines end with the name of their network.
sed -i 's/^ignore_fqdn .*/ignore_fqdn true/' "$SGE_ROOT/$SGE_CELL/common/bootstrap"
if [ "$(uname -n)" = ge-login ]; then
  setpriv --reuid=sgeadmin --regid=sgeadmin --clear-groups \
    /usr/share/gridengine/scripts/init_cluster "$SGE_ROOT" "$SGE_CELL" /var/spool/gridengine/spooldb sgeadmin
  set_up &
  exec /usr/sbin/sge_qmaster
fi
until_true qconf -sh
exec /usr/sbin/sge_execd
