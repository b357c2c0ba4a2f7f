#!/usr/bin/env bash
# Averages after training: lockstep ema makes what a run that tracked that width has, and every verb takes the file.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_resnet 'eval_fraction = 0.2' >run.ini
cat >>run.ini <<'INI'
[train]
steps = 160
global_batch = 48
shards = 4
eval_every = 80
frozen = conv1.weight
[optimizer]
lr = 3e-3
[ema]
rates = 0.9
warmup = 1 0.75 0
sigma_rel = 0.05 0.10
[checkpoint]
every = 10
keep = 2
INI

train_to_end run 2
[ "$(find run/ema -name 'step-*.h5' | wc -l)" -eq 16 ] || fail "not 16 snapshots: $(ls run/ema)"
[ "$(find run/checkpoints -name 'step-*.h5' | wc -l)" -eq 2 ] || fail "not 2 checkpoints"
grep -q '"eval_ema_sigma_rel=0.05_accuracy"' run/metrics.jsonl || fail "no evaluation of sigma_rel=0.05 in the metrics"

# Snapshots, too, are the same bits at any number of ranks, whoever holds the averages, and after a stop.
train_to_end sharded 3 ddp.sharded_optimizer=true
train_to_end stopped 1 train.steps=50
touch stopped/stop  # obeyed after the next step
ranks 1 train run.ini --run stopped >log 2>&1
[ $? -eq 76 ] || fail "not stopped: $(tail -n 3 log)"
rm -f "stopped/ema/step-000000050.h5"  # and what is gone is not missed
train_to_end stopped 4
for step in 010 160; do
  expect_same "run/ema/step-000000$step.h5" "sharded/ema/step-000000$step.h5"
  expect_same "run/ema/step-000000$step.h5" "stopped/ema/step-000000$step.h5"
done

# What was tracked has not changed training; what was not tracked can be had.
train_to_end wider 2 "ema.sigma_rel=0.05 0.07 0.15"
for width in 0.07 0.15; do
  ranks 2 ema run --sigma-rel "$width" --out "made-$width.h5" --json >made.json || fail "ema --sigma-rel $width"
  "$LOCKSTEP" verify "made-$width.h5" >/dev/null || fail "made-$width.h5 is not whole"
  /usr/bin/python3 - "$width" <<'PY' || fail "sigma_rel = $width is not what the run that tracked it has"
import h5py, json, sys, numpy as np
width = sys.argv[1]
report = json.load(open("made.json"))
assert report["step"] == 160 and report["snapshots"] == 16 and report["weights"] == f"ema/sigma_rel={width}", report
made, run, wider = (h5py.File(path) for path in
                    (f"made-{width}.h5", "run/checkpoints/latest", "wider/checkpoints/latest"))
assert all((run["model"][k][()] == wider["model"][k][()]).all() for k in wider["model"]), "training was changed"
group = f"ema/sigma_rel={width}"
assert sorted(made[group]) == sorted(wider[group])
assert dict(made[group].attrs) == dict(wider[group].attrs)
assert all((made[group][k][()] == run["model"][k][()]).all() for k in made[group] if "running" in k)
def flat(file, group):
    return np.concatenate([file[group][k][()].ravel() for k in sorted(file[group]) if k.endswith(("weight", "bias"))])
tracked, own = flat(wider, group), flat(wider, "model")
error = np.linalg.norm(flat(made, group) - tracked)
print(width, "relative error", error / np.linalg.norm(tracked), "of the way from the model", error / np.linalg.norm(own - tracked))
assert error < 1e-2 * np.linalg.norm(tracked)
assert error < 0.05 * np.linalg.norm(own - tracked)
PY
done

# Verbs take the file without being told what is in it, and names however a number is written.
accuracy() {
  "$LOCKSTEP" eval "$@" --json >eval.json || fail "eval $*"
  python3 -c 'import json; e = json.load(open("eval.json")); print(e["weights"], e["accuracy"])'
}
[ "$(accuracy made-0.15.h5)" = "$(accuracy made-0.15.h5 --weights ema/sigma_rel=0.150)" ] || fail "eval finds other weights"
grep -q '"weights": "ema/sigma_rel=0.15"' eval.json || fail "eval does not say what it evaluates: $(cat eval.json)"
[ "$(accuracy run/checkpoints/latest --weights ema/sigma_rel=0.10)" = "$(accuracy run/ema/step-000000160.h5 --weights ema/sigma_rel=0.1)" ] ||
  fail "a snapshot is not what the checkpoint holds"
"$LOCKSTEP" eval run/ema/step-000000160.h5 --data digits.h5 >/dev/null 2>err.log
[ $? -eq 2 ] || fail "a snapshot of two averages was evaluated without a choice"
"$LOCKSTEP" inspect made-0.07.h5 | has_line "ema_sources" || fail "inspect does not say what the file is made of"
ranks 1 ema run --sigma-rel 0.07 --out again.h5 >/dev/null || fail "ema on one rank"
expect_same made-0.07.h5 again.h5
ranks 1 ema run --sigma-rel 0.10 --out stored.h5 | has_line "profile error 0 %" || fail "a stored average is not itself"
ranks 2 ema run --sigma-rel 0.12 --step 100 --out early.h5 | has_line "of step 100" || fail "--step"
ranks 2 train run.ini --run new --resume made-0.15.h5 --set train.steps=4 >log 2>&1 || fail "--resume: $(tail -n 3 log)"
grep -q "a new run from the weights of made-0.15.h5, at which its averages begin" log || fail "--resume does not say where it starts: $(cat log)"

# A run that goes on from an older checkpoint takes another course: later snapshots go.
cp -r run back
rm back/checkpoints/step-000000160.h5
touch back/stop
ranks 2 train run.ini --run back --set train.steps=200 >log 2>&1
grep -q "back/ema: snapshots after step 150 are removed: 1, up to step 160" log || fail "later snapshots: $(cat log)"

# Refusals.
refused 2 "run/ema: there is no snapshot of step 95; nearest: 90 and 100 \(of 16, steps 10 to 160\)" ranks 2 ema run --sigma-rel 0.1 --step 95 --out x.h5
refused 2 "sigma_rel = 0.01 is impossible: .* possible widths: 0.03 to 0.25" ranks 2 ema run --sigma-rel 0.01 --out x.h5
refused 2 "sigma_rel = 0.4 is not between 0 and 0.28" ranks 2 ema run --sigma-rel 0.4 --out x.h5
mkdir -p no-snapshots/checkpoints
refused 2 "new-dir: there is no such run directory" ranks 2 ema new-dir --sigma-rel 0.1 --out x.h5
refused 2 "run/checkpoints: is within a run directory; give the run directory: run" ranks 2 ema run/checkpoints/ --sigma-rel 0.1 --out x.h5
refused 2 "run.ini: is a file; give the run directory" ranks 2 ema run.ini --sigma-rel 0.1 --out x.h5
refused 2 "no-snapshots/ema: there are no profile snapshots; a run keeps them that is started with ema.sigma_rel" ranks 2 ema no-snapshots --sigma-rel 0.1 --out x.h5
refused 2 "ema: --sigma-rel is missing" ranks 2 ema run --out x.h5
refused 2 "ema: --out FILE.h5 is missing" ranks 2 ema run --sigma-rel 0.1
refused 2 "ema: the run directory is missing" ranks 2 ema --sigma-rel 0.1 --out x.h5
refused 2 "nowhere/x.h5: cannot write: there is no directory nowhere" ranks 2 ema run --sigma-rel 0.1 --out nowhere/x.h5
refused 2 "made-0.07.h5: already exists; --force replaces it" ranks 2 ema run --sigma-rel 0.1 --out made-0.07.h5
refused 2 "x.safetensors: must be a .h5 file" ranks 2 ema run --sigma-rel 0.1 --out x.safetensors
"$LOCKSTEP" ema run --sigma-rel 0.1 --out again.h5 --force >/dev/null || fail "--force"
expect_same again.h5 stored.h5
finish
