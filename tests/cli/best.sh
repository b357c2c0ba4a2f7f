#!/usr/bin/env bash
# checkpoint.keep_best saves the weights of the best evaluation so far, whatever checkpoint.every is; a resume knows the best of before.
# The run has the bits of one that keeps no best.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
{
  small_mlp 'steps = 60' 'global_batch = 16' 'shards = 2' 'eval_every = 5'
  printf '%s\n' '[optimizer]' 'name = sgd' 'lr = 0.3' 'schedule = constant' '[ema]' 'rates = 0.9' '[log]' 'every = 7'
} >run.ini
sed -i 's/^train = digits.h5/train = digits.h5\neval_fraction = 0.3/' run.ini

# chosen RUN METRIC: the link `best` names the step of the best evaluation in metrics.jsonl, which is not the last step, and the file
# gives what the evaluation gave.
chosen() {
  python3 - "$1" "$2" <<'PY' >chosen || fail "$1: $(cat chosen)"
import json, os, sys
run, metric = sys.argv[1:]
values = {}
for line in map(json.loads, open(run + "/metrics.jsonl")):
    if metric in line:
        values[line["step"]] = line[metric]
sign = -1 if metric.endswith("accuracy") else 1
best = min(values, key=lambda step: (sign * values[step], step))
link = os.readlink(run + "/checkpoints/best")
print(values, link)
assert best < 60, "the last step is the best: the test shows nothing"
assert link == f"step-{best:09}.h5", best
PY
  "$LOCKSTEP" verify "$1/checkpoints/best" >verify.log || fail "$1: $(cat verify.log)"
  "$LOCKSTEP" eval "$1/checkpoints/best" --json >eval.json || fail "$1: eval"
  python3 - "$1" "$2" <<'PY' || fail "$1: the file is not what was evaluated: $(cat eval.json)"
import json, os, sys
run, metric = sys.argv[1:]
if metric.startswith("eval_ema"): sys.exit()
step = int(os.readlink(run + "/checkpoints/best")[5:14])
logged = [line[metric] for line in map(json.loads, open(run + "/metrics.jsonl")) if line["step"] == step and metric in line]
found = json.load(open("eval.json"))
assert abs(found[metric[5:]] - logged[0]) < 1e-6
PY
}

"$LOCKSTEP" train run.ini --run none >log 2>&1 || fail "without: $(tail -n 3 log)"
for every in auto 0 7; do
  for count in 1 2; do
    run=every-$every-$count
    ranks "$count" train run.ini --run "$run" --set checkpoint.every=$every --set checkpoint.keep=1 \
      --set checkpoint.keep_best=eval_loss >log 2>&1 || fail "$run: $(tail -n 3 log)"
    ! grep -q 'note: checkpoint' log || fail "$run: $(grep 'note: checkpoint' log)"
    chosen "$run" eval_loss
    expect_same none/checkpoints/latest "$run/checkpoints/latest"
    [ "$(find "$run/checkpoints" -name 'step-*.h5' | wc -l)" -eq 2 ] || fail "$run: $(ls "$run/checkpoints")"
  done
done
ranks 2 train run.ini --run ema --set checkpoint.keep_best=eval_ema_0.9_accuracy --set checkpoint.async=true >log 2>&1 ||
  fail "ema: $(tail -n 3 log)"
expect_same none/checkpoints/latest ema/checkpoints/latest
"$LOCKSTEP" verify ema/checkpoints/best >verify.log || fail "ema: $(cat verify.log)"

# Resumed on other ranks, with a learning rate that spoils it: the best is that of before, and nothing worse is saved.
ranks 1 train run.ini --run resumed --set train.steps=30 --set checkpoint.keep_best=eval_loss >log 2>&1 || fail "resumed: $(tail -n 3 log)"
before=$(readlink resumed/checkpoints/best)
ranks 2 train run.ini --run resumed --set optimizer.lr=30 --set checkpoint.keep_best=eval_loss --set checkpoint.keep=1 >log 2>&1 ||
  fail "resumed: $(tail -n 3 log)"
[ "$(readlink resumed/checkpoints/best)" = "$before" ] || fail "resumed: $(ls -l resumed/checkpoints), it was $before"
[ "$(find resumed/checkpoints -name 'step-*.h5' | wc -l)" -le 2 ] || fail "resumed: what is not the best is saved: $(ls resumed/checkpoints)"

# Only the last step is evaluated: said at the first start.
"$LOCKSTEP" train run.ini --run last --set train.eval_every=0 --set checkpoint.keep_best=eval_loss >log 2>&1 || fail "last: $(tail -n 3 log)"
grep -q 'note: checkpoint.keep_best can choose the last step only.*train.eval_every' log || fail "last: $(cat log)"
finish
