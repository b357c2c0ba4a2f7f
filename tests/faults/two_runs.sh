#!/usr/bin/env bash
# Who may write into a run directory: one run at a time, the next one when that is gone, however it went; and directories and
# clocks that are not as they should be.
source "$(dirname "$0")/faults.sh"
prepare_base

# endless NAME [VARIABLE=VALUE...]: a run of directory NAME on two ranks that does not end by itself; returns when it trains.
# $launcher is the pid of its mpirun.
endless() {
  local name=$1
  shift
  : >"$name.log"
  # shellcheck disable=SC2086
  $LOCKSTEP_MPIRUN -n 2 env "$@" "$LOCKSTEP" train run.ini --run "$name" --set "train.steps=$endless_steps" --set log.every=1 \
    --set "checkpoint.every=${save_every:-100}" >"$name.log" 2>&1 </dev/null &
  launcher=$!
  until_says "step [0-9]*/$endless_steps" "$name.log" "$launcher"
}

# While one run lives: a second one, a Slurm job of another number and a lower restart of the same are refused by the holder's
# name. A higher restart takes over, although the holder hangs; that one, awake again, writes nothing more. All wait at once.
save_every=1500 endless mine SLURM_JOB_ID=7 SLURM_RESTART_COUNT=3
first=$launcher
holder=$(sed -n 's/^pid=//p' mine/lock)
contender() {  # contender LOG [VARIABLE=VALUE...]
  local log=$1
  shift
  # shellcheck disable=SC2086
  timeout "$patience_s" $LOCKSTEP_MPIRUN -n 2 env "$@" "$LOCKSTEP" train run.ini --run mine >"$log" 2>&1 </dev/null
  echo "exit $?" >>"$log"
}
contenders=("-u SLURM_JOB_ID" "SLURM_JOB_ID=8 SLURM_RESTART_COUNT=9" "SLURM_JOB_ID=7 SLURM_RESTART_COUNT=2")
waiting=()
for i in "${!contenders[@]}"; do
  # shellcheck disable=SC2086
  contender "contender-$i.log" ${contenders[i]} &
  waiting+=($!)
done
wait "${waiting[@]}"
for i in "${!contenders[@]}"; do
  case="a second run with ${contenders[i]}"
  grep -q "exit 2" "contender-$i.log" || fail "$case: not exit 2: $(tail -n 2 "contender-$i.log")"
  [ "$(grep -c '^lockstep: ' "contender-$i.log")" -eq 1 ] || fail "$case: not one line of error"
  grep '^lockstep: ' "contender-$i.log" | has_line "mine/lock.*pid $holder on $(hostname)" ||
    fail "$case: does not name the holder $holder: $(grep '^lockstep: ' "contender-$i.log")"
  grep -q "waiting up to 15 s" "contender-$i.log" || fail "$case: does not say how long it waits"
done
kill -0 "$first" || fail "the first run ended while others were refused: $(tail -n 3 mine.log)"

case="a higher restart of the same Slurm job"
# What it does next is a step with a line of metrics; most often its next save is far away.
mapfile -t ranks_of_first < <(ranks_of "$first")
kill -STOP "${ranks_of_first[@]}"
rm -rf subject
mv mine subject
ln -s subject mine  # a name of its own for the new start; the old one keeps writing to the same directory
SLURM_JOB_ID=7 SLURM_RESTART_COUNT=4 timeout "$patience_s" "$LOCKSTEP" train run.ini --run mine --set "train.steps=$endless_steps" \
  --set log.every=1 --set checkpoint.every=100 >second.log 2>&1 </dev/null &
second=$!
until_says "step [0-9]*/$endless_steps" second.log "$second"
grep -q "^slurm_restart_count=4" mine/lock || fail "$case: does not hold the lock: $(cat mine/lock second.log)"
events_of_first=$(find mine/tensorboard/ -type f | sort | head -n 1)
before=$(stat -c %s "$events_of_first")
kill -CONT "${ranks_of_first[@]}"
wait "$first"
code=$?
[ ! -e mine/report.html ] || fail "$case: the old start, awake again, wrote the page of the run"
[ "$(stat -c %s "$events_of_first")" -eq "$before" ] || fail "$case: the old start, awake again, wrote for TensorBoard"
[ "$code" -eq 5 ] || fail "$case: the old start, awake again: exit $code, expected 5: $(tail -n 3 mine.log)"
grep '^lockstep: ' mine.log | has_line "no longer belongs to this run: taken over by pid.*Slurm job 7, restart 4" ||
  fail "$case: the old start does not say who took over: $(grep '^lockstep: ' mine.log)"
touch mine/stop
wait "$second"
code=$?
[ "$code" -eq 76 ] || fail "$case: the new start: exit $code, expected 76: $(tail -n 3 second.log)"
python3 - mine/metrics.jsonl <<'PY' || fail "$case: metrics.jsonl is not the new start's alone"
import json, sys
steps = [json.loads(line)["step"] for line in open(sys.argv[1])]
assert steps == sorted(steps), [pair for pair in zip(steps, steps[1:]) if pair[0] > pair[1]]
PY
"$LOCKSTEP" verify mine/checkpoints/latest >/dev/null || fail "$case: the checkpoint is not whole"

# The lock of a killed run is taken over at once or when its last rank is gone: nothing is refused, nothing is lost.
for victim in launcher ranks; do
  case="started after SIGKILL of the $victim"
  rm -rf subject
  endless subject
  until_there subject/checkpoints/latest "$launcher"
  if [ $victim = launcher ]; then
    kill -KILL "$launcher"
  else
    mapfile -t ranks_of_it < <(ranks_of "$launcher")
    kill -KILL "${ranks_of_it[@]}"
  fi
  wait "$launcher" 2>/dev/null
  train 2 --set train.steps=1 || fail "$case: exit $?: $(tail -n 3 err.log)"
  grep -q "going on after step" err.log || fail "$case: does not go on: $(cat err.log)"
done

# A clock that is an hour earlier at every look: order and choice of checkpoints do not come from times.
case="a clock that runs backwards"
from_base
find subject -exec touch -h -d 2100-01-01 {} +
train_with "clock=-3600" 2 || fail "$case: exit $?: $(cat err.log)"
expect_same reference.h5 subject/checkpoints/latest
[ "$(readlink subject/checkpoints/latest)" = step-000000008.h5 ] ||
  fail "$case: latest is $(readlink subject/checkpoints/latest)"
[ "$(cd subject/checkpoints && echo step-*)" = "step-000000006.h5 step-000000008.h5" ] ||
  fail "$case: kept: $(ls subject/checkpoints)"
created() { /usr/bin/python3 -c 'import h5py, sys; print(h5py.File(sys.argv[1]).attrs["created"])' "$1"; }
[[ "$(created subject/checkpoints/step-000000008.h5)" < "$(created subject/checkpoints/step-000000006.h5)" ]] ||
  fail "$case: the clock did not run backwards"
goes_on 2

# Places that are no directories of files.
case="the run directory is a loop of links"
rm -rf subject
ln -s subject subject
refused 2 "subject.*Too many levels of symbolic links" train 2
case="the checkpoints are a loop of links"
rm -rf subject
mkdir subject
ln -s checkpoints subject/checkpoints
refused 2 "subject/checkpoints.*Too many levels of symbolic links" train 2
case="the lock is a loop of links"
from_base
ln -s lock subject/lock
refused 2 "subject/lock.*is a symbolic link, which Lockstep does not follow" train 2
case="the run directory is a link to one"
from_base
mv subject elsewhere
ln -s elsewhere subject
goes_on 2
rm -rf elsewhere
case="latest is a loop of links"
from_base
ln -sfn latest subject/checkpoints/latest
"$LOCKSTEP" verify subject/checkpoints/latest >out.log 2>err.log
[ $? -eq 2 ] || fail "$case: verify: $(cat err.log)"
grep -q "^lockstep: subject/checkpoints/latest: .*Too many levels of symbolic links" err.log ||
  fail "$case: verify says: $(cat err.log)"
goes_on 2
case="the newest checkpoint is a loop of links"
from_base
ln -sfn step-000000004.h5 subject/checkpoints/step-000000004.h5
refused 2 "step-000000004.h5.*Too many levels of symbolic links" train 2
finish
