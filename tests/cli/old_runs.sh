#!/usr/bin/env bash
# old_runs.sh MODEL: a run that an earlier version began (tests/old_runs/make.sh) is whole for this one, evaluates to the same figures,
# and is resumed, on 1 and on 3 ranks, to the same bits and the same metrics; on other processors than x86-64, to about the same.
source "$(dirname "$0")/../support/cli.sh"
model=$1
export ONEDNN_MAX_CPU_ISA=AVX2  # as they were made
tolerance=0
[ "$(uname -m)" = x86_64 ] || tolerance=0.05
export tolerance PYTHONPATH=$PWD
cat >same.py <<'PY'
import math, os
tolerance = float(os.environ["tolerance"])
def same(then, now):
    number = isinstance(then, (int, float)) and tolerance > 0
    return math.isclose(then, now, rel_tol=tolerance, abs_tol=tolerance) if number else then == now
PY

cp -r "$LOCKSTEP_SOURCE_DIR"/tests/old_runs/0394c50 old
cd "old/$model" || exit 1
for file in run/checkpoints/latest end.h5; do
  "$LOCKSTEP" verify "$file" >verify.log || fail "$file: $(cat verify.log)"
done

"$LOCKSTEP" eval end.h5 --json >now.json || fail "eval"
python3 - <<'PY' || fail "eval: $(cat now.json) in place of $(cat eval.json)"
import json
from same import same
then, now = json.load(open("eval.json")), json.load(open("now.json"))
assert then.keys() <= now.keys() and all(same(then[key], now[key]) for key in then)
PY
if [ "$model" != gpt ]; then  # it does not say how images were normalised
  data=$(sed -n 's/^train = //p' run.ini)
  mkdir elsewhere && cp "$data" elsewhere/other.h5
  (cd elsewhere && "$LOCKSTEP" eval ../end.h5 --data other.h5) >log 2>&1 || fail "eval elsewhere: $(cat log)"
  [ "$(grep -c "warning: other.h5: normalised by .*, not the training data's: $data: " log)" -eq 1 ] || fail "eval elsewhere: $(cat log)"
fi

for count in 1 3; do
  cp -r run "run-$count"
  config=run.ini
  [ "$count" -eq 1 ] || config=run/config.ini  # every key of that version, those that were removed too
  ranks "$count" train "$config" --run "run-$count" 2>log || fail "resumed on $count: $(tail -n 3 log)"
  ! grep -q math_library log || fail "$count: a warning of what the checkpoint does not say: $(grep math_library log)"
  reference=end.h5
  [ "$tolerance" = 0 ] || reference=run-1/checkpoints/latest
  expect_same "run-$count/checkpoints/latest" "$reference"
  python3 - "run-$count" <<'PY' || fail "metrics of $count ranks differ: $(cat "run-$count/metrics.jsonl")"
import json, sys
from same import same
changing = {"time", "step_ms", "samples_per_second", "exposed_comm_ms"}
def lines(path):
    read = [json.loads(line) for line in open(path)]
    return [{key: value for key, value in line.items() if key not in changing} for line in read if "start" not in line]
now, then = lines(sys.argv[1] + "/metrics.jsonl"), lines("end.jsonl")  # evaluations have more metrics now
assert len(now) == len(then) and all(old.keys() <= new.keys() and all(same(old[key], new[key]) for key in old) for new, old in zip(now, then))
PY
done
finish
