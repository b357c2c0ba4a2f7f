#!/usr/bin/env bash
# train.patience: so many evaluations in a row without a better value of the metric end the run, with exit code 0, after the same step
# and with the same bits at any number of ranks, and if it was killed and resumed at any place. A resume does nothing until it is raised.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
{
  small_mlp 'steps = 400' 'global_batch = 24' 'shards = 3' 'eval_every = 5' 'patience = 3'
  printf '%s\n' '[optimizer]' 'name = sgd' 'lr = 0.9' 'schedule = constant' '[log]' 'every = 4'
} >run.ini
sed -i 's/^train = digits.h5/&\neval_fraction = 0.3/' run.ini

# expected RUN METRIC PATIENCE: the step at which the evaluations in metrics.jsonl end a run.
expected() {
  python3 - "$@" <<'PY'
import json, sys
run, metric, patience = sys.argv[1], sys.argv[2], int(sys.argv[3])
sign, best, since = -1 if metric.endswith("accuracy") else 1, None, 0
for line in map(json.loads, open(run + "/metrics.jsonl")):
    if metric not in line:
        continue
    value = sign * line[metric]
    since = 0 if best is None or value < best else since + 1
    best = value if best is None else min(best, value)
    if since == patience:
        print(line["step"])
        break
PY
}
# ended RUN STEP: it has ended so, and `status`, the page and metrics.jsonl say why.
ended() {
  [ "$(readlink "$1/checkpoints/latest")" = "step-$(printf %09d "$2").h5" ] || fail "$1: ends at $(readlink "$1/checkpoints/latest"), not $2"
  "$LOCKSTEP" status "$1" | grep -Eq "ended +$2/400 .* 0 .*ended after step $2: 3 evaluations \(train.patience\) did not improve eval_" ||
    fail "$1: $("$LOCKSTEP" status "$1")"
  [ "$(grep -c '"event":"ended","note":"3 evaluations' "$1/metrics.jsonl")" -eq 1 ] || fail "$1: $(grep '"event"' "$1/metrics.jsonl")"
  grep -q 'ended early' "$1/report.html" || fail "$1: the page does not say that it ended early"
}

train_to_end full 1 train.patience=0
for metric in eval_loss eval_accuracy; do
  step=$(expected full $metric 3)
  { [ "${step:-400}" -lt 400 ] && [ "$step" -gt 15 ]; } || fail "$metric: ends at '$step': the test shows nothing"
done
step=$(expected full eval_loss 3)
for count in 1 3; do
  train_to_end "whole-$count" "$count"
  ended "whole-$count" "$step"
  expect_same whole-1/checkpoints/latest "whole-$count/checkpoints/latest"
done
# Another metric, by keep_best. The checkpoints of other steps are saved before their evaluations.
accuracy_step=$(expected full eval_accuracy 3)
train_to_end accuracy 1 checkpoint.keep_best=eval_accuracy checkpoint.every=5
ended accuracy "$accuracy_step"

# Killed before each of the last evaluations, and after one that no checkpoint has, and resumed on other ranks.
for every in 5 1 7; do
  for at in $((step - 10)) $((step - 5)) "$step"; do
    run=killed-$every-$at
    LD_PRELOAD=$LOCKSTEP_FAULT_LIBRARY LOCKSTEP_FAULT="nth=$((at / 4 + at / 5 + 1)) of=pwrite:metrics.jsonl path=metrics.jsonl call=pwrite kill=before log=fault-$run.log" \
      "$LOCKSTEP" train run.ini --run "$run" --set checkpoint.every=$every >killed.log 2>&1 &
    wait $! 2>/dev/null
    grep -q killed "fault-$run.log" || fail "$run: it was not killed: $(tail -n 2 killed.log)"
    [ ! -e "$run/exit.json" ] || ! grep -q '"exit_code":0' "$run/exit.json" || fail "$run: it had ended"
    train_to_end "$run" 3 checkpoint.every=$every
    ended "$run" "$step"
    expect_same whole-1/checkpoints/latest "$run/checkpoints/latest"
  done
done

# A resume does nothing; with more patience it counts on, as if it had had that from the beginning; without, it takes all its steps.
before=$(find whole-1/checkpoints -type f -printf '%p %T@\n' | sort)
train_to_end whole-1 2
ended whole-1 "$step"
[ "$before" = "$(find whole-1/checkpoints -type f -printf '%p %T@\n' | sort)" ] || fail "a resume changed the checkpoints"
train_to_end whole-1 1 train.steps=390
[ "$("$LOCKSTEP" status whole-1 --json | grep -c "\"step\": $step,")" -eq 1 ] || fail "other steps: $("$LOCKSTEP" status whole-1)"
later=$(expected full eval_loss 5)
train_to_end whole-1 2 train.patience=5
train_to_end five 1 train.patience=5
[ "$(readlink five/checkpoints/latest)" = "step-$(printf %09d "${later:-400}").h5" ] || fail "patience = 5: $(readlink five/checkpoints/latest)"
expect_same five/checkpoints/latest whole-1/checkpoints/latest
train_to_end whole-3 1 train.patience=0
expect_same full/checkpoints/latest whole-3/checkpoints/latest

# Nothing to count.
refused 2 'train.patience.*at the end only; set train.eval_every' "$LOCKSTEP" train run.ini --run none --set train.eval_every=0
refused 2 'train.patience: nothing is evaluated; give data.eval' "$LOCKSTEP" train run.ini --run none --set data.eval_fraction=0
finish
