# What the job scripts share (sourced): start the ranks, pass signals on to them, and decide by the exit code what comes next.
# shellcheck shell=bash disable=SC2034  # code, stop_asked: for those who source this
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobs/site.sh
source "$jobs/site.sh"

say() { printf '[%s] job: %s\n' "$(date +%H:%M:%S)" "$*"; }

find_program() {
  command -v "$lockstep" >/dev/null && return
  if [ "$lockstep" = lockstep ] && [ -x "$jobs/../build/release/bin/lockstep" ]; then
    lockstep=$(cd "$jobs/.." && pwd)/build/release/bin/lockstep
    return
  fi
  say "no program $lockstep: put it on PATH or set LOCKSTEP (see $jobs/site.sh)"
  exit 2
}

# --- running and stopping -------------------------------------------------------------------------------------------------

launcher_pid=''  # of the srun or mpirun that is running
stop_asked=''    # the signal that asked for a checkpoint and the end
pass_on() {
  stop_asked=$1
  [ -z "$launcher_pid" ] || kill -USR2 "$launcher_pid" 2>/dev/null
}

# run_in_background COMMAND...: so that traps run at once, not when the ranks have ended; sets `code`.
# The loop: a signal ends `wait` early; and the pid of a child that has ended can be waited for again.
run_in_background() {
  local before
  "$@" </dev/null &
  launcher_pid=$!
  while :; do
    before=$signals
    wait "$launcher_pid"
    code=$?
    [ "$before" -ne "$signals" ] || break
  done
  launcher_pid=''
}
signals=0  # that were trapped

# --- progress -------------------------------------------------------------------------------------------------------------

# run_directory_of ARGUMENTS...: of `lockstep train`: --run, or runs/NAME of the configuration.
run_directory_of() {
  local directory='' config='' argument
  while [ $# -gt 0 ]; do
    argument=$1
    shift
    case $argument in
      --run) directory=${1:-} && shift ;;
      --run=*) directory=${argument#--run=} ;;
      --set | --resume) shift ;;
      -*) ;;
      *) config=$argument ;;
    esac
  done
  if [ -z "$directory" ]; then
    directory=$(basename "$config")
    directory=runs/${directory%.*}
  fi
  echo "$directory"
}

# newest_step RUN: of its checkpoints, by their names; -1 without any.
newest_step() {
  local name newest=-1
  for name in "$1"/checkpoints/step-*.h5; do
    name=${name##*/step-}
    name=${name%.h5}
    if [[ $name =~ ^[0-9]+$ ]] && [ "$((10#$name))" -gt "$newest" ]; then newest=$((10#$name)); fi
  done
  echo "$newest"
}

# stalled STARTS STEP: how many of the last starts in the file STARTS (a line each: the newest step when it began) saved nothing.
stalled() {
  tac "$1" 2>/dev/null | awk -v now="$2" '$1 < now {exit} {count++} END {print count + 0}'
}

# verdict CODE: what an exit code asks for: finished, stop, again (checkpoint written) or failed (start again, bounded).
verdict() {
  case $1 in
    0) echo finished ;;
    75) echo again ;;
    1 | 5) echo failed ;;  # 1: the launcher's own, when it lost a rank
    *) if [ "$1" -ge 128 ]; then echo failed; else echo stop; fi ;;
  esac
}
