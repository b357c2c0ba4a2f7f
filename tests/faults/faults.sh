# For tests of faults (sourced): a small run, one half-way base to start every case from, and what must hold afterwards.
# shellcheck shell=bash
# Environment: LOCKSTEP_FAULT_LIBRARY (libfault.so), besides that of support/cli.sh.
# In memory, where it can be: no fault here needs a disk, and hundreds of saves would wait for whatever else writes to it.
if [ -w /dev/shm ]; then TMPDIR=${TMPDIR:-/dev/shm}; fi
source "$(dirname "${BASH_SOURCE[0]}")/../support/cli.sh"
export OMPI_MCA_btl_vader_backing_directory=$TMPDIR  # what ranks that are killed leave there goes, too

# mode WORD...: what the words of a script ask for: `all` points or `one`; by default a point of every second kind, with `async` of the
# others: the two make one whole set.
mode() {
  local word
  amount=half
  settings=()
  second=0
  for word in "$@"; do
    case $word in
      all | one) amount=$word ;;
      async)
        settings+=(--set checkpoint.async=true)
        second=1
        ;;
      *) echo "$0: unknown word $word"; exit 2 ;;
    esac
  done
}
# taken TURN: whether this point is one of them. The turns go by kinds, in order: by moments, they would not be the same in every run.
taken() {
  [ "$amount" != half ] || [ $(($1 % 2)) -eq "$second" ]
}
settings=()  # --set SECTION.KEY=VALUE, of every start of this script
last_step=8 base_step=4 case=""

# processes_of ID: those of lockstep that were started with LOCKSTEP_STRIKE=ID and are still there.
processes_of() {
  local process
  for process in $(pgrep -x lockstep); do
    if grep -zqsx "LOCKSTEP_STRIKE=$1" "/proc/$process/environ"; then echo "$process"; fi
  done
}

# all_gone ID: waits for the last of them; false if one is still there after a minute.
all_gone() {
  local until=$((SECONDS + 60))
  while [ -n "$(processes_of "$1")" ]; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.1
  done
}

# small_run: run.ini. The weights, AdamW's state and one average make 2.7 MiB, so that ranks 0 to 2 all write.
small_run() {
  digits digits.h5
  small_mlp "steps = $last_step" 'global_batch = 8' 'shards = 4' 'seed = 3' | sed 's/^sizes.*/sizes = 64 384 384 10/' >run.ini
  cat >>run.ini <<INI
[optimizer]
schedule = constant
[ema]
rates = 0.9
[checkpoint]
every = 2
keep = 2
INI
}

# train RANKS [ARGUMENT...]: starts or resumes the run of directory subject; its exit code. One rank goes without mpirun.
train() {
  local count=$1
  shift
  if [ "$count" -eq 1 ]; then
    timeout "$patience_s" "$LOCKSTEP" train run.ini --run subject "${settings[@]}" "$@" >out.log 2>err.log
  else
    # shellcheck disable=SC2086  # mpirun's flags are several words
    timeout "$patience_s" $LOCKSTEP_MPIRUN -n "$count" "$LOCKSTEP" train run.ini --run subject "${settings[@]}" "$@" >out.log 2>err.log
  fi
}

# train_with FAULT RANKS [ARGUMENT...]: the same under a fault; what the library says goes to fault.log.
train_with() {
  local fault=$1 count=$2
  shift 2
  rm -f fault.log
  # shellcheck disable=SC2086
  timeout "$patience_s" $LOCKSTEP_MPIRUN -n "$count" env LD_PRELOAD="$LOCKSTEP_FAULT_LIBRARY" LOCKSTEP_FAULT="$fault log=fault.log" \
    "$LOCKSTEP" train run.ini --run subject "${settings[@]}" "$@" >out.log 2>err.log
}

# give_up TEXT: what comes next has nothing to stand on.
give_up() {
  fail "$*"
  exit 1
}

# prepare_base: `reference.h5`, the end of a run that nothing happened to, and `base`, the run at step 4 with two checkpoints.
prepare_base() {
  small_run
  rm -rf subject
  train 1 || give_up "the run without a fault: $(cat err.log)"
  cp subject/checkpoints/latest reference.h5
  rm -rf subject
  train 1 --set train.steps=$base_step || give_up "the first half: $(cat err.log)"
  mv subject base
  "$LOCKSTEP" verify base/checkpoints/latest >verify.log 2>&1 || give_up "without a fault: $(head -n 1 verify.log)"
  (cd base/checkpoints && sha256sum step-*.h5) >base.sums
}

from_nothing() {
  rm -rf subject
}
from_base() {
  rm -rf subject
  cp -a base subject
}

# points PLACE RANKS PATH: traces a run from there (from_base or from_nothing); points.log gets
# "RANK NTH CALL FILE" of every call on a path with PATH in it: the NTH call of that name on that file, FILE without its directory
# and as a pattern where it has the mark or the time of the start. Threads take turns, so only that much is the same in every run; how many
# of them write a checkpoint, and open it, is not.
points() {
  local place=$1 count=$2 path=$3
  "$place"
  train_with "path=$path trace" "$count" || give_up "a traced run on $count ranks: $(cat err.log)"
  sed -nE "s/^fault: rank=([0-9]+) nth=([0-9]+) call=([a-z]+) passed .* path=(.*)\$/\1 \2 \3 \4/; T
    s/\.[0-9a-f]{16}\.tmp/.*.tmp/g; s/(events\.out\.tfevents)\.[^ ]*/\1.*/g; s/ -> .*//; s/ [^ ]*\// /; p" fault.log | sort -n -k1,1 -k2,2 |
    awk '{ $2 = ++nth[$1, $3, $4] } $2 == 1 || $3 != "open" || $4 !~ /[.]tmp$/' >points.log
  expect_same reference.h5 subject/checkpoints/latest
}

# at_point RANK NTH CALL FILE: the words for libfault.so.
at_point() {
  echo "rank=$1 nth=$2 of=$3:$4"
}

# struck WHAT: the library says that it did (killed, failed, shortened).
struck() {
  grep -q "^fault: .* $1 from=" fault.log || fail "$case: the fault did not strike: $(tail -n 2 err.log)"
}

newest() {
  find subject/checkpoints -name 'step-*.h5' 2>/dev/null | sort | tail -n 1
}

# whole_newest: the newest checkpoint is whole, and so is `latest`; those of the base are as they were, if they still are.
whole_newest() {
  local file
  for file in "$(newest)" subject/checkpoints/latest; do
    "$LOCKSTEP" verify "$file" >verify.log 2>&1 || fail "$case: $file is not whole: $(head -n 1 verify.log)"
  done
  (cd subject/checkpoints && sha256sum --ignore-missing --quiet -c ../../base.sums) >sums.log 2>&1 ||
    fail "$case: earlier checkpoints changed: $(cat sums.log)"
}

# goes_on RANKS: the run is started again, ends in the bits of the run without a fault, and leaves no temporary file.
goes_on() {
  train "$1" || { fail "$case: resumed on $1 ranks: exit $?: $(tail -n 3 err.log)"; return; }
  expect_same reference.h5 subject/checkpoints/latest
  local left
  left=$(find subject -name '.*' -o -name '*.tmp' -o -name lock)
  [ -z "$left" ] || fail "$case: left behind: $left"
}
