# For tests under Slurm (sourced): a private cluster of virtual nodes on this machine, in one temporary directory, and its end.
# shellcheck shell=bash disable=SC2154,SC2034  # scratch is of support/cli.sh, slurmd is for tests
# Environment, besides that of support/cli.sh: LOCKSTEP_SLURM_CORES, cores that each node claims to have (default 16).

# skip WHY: no cluster here, so nothing is known; CTest shows the test as skipped.
skip() {
  echo "SKIPPED: $*"
  exit 77
}

# start_cluster NODES: munged, slurmctld and so many slurmd, n1 n2 ..., of this directory only. Jobs of partition low (the default) give
# way to those of high: SIGUSR2, then 60 s of grace. Credentials are not signed: slurmd 22.05 checks munge's in several threads at once
# with one context, frees twice, and aborts (once in some thousand steps). TmpFS with %n lets PMIx run on two nodes of one machine.
start_cluster() {
  local program host node port choosing
  [ "$(id -u)" -eq 0 ] || skip "slurmd needs root to start jobs"
  for program in munged slurmctld slurmd sbatch srun scontrol squeue scancel; do
    command -v "$program" >/dev/null || skip "$program is not installed (packages slurm-wlm and munge)"
  done
  cluster=$PWD/cluster
  chmod 0755 "$scratch"  # munge's socket must be reachable
  mkdir -p "$cluster"/{munge,run,log,state,spool,tmp}
  for ((node = 1; node <= $1; ++node)); do mkdir "$cluster/spool/n$node" "$cluster/tmp/n$node"; done
  chmod 0700 "$cluster/munge"
  head -c 1024 /dev/urandom >"$cluster/munge/key"
  chmod 0400 "$cluster/munge/key"
  host=$(hostname -s)
  nodes=$1
  exec {choosing}</tmp
  flock "$choosing"  # until the daemons listen: another test may choose ports now
  port=$(free_ports)
  # Nodes that are one machine have one /tmp, where Open MPI's daemons of one node clear away what those of another need.
  cat >"$cluster/own_tmp" <<PROLOG
#!/bin/sh
own=$cluster/tmp/\$SLURMD_NODENAME/\$SLURM_JOB_ID.\${SLURM_STEP_ID:-batch}
mkdir -p "\$own" && echo "export TMPDIR=\$own"
PROLOG
  chmod +x "$cluster/own_tmp"
  cat >"$cluster/slurm.conf" <<CONF
ClusterName=lockstep
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/run/munge.sock
CredType=cred/none
SlurmctldPort=$port
SrunPortRange=$((port + 10))-$((port + 209))
SlurmctldPidFile=$cluster/run/slurmctld.pid
SlurmdPidFile=$cluster/run/slurmd.%n.pid
SlurmdSpoolDir=$cluster/spool/%n
StateSaveLocation=$cluster/state
SlurmctldLogFile=$cluster/log/slurmctld.log
SlurmdLogFile=$cluster/log/slurmd.%n.log
SlurmdDebug=debug
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=5,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=20
SlurmdTimeout=20
InactiveLimit=0
TmpFS=$cluster/tmp/%n
TaskProlog=$cluster/own_tmp
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$cluster/log/jobcomp.txt
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=${LOCKSTEP_SLURM_CORES:-16} RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
CONF
  export SLURM_CONF=$cluster/slurm.conf
  daemons=()
  declare -gA slurmd=()  # pids
  trap stop_cluster EXIT
  munged --foreground --force --key-file="$cluster/munge/key" --socket="$cluster/run/munge.sock" --pid-file="$cluster/run/munged.pid" \
    --log-file="$cluster/log/munged.log" --seed-file="$cluster/munge/seed" >"$cluster/log/munged.out" 2>&1 &
  daemons+=($!)
  wait_for 60 test -S "$cluster/run/munge.sock" || skip "munged does not start: $(tail -n 3 "$cluster/log/munged.out")"
  slurmctld -D -f "$SLURM_CONF" >"$cluster/log/slurmctld.out" 2>&1 &
  daemons+=($!)
  for ((node = 1; node <= nodes; ++node)); do start_node "n$node"; done
  wait_for 120 nodes_idle ||
    skip "Slurm does not start: $(tail -n 3 "$cluster"/log/slurmctld.out "$cluster"/log/slurmd.*.out 2>&1)"
  flock -u "$choosing"
  exec {choosing}<&-
}

start_node() {
  slurmd -D -f "$SLURM_CONF" -N "$1" >>"$cluster/log/slurmd.$1.out" 2>&1 &
  daemons+=($!)
  slurmd[$1]=$!  # for whoever kills a node
}

nodes_idle() {
  [ "$(sinfo -h -N -p high -o '%N %t' 2>/dev/null | grep -c ' idle$')" -eq "$nodes" ]
}

# One of the ranges of 210 ports below those that the kernel gives out, in which nobody listens.
free_ports() {
  local base
  while :; do
    base=$((10000 + RANDOM % 95 * 210))
    ss -Hltn | awk '{sub(/.*:/, "", $4); print $4}' | awk -v a="$base" '$1 >= a && $1 < a + 210 {found = 1} END {exit found}' && break
  done
  echo "$base"
}

# wait_for SECONDS COMMAND...: until the command succeeds; false when it did not in that time.
wait_for() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.2
  done
}

# with_environment TEXT: every process of this cluster with this variable; for '', every one. None but this cluster's has its
# slurm.conf.
with_environment() {
  local files
  mapfile -t files < <(grep -lzxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null)
  if [ -n "$1" ] && [ ${#files[@]} -gt 0 ]; then mapfile -t files < <(grep -lzxF "$1" "${files[@]}" 2>/dev/null); fi
  [ ${#files[@]} -eq 0 ] || printf '%s\n' "${files[@]}" | grep -oE '[0-9]+' | grep -vxE "$$|$BASHPID"
}

# processes_of NODE: what Slurm started on a node: slurmstepd and the jobs' own.
processes_of() {
  local process parent
  for process in $(with_environment "SLURMD_NODENAME=$1"); do
    echo "$process"
    parent=$(ps -o ppid= -p "$process" | tr -d ' ')
    case $(cat "/proc/$parent/comm" 2>/dev/null) in slurmstepd*) echo "$parent" ;; esac
  done | sort -un
}

# steps_of JOB: the slurmstepd of its steps that have not ended.
steps_of() {
  local process
  for process in $(with_environment ''); do
    case $( (tr '\0' ' ' <"/proc/$process/cmdline") 2>/dev/null) in "slurmstepd: [$1."*) echo "$process" ;; esac
  done
}

# stop_cluster: the jobs, the daemons, and whatever they left; then the scratch folder.
stop_cluster() {
  local pid
  scancel --quiet --user="$(id -un)" 2>/dev/null
  wait_for 8 no_jobs
  for pid in "${daemons[@]}"; do kill -TERM "$pid" 2>/dev/null; done
  for pid in $(with_environment ''); do kill -KILL "$pid" 2>/dev/null; done
  wait 2>/dev/null
  rm -rf "$scratch"
}
no_jobs() { [ -z "$(squeue -h 2>/dev/null)" ]; }
