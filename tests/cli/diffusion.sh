#!/usr/bin/env bash
# train with task.name = diffusion: the same bits at 1 to 4 ranks, killed and resumed with the state of loss_second_moment, forked; keys of
# [diffusion]; what does not fit is one line of error.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
cat >run.ini <<'INI'
[model]
name = unet
image_size = 8
in_channels = 1
model_channels = 32
out_channels = 2
num_res_blocks = 1
channel_mult = 1 1
num_classes = 10
dropout = 0.1
[diffusion]
schedule = cosine
steps = 6
variance = learned_range
time = loss_second_moment
class_dropout = 0.2
[data]
train = digits.h5
eval_fraction = 0.05
[train]
steps = 10
global_batch = 24
shards = 12
seed = 7
eval_every = 5
[optimizer]
lr = 1e-3
schedule = constant
[ema]
rates = 0.9
[checkpoint]
every = 1
keep = 100000
[log]
every = 5
INI

train_to_end at-1 1
for count in 2 3 4; do
  train_to_end "at-$count" "$count"
  expect_same at-1/checkpoints/latest "at-$count/checkpoints/latest"
done
# Saved while training goes on, which changes the state: the checkpoint has that of its step.
train_to_end async-2 2 checkpoint.async=true ddp.sharded_optimizer=true
for step in 05 09 10; do
  expect_same "at-1/checkpoints/step-0000000$step.h5" "async-2/checkpoints/step-0000000$step.h5"
done
"$LOCKSTEP" inspect at-1/checkpoints/latest --json | python3 -c '
import json, sys
tensors = {t["name"]: t for t in json.load(sys.stdin)["tensors"]}
assert tensors["/task/losses"]["shape"] == [6, 10] and tensors["/task/counts"]["shape"] == [6], tensors
' || fail "no /task: $("$LOCKSTEP" inspect at-1/checkpoints/latest | grep task)"
python3 - <<'PY' || fail "metrics.jsonl: $(cat at-1/metrics.jsonl)"
import json
found = [line for line in map(json.loads, open("at-1/metrics.jsonl")) if "eval_loss" in line]
assert [line["step"] for line in found] == [5, 10], found
assert all(f"eval_{weights}loss_q{q}" in found[1] for weights in ("", "ema_0.9_") for q in range(4)), found
PY
# The losses decide: with uniform times the same run ends elsewhere, and keeps no state.
train_to_end uniform 1 diffusion.time=uniform
! "$LOCKSTEP" diff at-1/checkpoints/latest uniform/checkpoints/latest >/dev/null || fail "the losses decide nothing"
! "$LOCKSTEP" inspect uniform/checkpoints/latest | has_line '/task/' || fail "uniform times have a state"
train_to_end pieces-1 1 train.micro_batches=2
train_to_end pieces-3 3 train.micro_batches=2
expect_same pieces-1/checkpoints/latest pieces-3/checkpoints/latest

# Killed after the state has begun to matter, resumed on another number of ranks; and forked.
kill_when killed/checkpoints/step-000000009.h5 1 train run.ini --run killed --set train.steps="$endless_steps"
find killed/checkpoints -name 'step-*.h5' | sort | tail -n +10 | xargs -r rm -f
train_to_end killed 2
grep -q 'going on after step 9' log-killed || fail "it did not resume: $(cat log-killed)"
expect_same at-1/checkpoints/latest killed/checkpoints/latest
ranks 3 train run.ini --run forked --fork at-2/checkpoints/step-000000008.h5 --set train.shards=0 >log 2>&1 </dev/null ||
  fail "fork: $(tail -n 3 log)"
expect_same at-1/checkpoints/latest forked/checkpoints/latest
"$LOCKSTEP" train run.ini --run other --fork uniform/checkpoints/step-000000008.h5 >log 2>&1 </dev/null || fail "fork: $(tail -n 3 log)"
grep -q 'has no /task: it starts from zero' log || fail "a fork without a state does not say so: $(cat log)"

# A fork with other steps starts the losses of the steps anew, and goes on.
ranks 2 train run.ini --run coarser --fork at-2/checkpoints/step-000000008.h5 --set train.shards=0 --set diffusion.steps=5 >log 2>&1 \
  </dev/null || fail "fork with other steps: $(tail -n 3 log)"
grep -q 'fork: /task/losses is \[6, 10\] in .*, and \[5, 10\] in this run: the state of the task starts anew' log ||
  fail "a fork with other steps does not say so: $(cat log)"
"$LOCKSTEP" inspect coarser/checkpoints/latest --json | python3 -c '
import json, sys
tensors = {t["name"]: t for t in json.load(sys.stdin)["tensors"]}
assert tensors["/task/losses"]["shape"] == [5, 10], tensors
' || fail "the fork keeps other losses: $("$LOCKSTEP" inspect coarser/checkpoints/latest | grep task)"

ranks 2 eval at-1/checkpoints/latest --data digits.h5 --json >eval-2.json 2>err.log || fail "eval: $(cat err.log)"
"$LOCKSTEP" eval at-1/checkpoints/latest --data digits.h5 --json >eval-1.json 2>err.log || fail "eval: $(cat err.log)"
cmp -s eval-1.json eval-2.json || fail "eval: $(cat eval-1.json eval-2.json)"

# no_run RANKS CODE TEXT SECTION.KEY=VALUE...
no_run() {
  local settings=("${@:4}")
  refused "$2" "$3" ranks "$1" train run.ini --run none "${settings[@]/#/--set=}"
}
no_run 1 2 'diffusion.stps: unknown key; did you mean diffusion.steps' diffusion.stps=3
no_run 1 2 'diffusion.schedule: is a key of diffusion, and task.name is classification; remove it' task.name=classification
no_run 1 2 'diffusion.steps = 6: the linear schedule needs at least 21 steps' diffusion.schedule=linear
no_run 1 2 'diffusion.steps = 20: the linear schedule needs at least 21 steps' diffusion.schedule=linear diffusion.steps=20
no_run 1 2 'sample.sampler "foo" is not one of: ddpm, ddim, dpmpp_2m' sample.every=5 sample.sampler=foo
no_run 1 2 'sample.steps 3,2000: part 2 of the 6 steps has 3 steps, so 2000 cannot be kept' sample.every=5 sample.steps=3,2000
refused 2 '--sampler "foo" is not one of: ddpm, ddim, dpmpp_2m' ranks 1 sample at-1/checkpoints/latest --out foo.png --sampler foo
no_run 1 2 'needs 1 output channels \(model.out_channels\), not 2' diffusion.variance=fixed_small
no_run 1 2 'diffusion.class_dropout = 0.2: the model takes no classes' model.num_classes=0
no_run 1 3 'field y has values up to 9, but the model has 9 classes' model.num_classes=9
no_run 1 2 'model.attention_resolutions: no level has the downsampling factor 4; .* have 1, 2 \(images of 4 x 4: 2\)' \
  model.attention_resolutions=4
no_run 1 3 'digits.h5: images are \[1, 8, 8\], but those of the model are \[1, 16, 16\]: .*; set model.image_size' model.image_size=16
no_run 1 2 'model.channel_mult: "1,1" is not a number .*; values of a list are separated by blanks' model.channel_mult=1,1
no_run 1 2 'sample.weights: "model,ema/0.9" is not averaged .*; values of a list are separated by blanks' sample.every=5 sample.weights=model,ema/0.9
no_run 1 2 'sample.guidance 2: needs a class' sample.every=5 sample.guidance=2 sample.class=none
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py
with h5py.File("digits.h5") as digits:
    for name, x in (("last.h5", digits["x"][:].transpose(0, 2, 3, 1)), ("unlabelled.h5", digits["x"][:])):
        with h5py.File(name, "w") as file:
            file["x"] = x
            if name == "last.h5": file["y"] = digits["y"][:]
PY
no_run 1 3 'unlabelled.h5: /y does not exist, the labels of its images; .* data.format = arrays' data.train=unlabelled.h5
no_run 1 3 'last.h5: images are stored as \[N, H, W, C\], \[8, 8, 1\] each, .*: f = h5py.File\(' data.train=last.h5
# What that line of Python makes is read, and a model without classes needs no labels.
advice=$(grep -o 'f = h5py.*' err.log)
/usr/bin/python3 -c "import h5py; ${advice//FILE.h5/last.h5}; f.close()" || fail "the advice is no Python: $advice"
train_to_end turned 1 data.train=last.h5
expect_same at-1/checkpoints/latest turned/checkpoints/latest
for format in auto arrays; do
  train_to_end "unlabelled-$format" 1 data.train=unlabelled.h5 model.num_classes=0 diffusion.class_dropout=0 "data.format=$format"
done
train_to_end labelled 1 model.num_classes=0 diffusion.class_dropout=0
for other in unlabelled-auto unlabelled-arrays; do expect_same labelled/checkpoints/latest "$other/checkpoints/latest"; done
"$LOCKSTEP" eval labelled/checkpoints/latest --data unlabelled.h5 --json >out.log 2>err.log || fail "eval of unlabelled images: $(cat err.log)"

# With ema.init = file averages go on from the file's, the same at any number of ranks; else they begin at the weights.
"$LOCKSTEP" convert at-1/checkpoints/step-000000003.h5 ema.pt --weights ema/0.9 >/dev/null || fail "convert"
"$LOCKSTEP" convert at-1/checkpoints/step-000000009.h5 model.pt >/dev/null || fail "convert"
"$LOCKSTEP" convert model.pt start.h5 --config run.ini --ema 0.9=ema.pt --ema 0.99=ema.pt >/dev/null || fail "convert --ema"
for count in 1 3; do
  train_to_end "from-$count" "$count" train.init=start.h5 train.steps=1 "ema.rates=0.9 0.99" ema.init=file
  grep -q 'a new run from the weights of start.h5 and its averages$' "log-from-$count" || fail "averages: $(cat "log-from-$count")"
done
train_to_end from-sharded 2 train.init=start.h5 train.steps=1 "ema.rates=0.9 0.99" ema.init=file ddp.sharded_optimizer=true
for other in from-3 from-sharded; do expect_same from-1/checkpoints/latest "$other/checkpoints/latest"; done
train_to_end begins 1 train.init=start.h5 train.steps=1 "ema.rates=0.9 0.99"
grep -q 'a new run from the weights of start.h5, at which its averages begin$' log-begins || fail "averages: $(cat log-begins)"
/usr/bin/python3 - <<'PY' || fail "averages do not move on from where they begin"
import h5py, numpy as np
start = h5py.File("start.h5")
apart = 0
for run in ("from-1", "begins"):
    now = h5py.File(f"{run}/checkpoints/latest")
    for name, weights in now["model"].items():
        apart = max(apart, np.abs(start["ema/0.9"][name][()] - start["model"][name][()]).max())
        for rate in (0.9, 0.99):
            before = start[f"ema/{rate}" if run == "from-1" else "model"][name][()]
            expected = rate * before + (1 - rate) * weights[()]
            assert np.abs(now[f"ema/{rate}"][name][()] - expected).max() < 1e-6, (run, rate, name)
    updates = start["ema/0.9"].attrs["updates"] if run == "from-1" else 0
    assert now["ema/0.9"].attrs["updates"] == updates + 1, run
assert apart > 1e-3, apart
PY
# The averages that are asked for are not there.
no_run 2 3 'start.h5: has no ema/0.5, ema/sigma_rel=0.1, which ema.init = file needs' train.init=start.h5 "ema.rates=0.9 0.5" ema.sigma_rel=0.1 ema.init=file
no_run 2 2 'ema.init = file: no file is given to start from; give train.init or --resume FILE' ema.init=file
# As of another program, whose files say no step.
/usr/bin/python3 -c 'import h5py; h5py.File("at-1/checkpoints/latest").copy("model", h5py.File("arrays.h5", "w"))'
"$LOCKSTEP" convert arrays.h5 start.h5 --force --config run.ini --ema 0.9=ema.pt >/dev/null || fail "convert --ema"
no_run 2 3 'start.h5: its averages have no common number of updates, on which ema.warmup and ema.sigma_rel depend; leave these out, or ema.init' \
  train.init=start.h5 ema.rates=0.9 ema.init=file "ema.warmup=1 0.75 0"

# Verbs for other models say which is the right one.
refused 2 'predict: at-1/checkpoints/latest: a diffusion model predicts samples: use lockstep sample at-1/checkpoints/latest, or --output network' \
  ranks 2 predict at-1/checkpoints/latest --data digits.h5 --out out.h5
# The network alone reads what it is given: as a regression over the same weights does.
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
draw = np.random.default_rng(1)
with h5py.File("noised.h5", "w") as f, h5py.File("digits.h5") as digits:
    f["x"] = draw.normal(0, 1, (40, *digits["x"].shape[1:])).astype("f4")
    f["t"], f["y"] = draw.integers(0, 6, 40), draw.integers(0, 10, 40)
PY
sed -n '/^\[model\]/,/^\[/p' run.ini | sed '$d' >forward.ini
printf '%s\n' '[task]' 'name = regression' '[data]' 'train = noised.h5' 'fields = x t y' '[train]' 'steps = 1' 'global_batch = 1' >>forward.ini
"$LOCKSTEP" convert at-1/checkpoints/latest forward.safetensors >log 2>&1 || fail "convert: $(cat log)"
"$LOCKSTEP" convert forward.safetensors forward.h5 --config forward.ini >log 2>&1 || fail "convert: $(cat log)"
"$LOCKSTEP" predict forward.h5 --data noised.h5 --out forward-out.h5 >log 2>&1 || fail "predict of the network as a regression: $(cat log)"
for count in 1 3; do
  ranks "$count" predict at-1/checkpoints/latest --data noised.h5 --output network --out "network-$count.h5" >log 2>&1 || fail "--output network: $(tail -n 3 log)"
done
cmp network-1.h5 network-3.h5 || fail "--output network: other bytes on 3 ranks"
/usr/bin/python3 -c 'import h5py, numpy as np
found, wanted = (h5py.File(name)["output"][:] for name in ("network-1.h5", "forward-out.h5"))
assert found.shape[0] == 40 and np.isfinite(found).all() and (found == wanted).all()' || fail "--output network: other outputs"
refused 2 '--guidance 2: needs a class; give one, or leave guidance out' \
  ranks 2 sample at-1/checkpoints/latest --out out.png --count 2 --class none --guidance 2
sed 's/^\[diffusion\]/[difusion]/' run.ini >misspelt.ini
! "$LOCKSTEP" train misspelt.ini --run refused >/dev/null 2>err.log || fail "a misspelt section was taken"
grep -qF 'did you mean [diffusion]?' err.log || fail "a misspelt section: $(cat err.log)"
refused 2 "diffusion.predict: the run has 'eps', the configuration has 'v'" ranks 1 train run.ini --run at-1 --set diffusion.predict=v
refused 2 "diffusion.steps: the run has '6', the configuration has '5'" ranks 1 train run.ini --run at-1 --set diffusion.steps=5
finish
