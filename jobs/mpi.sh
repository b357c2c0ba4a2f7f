# What differs between the launchers of MPI (sourced): Open MPI 4 (ORTE), Open MPI 5 (PRRTE), and Hydra (MPICH, Intel MPI, MVAPICH).
# shellcheck shell=bash disable=SC2034  # variables for those who source this

# As root, more ranks than cores, unbound, and ranks that yield while they wait: variables, as each launcher reads its own only. Flags of
# mpirun override them. MPICH needs none: only its ranks do not yield at once, for which it has no setting.
mpi_settings=(
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
)

# find_mpi MPIRUN: sets `mpi` to the kind of this launcher: orte, prrte or hydra; '' means another one.
mpi=''
find_mpi() {
  case $("$1" --version 2>&1) in
    *'(Open MPI) '[1-4].*) mpi=orte ;;
    *'Open MPI'*) mpi=prrte ;;
    *HYDRA* | *MPICH* | *'Intel(R) MPI'*) mpi=hydra ;;
    *) mpi='' ;;
  esac
}

# placement nodes|cores CORES: flags of mpirun: one rank on each node, unbound, or each rank bound to so many cores.
placement() {
  case $mpi-$1 in
    hydra-nodes) echo "-ppn 1 -bind-to none" ;;
    hydra-cores) echo "-bind-to core:$2" ;;
    *-nodes) echo "--map-by ppr:1:node --bind-to none" ;;
    *-cores) echo "--map-by slot:PE=$2 --bind-to core" ;;
  esac
}

# ranks_of PROCESS: the ranks on this node that mpirun, or a proxy of Hydra, has started. The launcher tells them their number; other
# children connect to other nodes. In a job of Slurm, Hydra starts all its proxies by srun.
ranks_of() {
  local child
  # shellcheck disable=SC2013  # words of a line
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    case $mpi-$(cat "/proc/$child/comm" 2>/dev/null) in
      hydra-hydra_* | -hydra_*) ranks_of "$child" ;;  # which may have inherited a number
      hydra-srun) ranks_of_proxies ;;
      orte-* | prrte-*) ! grep -qsz '^OMPI_COMM_WORLD_RANK=' "/proc/$child/environ" || echo "$child" ;;
      *) ! grep -qszE '^(OMPI_COMM_WORLD|PMI)_RANK=' "/proc/$child/environ" || echo "$child" ;;
    esac
  done
}
ranks_of_proxies() {
  local process
  for process in /proc/[0-9]*; do
    if grep -qs '^hydra_' "$process/comm" && grep -qszx "SLURM_JOB_ID=${SLURM_JOB_ID:-}" "$process/environ"; then
      ranks_of "${process#/proc/}"
    fi
  done
}

# heeds PROCESS SIGNAL: whether it has a handler, or ignores the signal, which would kill it otherwise.
heeds() {
  local key mask
  while read -r key mask; do
    case $key in SigCgt: | SigIgn:) [ $((0x$mask >> ($(kill -l "$2") - 1) & 1)) -eq 0 ] || return 0 ;; esac
  done 2>/dev/null <"/proc/$1/status"
  return 1
}

# send_to_ranks SIGNAL LAUNCHER: srun and mpirun forward USR1 and USR2. But Hydra's mpirun dies of USR2, and after USR1 it may end with 0,
# whatever its ranks end with: there the ranks of this node get the signal (if one gets a stop signal, all stop). mpirun's ranks get none
# before those of this node heed it; after a minute they do.
send_to_ranks() {
  local to tenths rank ranks
  for ((tenths = 0; tenths < 600; ++tenths)); do
    to=$2
    ! grep -qsx srun "/proc/$2/comm" || break  # its ranks are elsewhere
    kill -0 "$2" 2>/dev/null || return 0
    ranks=$(ranks_of "$2")
    [ "$mpi" != hydra ] || to=$ranks
    for rank in $ranks; do heeds "$rank" "$1" || ranks=''; done
    [ -z "$ranks" ] || break
    sleep 0.1
  done
  # shellcheck disable=SC2086  # several
  [ -z "$to" ] || kill "-$1" $to 2>/dev/null
}

# exit_code_of MPIRUN_CODE: as shells have it: 128 + N if a rank was ended by signal N. Hydra's mpirun ends with N; the ranks end with no
# such code of their own but 1 to 5.
exit_code_of() {
  if [ "$mpi" = hydra ] && [ "$1" -ge 6 ] && [ "$1" -le 31 ]; then echo $((128 + $1)); else echo "$1"; fi
}
