#!/usr/bin/env bash
# A run whose job is nearly out of time stops with a checkpoint and exit code 75, whoever says so: squeue, or the environment. Started
# again it ends in the bits of a run that had all the time.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp "steps = $endless_steps" 'global_batch = 32' 'shards = 2' >run.ini
printf '%s\n' '[optimizer]' 'schedule = constant' >>run.ini
mkdir bin
cat >bin/squeue <<SQUEUE
#!/bin/sh
echo "\$*" >>$PWD/questions
exec cat $PWD/left
SQUEUE
chmod +x bin/squeue

# job RUN CODE [VARIABLE=VALUE...] -- [ARGUMENT...]: a start on two ranks as in job 12; what it prints goes to RUN.log.
job() {
  local run=$1 expected=$2 code environment=()
  shift 2
  while [ "$1" != -- ]; do
    environment+=("$1")
    shift
  done
  shift
  # shellcheck disable=SC2086
  timeout 120 $LOCKSTEP_MPIRUN -n 2 env PATH="$PWD/bin:$PATH" SLURM_JOB_ID=12 "${environment[@]}" \
    "$LOCKSTEP" train run.ini --run "$run" "$@" >"$run.log" 2>&1
  code=$?
  [ "$code" -eq "$expected" ] || fail "$run: exit $code, expected $expected: $(tail -n 3 "$run.log")"
}

# stopped RUN: it says so, with a whole checkpoint; $step is its step.
stopped() {
  step=$(sed -nE 's/.*stopped ahead of the time limit after step ([0-9]+); checkpoint.*/\1/p' "$1.log")
  [ -n "$step" ] || fail "$1: does not say that it stopped: $(tail -n 3 "$1.log")"
  [ "$(readlink "$1/checkpoints/latest")" = "$(printf 'step-%09d.h5' "$step")" ] || fail "$1: $(ls "$1/checkpoints")"
}

echo 0:00 >left
job asked 75 --
stopped asked
[ "$(cat questions)" = "-h -j 12 -o %L" ] || fail "squeue is not asked once: $(cat questions)"

: >left
job told 75 SLURM_JOB_END_TIME="$(date +%s)" --
stopped told
[ "$step" = 1 ] || fail "told: known from the start, but stopped after step $step"

echo 1-00:00:00 >left
job told 0 -- --set train.steps=40
grep -q "going on after step 1 " told.log || fail "told: does not go on: $(cat told.log)"
if grep -q "time limit" told.log; then fail "told: stopped with a day left"; fi
"$LOCKSTEP" train run.ini --run alone --set train.steps=40 >alone.log 2>&1 || fail "alone: $(tail -n 3 alone.log)"
expect_same alone/checkpoints/latest told/checkpoints/latest
finish
