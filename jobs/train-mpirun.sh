#!/usr/bin/env bash
# Trains one run on this machine: jobs/train-mpirun.sh RANKS CONFIG [--run DIR] [--set KEY=VALUE ...]
# Ctrl-C, TERM and a closed terminal end it with a checkpoint (under a bare mpirun they kill the ranks within a second); a second
# Ctrl-C ends it now. SIGUSR1 goes to the ranks, which say where they are (fault.signal_report). A start that failed is repeated
# while checkpoints get newer. Exit codes: those of lockstep train.
set -uo pipefail
# shellcheck source=jobs/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: ${BASH_SOURCE[0]} RANKS CONFIG [ARGUMENTS of lockstep train]" >&2
  exit 2
fi
ranks=$1
shift
# More ranks than cores (nproc obeys OMP_NUM_THREADS): they share them, unbound, and wait by yielding.
binding=$([ "$bind" = cores ] && echo core || echo none)
if [ "$ranks" -gt "$(env -u OMP_NUM_THREADS nproc)" ]; then
  binding=none launcher_flags="--oversubscribe $launcher_flags"
  export OMPI_MCA_mpi_yield_when_idle=1
fi
# Flags of mpirun in place of these, or besides them (launcher_flags): --allow-run-as-root as root, whatever the machine wants.
read -r -a flags <<<"${MPIRUN_FLAGS:---bind-to $binding} $launcher_flags"
find_program
run_directory=$(run_directory_of "$@")
starts=$(mktemp)
trap 'rm -f "$starts"' EXIT

interrupts=0
# shellcheck disable=SC2317  # by the trap
on_interrupt() {
  signals=$((signals + 1)) interrupts=$((interrupts + 1))
  if [ "$interrupts" -eq 1 ]; then
    pass_on INT
  elif [ -n "$launcher_pid" ]; then
    kill -TERM "$launcher_pid"
  fi
}
trap on_interrupt INT
trap 'signals=$((signals + 1)); pass_on TERM' TERM HUP USR2
reports=yes
trap 'signals=$((signals + 1)); ask_for_report' USR1
set -m  # mpirun in a process group of its own: the terminal's Ctrl-C does not reach it

for ((start = 0;; ++start)); do
  newest_step "$run_directory" >>"$starts"
  run_in_background mpirun -n "$ranks" "${flags[@]}" "$lockstep" train "$@"
  if [ "$(verdict "$code")" != failed ] || [ -n "$stop_asked" ]; then break; fi
  now=$(newest_step "$run_directory")
  without=$(stalled "$starts" "$now")
  if [ "$without" -ge "$max_stalled" ] || [ "$start" -ge "$max_restarts" ]; then
    say "failed with exit $code; given up after $((start + 1)) starts, $without of them without a newer checkpoint" >&2
    break
  fi
  say "failed with exit $code; started again, to go on $(place_of "$now")" >&2
done
if [ "$code" -eq 75 ] && [ "$interrupts" -gt 0 ]; then
  code=76  # asked for by the user
  say "stopped by Ctrl-C; the same line goes on $(place_of "$(newest_step "$run_directory")")" >&2
fi
exit "$code"
