#!/usr/bin/env bash
# Evaluations: a due checkpoint does not wait for one, a stop ends one within a batch, who resumes makes the one that is missing, and
# metrics.jsonl has each once. train.eval_samples bounds one; lockstep eval takes all samples.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
/usr/bin/python3 - <<'PY' || fail "no evaluation data"
import h5py
small = h5py.File("digits.h5")
with h5py.File("large.h5", "w") as large:
    x, y = small["x"][:], small["y"][:]
    repeats = 120
    images = large.create_dataset("x", (repeats * len(x), *x.shape[1:]), x.dtype)
    for name, value in small["x"].attrs.items():
        images.attrs[name] = value
    labels = large.create_dataset("y", (repeats * len(y),), y.dtype)
    for r in range(repeats):
        images[r * len(x):(r + 1) * len(x)] = x
        labels[r * len(y):(r + 1) * len(y)] = y
PY
{
  small_resnet 'eval = large.h5'
  printf '%s\n' '[train]' 'steps = 4' 'global_batch = 16' 'shards = 2' 'eval_every = 2' '[ema]' 'rates = 0.9' \
    '[checkpoint]' 'every = 2' 'keep = 1' 'keep_best = eval_loss'
} >run.ini

# start COUNT SIGNAL CODE: a run is stopped by SIGNAL (or the file RUN/stop) in its first evaluation.
stopped_in_evaluation() {
  local count=$1 how=$2 code=$3 run=run-$1-$2
  # shellcheck disable=SC2086
  $LOCKSTEP_MPIRUN -n "$count" "$LOCKSTEP" train run.ini --run "$run" >"log-$run" 2>&1 &
  local launcher=$!
  # The checkpoint of step 2 is there before its evaluation, which takes many seconds, has begun.
  until_there "$run/checkpoints/step-000000002.h5" "$launcher"
  if [ "$how" = file ]; then touch "$run/stop"; else send_to_ranks "$how" "$launcher"; fi
  wait "$launcher"
  local got=$?
  [ "$got" -eq "$code" ] || fail "$run: exit $got, expected $code: $(tail -n 3 "log-$run")"
  ! grep -q '"eval_loss":' "$run/metrics.jsonl" || fail "$run: the evaluation was not cut short"
  "$LOCKSTEP" verify "$run/checkpoints/latest" >verify.log || fail "$run: $(cat verify.log)"

  ranks 3 train run.ini --run "$run" --set train.shards=2 --set train.eval_samples=300 >log 2>&1 && fail "3 ranks for 2 shards"
  ranks 2 train run.ini --run "$run" --set train.eval_samples=300 >log 2>&1 || fail "$run, resumed: $(tail -n 3 log)"
  python3 - "$run" <<'PY' || fail "$run: $(cat "$run/metrics.jsonl")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
evaluations = [line["step"] for line in lines if "eval_loss" in line]
assert evaluations == [2, 4], evaluations
assert all("eval_ema_0.9_loss" in line for line in lines if "eval_loss" in line), lines
steps = [line["step"] for line in lines]
assert steps == sorted(steps), steps
starts = [(line["start"], line["step"]) for line in lines if "start" in line]
assert starts == [("new", 0), ("resumed", 2)], starts
PY
  [ -L "$run/checkpoints/best" ] || fail "$run: no best checkpoint"
}

stopped_in_evaluation 2 file 76
stopped_in_evaluation 2 USR2 75

# The bounded evaluation is one of so many samples, the same at any number of ranks; `eval` takes all.
for count in 1 2; do
  ranks "$count" train run.ini --run "bounded-$count" --set train.eval_samples=300 >log 2>&1 || fail "bounded: $(tail -n 3 log)"
  grep '"eval_loss":' "bounded-$count/metrics.jsonl" | sed 's/"time":"[^"]*"//' >"bounded-$count.evaluations"
done
cmp bounded-1.evaluations bounded-2.evaluations || fail "bounded evaluations differ between 1 and 2 ranks"
"$LOCKSTEP" eval bounded-1/checkpoints/latest --json >all.json || fail "eval"
grep -q '"samples": 215640' all.json || fail "eval did not take all samples: $(cat all.json)"
finish
