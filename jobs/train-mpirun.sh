#!/usr/bin/env bash
# Trains one run on this machine: jobs/train-mpirun.sh RANKS CONFIG [--run DIR] [--set KEY=VALUE ...]
# Ctrl-C, TERM and a closed terminal end it with a checkpoint (under a bare mpirun they kill the ranks within a second); a second
# Ctrl-C ends it at once. SIGUSR1 makes the ranks print where they are (fault.signal_report). A start that failed is repeated
# while checkpoints get newer. Exit codes are those of lockstep train; 130 after a second Ctrl-C. A script
# that starts this one with & stops it by TERM or RUN/stop: bash ignores SIGINT there.
set -uo pipefail
# shellcheck source=jobs/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]{0,6}$ ]]; then
  echo "usage: ${BASH_SOURCE[0]} RANKS CONFIG [ARGUMENTS of lockstep train]" >&2
  exit 2
fi
ranks=$1
shift
# More ranks than cores (nproc obeys OMP_NUM_THREADS): they share them, unbound, and wait by yielding.
binding=$([ "$bind" = cores ] && echo core || echo none)
if [ "$ranks" -gt "$(env -u OMP_NUM_THREADS nproc)" ]; then
  binding=none
  export "${mpi_settings[@]}"
fi
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # as in a container
# MPIRUN_FLAGS replaces these flags, launcher_flags adds to them: what the machine needs.
read -r -a flags <<<"${MPIRUN_FLAGS:---bind-to $binding} $launcher_flags"
need_mpirun
find_lockstep
run_directory=$(run_directory_of "$@")
starts=$(mktemp)
trap 'rm -f "$starts"' EXIT

# holds_run: whether one of our ranks holds the lock of the run directory, not another run.
# shellcheck disable=SC2317  # by the trap
holds_run() {
  local pid
  pid=$(sed -n 's/^pid=//p' "$run_directory/lock" 2>/dev/null)
  [ "$(sed -n 's/^host=//p' "$run_directory/lock" 2>/dev/null)" = "$(hostname)" ] || return 1
  while [ "${pid:-0}" -gt 1 ]; do
    [ "$pid" -ne "${launcher_pid:-0}" ] || return 0
    pid=$(awk '/^PPid:/ { print $2 }' "/proc/$pid/status" 2>/dev/null)
  done
  return 1
}

interrupts=0
# shellcheck disable=SC2317  # by the trap
on_interrupt() {
  signals=$((signals + 1)) interrupts=$((interrupts + 1))
  if [ "$interrupts" -eq 1 ] && holds_run && touch "$run_directory/stop" 2>/dev/null; then
    stop_asked=INT  # a stop, not a preemption; mpirun forwards no signal that says so
  elif [ "$interrupts" -eq 1 ]; then
    pass_on INT
  elif [ -n "$launcher_pid" ]; then
    kill -TERM "$launcher_pid"
  fi
}
trap on_interrupt INT
trap 'signals=$((signals + 1)); pass_on TERM' TERM HUP USR2
reports=yes
trap 'signals=$((signals + 1)); ask_for_report' USR1
# Where rank 0 draws the line of progress, through mpirun and this script.
LOCKSTEP_TERMINAL=$([ ! -t 2 ] || tty <&2)
export LOCKSTEP_TERMINAL
set -m  # mpirun gets another process group: the terminal's Ctrl-C does not reach it

for ((start = 0;; ++start)); do
  newest_step "$run_directory" >>"$starts"
  run_in_background mpirun -n "$ranks" "${flags[@]}" "${program[@]}" train "$@"
  record_end "$run_directory"
  if [ "$(verdict "$code")" != failed ] || [ -n "$stop_asked" ]; then break; fi
  now=$(newest_step "$run_directory")
  without=$(stalled "$starts" "$now")
  if [ "$without" -ge "$max_stalled" ] || [ "$start" -ge "$max_restarts" ]; then
    say "failed with exit $code; given up after $((start + 1)) starts, $without of them without a newer checkpoint" >&2
    break
  fi
  say "failed with exit $code; started again, to resume $(place_of "$now")" >&2
done
if [ "$interrupts" -gt 0 ]; then
  [ "$stop_asked" != INT ] || [ "$code" -eq 76 ] || rm -f "$run_directory/stop"  # it ended before it saw the file
  case $code in
    0 | 76) ;;
    75) code=76 ;;  # the user asked for the stop
    *) [ "$interrupts" -lt 2 ] || code=130 ;;
  esac
fi
# So that the last line is not mpirun's, about a rank that ended with a code.
resumes="the same command resumes $(place_of "$(newest_step "$run_directory")")"
case $code in
  0) ;;
  75) say "preempted; $resumes" ;;
  130) say "ended by a second Ctrl-C; $resumes" ;;
  76) say "stopped$([ "$interrupts" -eq 0 ] || echo " by Ctrl-C"); $resumes" ;;
  *) say "ended with exit $code${reasons:+:}" ;;
esac >&2
say_reasons >&2
exit "$code"
