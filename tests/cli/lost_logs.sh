#!/usr/bin/env bash
# Logs that cannot be written end no run: on a full disk, or when somebody removed their folder, it is said once, and the run has the bits
# of one that could log.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 4000' 'global_batch = 32' 'shards = 2' 'seed = 1' '[log]' 'every = 1' '[report]' 'write = false' >run.ini
"$LOCKSTEP" train run.ini --run whole >log 2>&1 || fail "with logs: $(tail -n 2 log)"

# said_once RUN: it ended well, said once that logs are lost, and has the same bits.
said_once() {
  [ "$code" -eq 0 ] || fail "$1: exit $code: $(tail -n 3 log)"
  [ "$(grep -c 'said once' log)" -eq 1 ] || fail "$1: not said once: $(grep -n 'said once' log)"
  grep 'said once' log | has_line "$2" || fail "$1: $(grep 'said once' log)"
  expect_same whole/checkpoints/latest "$1/checkpoints/latest"
}
if [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null; then
  mkdir full
  # The logs have a disk of their own, which is too small for them; the checkpoints another one.
  # shellcheck disable=SC2016
  unshare --mount bash -c '
    mount -t tmpfs -o size=256k tmpfs full && mkdir full/checkpoints && mount -t tmpfs -o size=16m tmpfs full/checkpoints || exit 99
    "$LOCKSTEP" train run.ini --run full >log 2>&1
    code=$?
    mkdir kept && cp -a full/. kept
    exit $code'
  code=$?
  said_once kept 'No space left on device'
  "$LOCKSTEP" report kept >/dev/null 2>err.log || fail "a report of a log that ends early: $(cat err.log)"
  [ "$("$LOCKSTEP" status kept --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["state"])')" = ended ] ||
    fail "status: $("$LOCKSTEP" status kept)"
else
  echo "not checked: a full disk (needs root)"
fi

# The folder of the event files goes, then metrics.jsonl.
"$LOCKSTEP" train run.ini --run bare >log 2>&1 &
run=$!
until_says '"loss"' bare/metrics.jsonl $run
rm -rf bare/tensorboard bare/metrics.jsonl
wait $run
code=$?
said_once bare 'removed|No such file'

# A run whose checkpoints are gone begins again, and says what that costs.
rm -r whole/checkpoints
"$LOCKSTEP" train run.ini --run whole --set train.steps=5 >log 2>&1 || fail "without its checkpoints: $(tail -n 2 log)"
grep -q 'whole/metrics.jsonl: has lines up to step 4000, but there is no checkpoint: the run begins again at step 0, and they are removed' log ||
  fail "without its checkpoints: $(cat log)"
finish
