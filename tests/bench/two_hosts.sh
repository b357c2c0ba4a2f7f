#!/usr/bin/env bash
# Runs a program under mpirun on two made-up hosts of one machine: network namespaces joined by a shaped link.
#
# two_hosts.sh [-n RANKS_PER_HOST] [-r RATE] [-l LATENCY] PROGRAM [ARGUMENTS...]      as root; ends as mpirun ends
#
#   -n 1        ranks on each host
#   -r 1gbit    rate of the link each way; "none": not shaped
#   -l 50ms     how long a packet may queue for its turn before it is dropped (it adds no delay of its own)
#
# The hosts are called h1-PID and h2-PID. Each has a network namespace and a host name of its own, which is what makes Open MPI
# start a daemon on each, and two machines of them in its own and in our eyes. The file system and the processors are shared.
# In the environment of the program: MASTER_ADDR and MASTER_PORT (for PyTorch) on the first host; GLOO_SOCKET_IFNAME.
# Exit code 77: these hosts cannot be made here (no root, no ip or tc, no permission), with the reason.
set -euo pipefail

ranks_per_host=1 rate=1gbit latency=50ms
while getopts n:r:l: option; do
  case $option in
    n) ranks_per_host=$OPTARG ;;
    r) rate=$OPTARG ;;
    l) latency=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n 's/^# \{0,1\}//; 3p' "$0" >&2; exit 2; }

cannot() {
  echo "two_hosts.sh: $*" >&2
  exit 77
}
[ "$(id -u)" -eq 0 ] || cannot "network namespaces need root"
for tool in ip tc unshare mpirun; do
  [ -n "$(type -P "$tool")" ] || cannot "$tool is not installed (Debian: iproute2, util-linux, openmpi-bin)"
done

hosts=("h1-$$" "h2-$$")
interface=lockstep0
scratch=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-hosts.XXXXXX")

tear_down() {
  trap - EXIT
  for host in "${hosts[@]}"; do
    [ -e "/run/netns/$host" ] || continue
    for pid in $(ip netns pids "$host"); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns delete "$host" || true  # takes its end of the link along
  done
  for host in "${hosts[@]}"; do rm -rf "/etc/netns/$host"; done
  rm -rf "$scratch"
}
trap tear_down EXIT
# mpirun is told, and its end is this script's.
launcher=
trap 'if [ -n "$launcher" ]; then kill -TERM "$launcher" 2>/dev/null || true; else exit 143; fi' INT TERM HUP

# `set -e` sleeps in what stands before `||`: every step says by itself that it failed.
set_up() {
  for host in "${hosts[@]}"; do
    ip netns add "$host" || return
    mkdir -p "/etc/netns/$host"  # `ip netns exec` shows this one as /etc/hosts
    printf '127.0.0.1 localhost\n10.201.77.1 %s\n10.201.77.2 %s\n' "${hosts[@]}" >"/etc/netns/$host/hosts"
  done
  ip link add "$interface" netns "${hosts[0]}" type veth peer name "$interface" netns "${hosts[1]}" || return
  for index in 0 1; do
    local inside=(ip -n "${hosts[$index]}")
    "${inside[@]}" address add "10.201.77.$((index + 1))/24" dev "$interface" || return
    "${inside[@]}" link set lo up || return
    "${inside[@]}" link set "$interface" up || return
    [ "$rate" = none ] ||
      tc -n "${hosts[$index]}" qdisc add dev "$interface" root tbf rate "$rate" burst 256kb latency "$latency" || return
  done
}
# shellcheck source=jobs/mpi.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../jobs/mpi.sh"
find_mpi mpirun
[ "$mpi" = orte ] || cannot "the flags of mpirun in this script are those of Open MPI 4"
set_up 2>"$scratch/error" || cannot "cannot make network namespaces and the link here: $(tail -n 1 "$scratch/error")"

# A shell on a host, as a login over the network would be: mpirun calls AGENT HOST COMMAND...
cat >"$scratch/agent" <<'AGENT'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; exec $*"
AGENT
chmod +x "$scratch/agent"

export MASTER_ADDR=10.201.77.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=$interface
# Without --bind-to none each host, taking the machine for its own, would bind its first rank to the same core.
# shellcheck disable=SC2016  # expanded by the inner shell
ip netns exec "${hosts[0]}" unshare --uts sh -c 'hostname "$0"; exec "$@"' "${hosts[0]}" \
  mpirun --allow-run-as-root --oversubscribe --bind-to none --mca plm_rsh_agent "$scratch/agent" \
  --mca btl tcp,self --mca btl_tcp_if_include "$interface" --mca oob_tcp_if_include "$interface" \
  --mca mpi_yield_when_idle 1 --host "${hosts[0]}:$ranks_per_host,${hosts[1]}:$ranks_per_host" \
  -n $((2 * ranks_per_host)) -x MASTER_ADDR -x MASTER_PORT -x GLOO_SOCKET_IFNAME "$@" &
launcher=$!
while :; do
  code=0
  wait "$launcher" || code=$?
  kill -0 "$launcher" 2>/dev/null || exit "$code"  # a signal, not its end, woke the wait
done
