# What the job scripts share (sourced): starts the ranks, forwards signals to them, and decides by the exit code what comes next.
# shellcheck shell=bash disable=SC2034  # code, stop_asked: for those who source this
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# No process tells the time: Slurm may end one first.
say() { printf '[%(%H:%M:%S)T] job: %s\n' -1 "$*"; }

# read_site_files: runs the files of $LOCKSTEP_SITE, of which a later one wins over an earlier one, and the environment over all. It leaves
# out one that others may write, and one in a folder that others may write: they could run commands as this user. A user's private group
# has no other members.
site_files=()  # those that were read
read_site_files() {
  local name file files=() own_group=4294967294  # nobody's
  local -A given=()
  for name in $(compgen -e); do
    case $name in
      LOCKSTEP* | MPIRUN_FLAGS | OMPI_MCA_* | PRTE_MCA_* | UCX_* | FI_* | NCCL_* | SLURM_PMIX_FENCE | HDF5_USE_FILE_LOCKING | OMP_NUM_THREADS)
        given[$name]=${!name}
        ;;
    esac
  done
  IFS=: read -r -a files <<<"${LOCKSTEP_SITE-/etc/lockstep/site.sh:${HOME:-}/.config/lockstep/site.sh}"
  [ "$EUID" -eq 0 ] || [ "$(id -gn 2>/dev/null)" != "$(id -un 2>/dev/null)" ] || own_group=$(id -g)
  for file in "${files[@]}"; do
    [ -e "$file" ] || continue
    if ! [ -r "$file" ] || [ -n "$(find -L "$file" "$(dirname "$file")" -maxdepth 0 \
      '(' -perm /002 -o -perm /020 ! -gid "$own_group" -o ! -user 0 ! -user "$EUID" ')')" ]; then
      say "warning: $file is not read: it or its folder can be written by others, or the file cannot be read (chmod go-w)" >&2
      continue
    fi
    # shellcheck source=/dev/null
    source "$file"
    site_files+=("$file")
  done
  for name in "${!given[@]}"; do export "$name=${given[$name]}"; done
}
read_site_files
# shellcheck source=jobs/site.sh
source "$jobs/site.sh"
# shellcheck source=jobs/mpi.sh
source "$jobs/mpi.sh"

# In a bundle (INSTALL) the launcher is next to this folder.
[ ! -x "$jobs/../bin/mpirun" ] || PATH=$(cd "$jobs/../bin" && pwd):$PATH
find_mpi mpirun

# need_mpirun: ends the script if there is no mpirun.
need_mpirun() {
  ! command -v mpirun >/dev/null || return 0
  say "no mpirun on PATH: load the module of the MPI${SLURM_JOB_ID:+, or let srun start the ranks: LOCKSTEP_SRUN_MPI=TYPE (srun --mpi=list)}"
  exit 2
}

# have_lockstep: whether the program $lockstep is there; sets `program` to its words: a program may be a command with arguments, such as
# `apptainer exec lockstep.sif lockstep`. Where PATH has no lockstep, the one built in this repository. One in a container that srun
# opens on each node (pyxis) cannot be seen from here.
program=()
have_lockstep() {
  local built=$jobs/../build/release/bin/lockstep
  if [ "$lockstep" = lockstep ] && ! in_container && ! command -v lockstep >/dev/null && [ -x "$built" ]; then
    lockstep=$(cd "$jobs/.." && pwd)/build/release/bin/lockstep
  fi
  program=("$lockstep")
  ! command -v "$lockstep" >/dev/null || return 0
  read -r -a program <<<"$lockstep"
  in_container || command -v "${program[0]:-}" >/dev/null
}
in_container() { [[ " $launcher_flags" == *' --container-'@(image|name)* ]]; }
find_lockstep() {
  have_lockstep && return
  say "no program $lockstep: put it on PATH or set LOCKSTEP (see $jobs/site.sh)"
  exit 2
}

# --- running and stopping -------------------------------------------------------------------------------------------------

launcher_pid=''  # of the srun or mpirun that is running
stop_asked=''    # the signal that asked for a checkpoint and the end
pass_on() {
  stop_asked=$1
  [ -z "$launcher_pid" ] || send_to_ranks USR2 "$launcher_pid" &  # it may wait for the ranks
}

# ask_for_report: sends SIGUSR1 to the ranks of a run; the node check has nothing to report, and the signal would kill it.
reports=''
ask_for_report() {
  [ -z "$launcher_pid" ] || [ -z "$reports" ] || send_to_ranks USR1 "$launcher_pid" &
}

# run_in_background COMMAND...: so that traps run at once, not when the ranks have ended; sets `code`.
# It loops because a signal ends `wait` early. The pid of a child that has ended can be waited for again.
run_in_background() {
  local before over='' watcher='' errors='' reader=''
  code=75  # before the first step: nothing to save
  [ -z "$stop_asked" ] || return 0
  reasons=''
  if [ "$1" = mpirun ] && errors=$(mktemp -d) && mkfifo "$errors/all"; then
    pass_errors "$errors/reasons" <"$errors/all" &
    reader=$!
    "$@" </dev/null 2>"$errors/all" &
  else
    "$@" </dev/null &
  fi
  launcher_pid=$!
  [ -z "$stop_asked" ] || pass_on "$stop_asked"  # it came in between
  if [ "$1" = mpirun ]; then
    exec {over}> >(end_left_over "$launcher_pid")
    watcher=$!
  fi
  while :; do
    before=$signals
    wait "$launcher_pid"
    code=$?
    [ "$before" -ne "$signals" ] || break
  done
  launcher_pid=''
  if [ -n "$reader" ]; then
    end_reader "$reader"
    reasons=$(keep_last <"$errors/reasons")
  fi
  [ -z "$errors" ] || rm -rf "$errors"
  [ -n "$over" ] || return 0
  code=$(exit_code_of "$code")
  exec {over}>&-
  wait "$watcher"
  [ $? -ne 5 ] || code=5
}
signals=0  # how many were trapped

# What the ranks of the last start said about why they failed. mpirun and Slurm print more below it, so that scripts end with it.
reasons=''
say_reasons() {
  case $code in 0 | 75 | 76) return ;; esac
  [ -z "$reasons" ] || printf '%s\n' "$reasons"
}
# keep_last: of the lines of standard input the last eight different ones.
keep_last() { awk '!seen[$0]++' | tail -n 8; }

# pass_errors FILE: passes standard input on to standard error, and the reasons to FILE. No signal ends it before the launcher has ended.
# With LOCKSTEP_TERMINAL rank 0 draws its line there, which has no end: bytes are passed on as they come.
pass_errors() {
  local line
  trap '' INT TERM HUP PIPE USR1 USR2
  : >"$1"
  if [ -n "${LOCKSTEP_TERMINAL:-}" ]; then
    tee /dev/stderr | sed -n $'s/^.*\e\\[K//; /^lockstep: /p' >"$1"
    return
  fi
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\n' "$line" >&2
    [[ $line != 'lockstep: '* ]] || printf '%s\n' "$line" >>"$1"
  done
}

# end_reader READER: waits until it has passed everything on, for at most 5 s: a daemon that outlives its mpirun holds the pipe open.
end_reader() {
  local tenths
  for ((tenths = 0; tenths < 50; ++tenths)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null
}

# end_left_over MPIRUN: kills it, and exits with 5, when it has outlived the ranks of this node for $launcher_grace_s seconds: for a daemon
# behind a dead link it would wait a quarter of an hour. Watches until standard input ends.
end_left_over() {
  local had_ranks='' gone_at='' waited
  trap '' INT USR1
  while kill -0 "$1" 2>/dev/null; do
    if [ -n "$(ranks_of "$1")" ]; then
      had_ranks=yes gone_at=''
    elif [ -n "$had_ranks" ]; then
      : "${gone_at:=$SECONDS}"
      waited=$((SECONDS - gone_at))
      if [ "$waited" -ge "$launcher_grace_s" ]; then
        say "mpirun still waits for another node $waited s after the last rank of this one has ended; killed"
        kill -TERM "$1"
        read -rt 5
        kill -KILL "$1" 2>/dev/null
        exit 5
      fi
    fi
    read -rt 1
    [ $? -gt 128 ] || break  # above 128: the second is over
  done
  exit 0
}

# left_lock RUN: whether the lock there is one that this job's ranks left behind, not that of another start.
left_lock() {
  local pid
  [ -n "$1" ] && [ -e "$1/lock" ] || return 1
  if [ -n "${SLURM_JOB_ID:-}" ]; then
    [ "$(sed -n 's/^slurm_job=//p' "$1/lock")" = "$SLURM_JOB_ID" ]
    return
  fi
  pid=$(sed -n 's/^pid=//p' "$1/lock")
  [ "$(sed -n 's/^host=//p' "$1/lock")" = "$(hostname)" ] && [ -n "$pid" ] &&
    ! grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/status"
}

# record_end RUN: where the ranks had no time to write how the run ended, what the launcher said: for `lockstep status`. Only of a start
# that failed, which left its lock.
record_end() {
  local why signal record=$1/exit.json
  [ "$(verdict "$code")" = failed ] && left_lock "$1" || return 0
  ! grep -qs '"exit_code":[0-9]' "$record" || return 0
  why="the launcher ended with exit code $code"
  if [ "$code" -gt 128 ] && signal=$(kill -l $((code - 128)) 2>/dev/null); then why+=": a rank was ended by SIG$signal"; fi
  if TZ=UTC0 printf '{"exit_code":%d,"step":null,"time":"%(%Y-%m-%dT%H:%M:%SZ)T","why":"%s"}\n' "$code" -1 "$why" \
    2>/dev/null >"$record.tmp"; then
    mv -f "$record.tmp" "$record"
  fi
}

# --- progress -------------------------------------------------------------------------------------------------------------

# run_directory_of ARGUMENTS...: of `lockstep train`: --run, or runs/NAME by the configuration's name.
run_directory_of() {
  local directory='' config='' argument
  while [ $# -gt 0 ]; do
    argument=$1
    shift
    case $argument in
      --run) directory=${1:-} && shift ;;
      --run=*) directory=${argument#--run=} ;;
      --set | --resume | --fork) shift ;;
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

# newest_step RUN: of its checkpoints, by their names; -1 without any, or without a run.
newest_step() {
  local name newest=-1
  [ -n "$1" ] || { echo -1 && return; }
  for name in "$1"/checkpoints/step-*.h5; do
    name=${name##*/step-}
    name=${name%.h5}
    if [[ $name =~ ^[0-9]+$ ]] && [ "$((10#$name))" -gt "$newest" ]; then newest=$((10#$name)); fi
  done
  echo "$newest"
}

# place_of STEP: where a start begins, in words.
place_of() {
  if [ "$1" -lt 0 ]; then echo "from the beginning"; else echo "after step $1"; fi
}

# stalled STARTS STEP: how many of the last starts in the file STARTS (one line each: the newest step when it began) saved nothing.
stalled() {
  tac "$1" 2>/dev/null | awk -v now="$2" '$1 < now {exit} {count++} END {print count + 0}'
}

# verdict CODE: what follows from an exit code: finished, stop, again (a checkpoint was written) or failed (start again, bounded).
verdict() {
  case $1 in
    0) echo finished ;;
    75) echo again ;;
    1 | 5) echo failed ;;  # 1: the launcher's own, when it lost a rank
    *) if [ "$1" -ge 128 ]; then echo failed; else echo stop; fi ;;
  esac
}
