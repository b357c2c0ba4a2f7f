#!/usr/bin/env bash
# A program with a model and a task of its own, share/example/wind.cpp, has every verb: killed on 2 ranks and resumed on 3 it ends with the
# bits of an undisturbed run; eval and predict say the same at any number of ranks.
# Environment: WIND, this program.
source "$(dirname "$0")/../support/cli.sh"
lockstep=$LOCKSTEP LOCKSTEP=$WIND
cp "$LOCKSTEP_SOURCE_DIR/share/example/wind.ini" .
/usr/bin/python3 "$LOCKSTEP_SOURCE_DIR/share/example/wind.py" wind.h5 || fail "h5py is needed for this test"

ranks 1 train wind.ini --run whole >log 2>&1 || fail "an undisturbed run: $(tail -n 3 log)"
has_line 'step 400  eval loss .* rmse 0\.0[0-9]* within_0\.1 (0\.9|1)' <log || fail "it does not learn: $(tail -n 3 log)"

# Without an end: killed as soon as there is a checkpoint. Then the run is one of 400 steps.
kill_when parts/checkpoints/latest 2 train wind.ini --run parts --set train.steps="$endless_steps" --set checkpoint.keep=1000000
for step in parts/checkpoints/step-*.h5; do
  [[ $(basename "$step") < step-000000400.h5 ]] || rm "$step"  # a fast machine has come too far
done
ranks 3 train wind.ini --run parts --set train.steps=400 >log 2>&1 || fail "on 3 ranks: $(tail -n 3 log)"
has_line 'going on after step' <log || fail "it was not resumed: $(head -n 5 log)"
expect_same whole/checkpoints/latest parts/checkpoints/latest
"$lockstep" diff whole/checkpoints/latest parts/checkpoints/latest >diff.log || fail "lockstep reads it too: $(cat diff.log)"
/usr/bin/python3 - <<'PY' || fail "checkpoint.keep_best = eval_rmse: $(ls -l whole/checkpoints)"
import json, os
scores = {line["step"]: line["eval_rmse"] for line in map(json.loads, open("whole/metrics.jsonl")) if "eval_rmse" in line}
assert len(scores) == 4 and os.readlink("whole/checkpoints/best") == "step-%09d.h5" % min(scores, key=scores.get)
PY

for count in 1 2 3; do
  ranks "$count" eval whole/checkpoints/latest --weights ema/0.99 --json >"eval-$count.json" 2>log || fail "eval: $(cat log)"
  cmp eval-1.json "eval-$count.json"
  ranks "$count" predict whole/checkpoints/latest --data wind.h5 --out "out-$count.h5" >log 2>&1 || fail "predict: $(cat log)"
  cmp out-1.h5 "out-$count.h5" || fail "predict on $count ranks"
done
/usr/bin/python3 - <<'PY' || fail "the predictions are not those of a model that has learned"
import h5py, numpy as np
with h5py.File("out-1.h5") as out, h5py.File("wind.h5") as data:
    assert out["output"].shape == data["power"].shape and out["output"].dtype == np.float32
    assert np.sqrt(np.mean((out["output"][:] - data["power"][:]) ** 2)) < 0.1
PY

ranks 2 bench step --config wind.ini --set model.width=8 --steps 2 --json >out.log 2>log || fail "bench step: $(cat log)"
has_line '"model": "wind.ini"' <out.log || fail "bench step: $(cat out.log)"
ranks 1 bench step --config wind.ini --profile --steps 2 >out.log 2>log || fail "bench step --profile: $(cat log)"
has_line 'smooth_l1' <out.log || fail "bench step --profile: $(cat out.log)"
# A number that is none is shown, and its evaluation is made once.
/usr/bin/python3 -c '
import h5py, shutil
shutil.copy("wind.h5", "nan.h5")
with h5py.File("nan.h5", "a") as f: f["state"][3, 1] = float("nan")'
for ((i = 0; i < 2; i++)); do
  ranks 2 train wind.ini --run nan --set data.eval=nan.h5 --set data.eval_fraction=0 --set train.steps=100 >log 2>&1 || fail "nan: $(cat log)"
done
[ "$(grep -c '"eval_loss":null' nan/metrics.jsonl)" -eq 1 ] || fail "nan: $(grep eval nan/metrics.jsonl)"
ranks 1 eval whole/checkpoints/latest --data nan.h5 >out.log 2>log || fail "eval of nan: $(cat log)"
has_line 'loss nan, rmse nan, within_0.1 0\.' <out.log || fail "eval of nan: $(cat out.log)"
ranks 2 train wind.ini --run nan --set checkpoint.keep_best=eval_rmsd >out.log 2>err.log
[ $? -eq 2 ] || fail "keep_best of nothing: $(cat err.log)"
ranks 1 train --help-keys >keys || fail "--help-keys"
has_line 'model.width +64 +turbine: features of the hidden layers' <keys || fail "keys: $(grep turbine keys)"
ranks 1 --help | has_line 'Usage: \[mpirun -n RANKS\] wind VERB' || fail "--help"
ranks 1 doctor --config wind.ini --run whole >log 2>&1 || fail "doctor: $(cat log)"
# A checkpoint of weights alone, as a loop of a program's own makes them: what the error advises works.
/usr/bin/python3 - <<'PY' || fail "weights alone"
import h5py
with h5py.File("whole/checkpoints/latest") as old, h5py.File("weights.h5", "w") as new:
    old.copy("model", new)
PY
ranks 1 convert weights.h5 alone.h5 >out.log 2>log || fail "convert: $(cat log)"
[ "$(grep -c 'alone.h5 holds weights without a configuration; to evaluate it, convert with --config CONFIG.ini' log)" -eq 1 ] || fail "convert says: $(cat log)"
for verb in 'eval alone.h5' 'predict alone.h5 --out none.h5'; do
  # shellcheck disable=SC2086
  refused 2 'alone.h5: stores no configuration, .*: wind convert alone.h5 OUT.h5 --config CONFIG.ini' \
    ranks 2 $verb --data wind.h5
done
ranks 1 convert alone.h5 whole.h5 --config wind.ini >out.log 2>log || fail "convert --config: $(cat log)"
grep -q 'weights only' log && fail "convert --config says: $(cat log)"
"$LOCKSTEP" eval whole/checkpoints/latest --weights model --data wind.h5 | sed 's/of step [0-9]*//' >trained.txt
"$LOCKSTEP" eval whole.h5 --data wind.h5 | sed 's/of step [0-9]*//' >converted.txt || fail "eval of converted weights"
cmp trained.txt converted.txt || fail "converted weights: $(cat converted.txt), not $(cat trained.txt)"
/usr/bin/python3 - <<'PY' || fail "a wrapper's names"
import h5py
with h5py.File("weights.h5") as old, h5py.File("wrapped.h5", "w") as new:
    for name in old["model"]: new["model/module." + name] = old["model"][name][()]
    new["model/module.head.bias"] = [1.0]
PY
refused 3 'unexpected: model/head.bias' ranks 1 convert wrapped.h5 none.h5 --config wind.ini
refused 2 'model.name: "turbine" is not one of: mlp, resnet, gpt, llama, unet, vit, encoder, rnn, cosmoflow' "$lockstep" eval whole/checkpoints/latest
finish
