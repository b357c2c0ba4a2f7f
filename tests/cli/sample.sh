#!/usr/bin/env bash
# lockstep sample and [sample], with a task of a program: the same bytes at any number of ranks, data that a classifier takes as it is,
# pictures while training that a kill and a resume neither double nor miss; and what cannot be.
# Environment: STAMPS, the program of sample_program.cpp.
source "$(dirname "$0")/../support/cli.sh"
lockstep=$LOCKSTEP
digits digits.h5
LOCKSTEP=$STAMPS
cat >run.ini <<'INI'
[model]
name = stamps
num_classes = 10
[task]
name = stamping
[data]
train = digits.h5
eval_fraction = 0.1
range = 0 16
[train]
steps = 60
global_batch = 96
shards = 6
[optimizer]
lr = 0.1
[ema]
rates = 0.5
[checkpoint]
every = 10
keep = 100
[sample]
every = 15
count = 20
class = all
steps = 4
weights = model ema/0.5
seed = 7
INI

# Training leaves the same pictures at any number of ranks.
for count in 1 2 3; do
  ranks "$count" train run.ini --run "run-$count" >log 2>&1 || fail "on $count ranks: $(tail -n 3 log)"
  diff -r run-1/samples "run-$count/samples" >diff.log || fail "other pictures on $count ranks: $(cat diff.log)"
done
expected=$(for step in 15 30 45 60; do printf 'step-%09d-%s.png\n' "$step" ema-0.5 "$step" model; done)
[ "$(ls run-1/samples)" = "$expected" ] || fail "pictures: $(ls run-1/samples)"
grep -q '"png":"iVBORw0KGgo' run-1/report.html || fail "the report shows no pictures"
# A kill at any point, and a resume on another number of ranks: the same pictures.
for from in 20 30 50; do
  mkdir -p "cut-$from/samples" "cut-$from/checkpoints"
  cp -r run-1/config.ini run-1/metrics.jsonl "cut-$from"
  for step in $(seq 10 10 "$from"); do cp "run-1/checkpoints/step-$(printf %09d "$step").h5" "cut-$from/checkpoints"; done
  ln -s "step-$(printf %09d "$from").h5" "cut-$from/checkpoints/latest"
  for step in 15 30 45; do  # killed after the checkpoint, and before the picture of the same step
    [ "$step" -ge "$from" ] || cp run-1/samples/step-*"$step"-*.png "cut-$from/samples"
  done
  ranks 2 train run.ini --run "cut-$from" >log 2>&1 || fail "resumed at $from: $(tail -n 3 log)"
  has_line "going on after step $from" <log || fail "it was not resumed at $from: $(head -n 5 log)"
  diff -r run-1/samples "cut-$from/samples" >diff.log || fail "other pictures after a resume at $from: $(cat diff.log)"
done
# A real kill.
kill_when killed/samples/step-000000030-model.png 2 train run.ini --run killed --set train.steps="$endless_steps" \
  --set checkpoint.keep=1000000
for file in killed/checkpoints/step-*.h5 killed/samples/step-*.png; do
  [[ $(basename "$file") < step-000000060 ]] || rm "$file"  # a fast machine has come too far
done
ranks 3 train run.ini --run killed >log 2>&1 || fail "after a kill: $(tail -n 3 log)"
diff -r run-1/samples killed/samples >diff.log || fail "other pictures after a kill: $(cat diff.log)"

# Sampling that does not end by itself obeys RUN/checkpoint, RUN/stop and signals within a chunk, also on ranks that have no chunk; a resume
# makes the pictures, and the checkpoint has the model's own weights, not the averaged ones that the pictures are made of.
endless=(--set task.max_steps=1000000000 --set task.tells=begun --set checkpoint.every=1000)
begin() {  # begin RUN SETTING...: until it samples; $launcher is its pid
  local name=$1 settings=() count
  shift
  for setting in "$@"; do settings+=(--set "$setting"); done
  rm -f begun
  read -r -a start <<<"$LOCKSTEP_MPIRUN -n 2"
  "${start[@]}" "$STAMPS" train run.ini --run "$name" "${endless[@]}" "${settings[@]}" >"log-$name" 2>&1 &
  launcher=$!
  until_there begun "$launcher"
}
ended() {  # ended RUN CODE
  wait "$launcher"
  local code=$?
  [ "$code" -eq "$2" ] || fail "$1: exit $code, expected $2: $(tail -n 3 "log-$1")"
}
slow=(sample.every=30 sample.count=16 sample.steps=1000000000 "sample.weights=ema/0.5 model")
begin stopped "${slow[@]}"
touch stopped/checkpoint
until [ ! -e stopped/checkpoint ] || ! kill -0 "$launcher" 2>/dev/null; do sleep 0.02; done
expect_same run-1/checkpoints/step-000000030.h5 stopped/checkpoints/latest
touch stopped/stop
ended stopped 76
[ -z "$(ls stopped/samples 2>/dev/null)" ] || fail "a picture that was not made is there: $(ls stopped/samples)"
begin preempted "${slow[@]}"
send_to_ranks USR2 "$launcher"
ended preempted 75
expect_same run-1/checkpoints/step-000000030.h5 preempted/checkpoints/latest
for halted in stopped preempted; do
  ranks 3 train run.ini --run "$halted" "${endless[@]}" >log 2>&1 || fail "$halted, resumed: $(tail -n 3 log)"
  for step in 30 45 60; do
    for weights in model ema-0.5; do
      cmp "run-1/samples/step-0000000$step-$weights.png" "$halted/samples/step-0000000$step-$weights.png" || fail "$halted, resumed: step $step"
    done
  done
done

# A kill between a picture and its event in TensorBoard, or after both: a resume shows each picture once.
shown() { grep -ao 'samples/model' "$1"/tensorboard/events.* | wc -l; }
[ "$(shown run-1)" -eq 4 ] || fail "TensorBoard shows $(shown run-1) pictures, not 4"
for cut in no-event no-picture neither; do
  cp -r run-1 "$cut"
  rm "$cut"/checkpoints/step-*[4-6]0.h5 "$cut/checkpoints/latest" "$cut"/samples/step-*{45,60}*
  ln -s step-000000030.h5 "$cut/checkpoints/latest"
done
rm -r no-event/tensorboard no-picture/samples neither/samples neither/tensorboard
for cut in no-event no-picture neither; do
  ranks 2 train run.ini --run "$cut" >log 2>&1 || fail "$cut: $(tail -n 3 log)"
  for step in 30 45 60; do
    cmp "run-1/samples/step-0000000$step-model.png" "$cut/samples/step-0000000$step-model.png" || fail "$cut: picture of step $step"
  done
done
[ "$(shown no-event)" -eq 3 ] || fail "no-event: TensorBoard shows $(shown no-event) pictures, not 3"
[ "$(shown neither)" -eq 3 ] || fail "neither: TensorBoard shows $(shown neither) pictures, not 3"
[ "$(shown no-picture)" -eq 4 ] || fail "no-picture: TensorBoard shows $(shown no-picture) pictures, not 4"

# A picture that cannot be written ends no run, and that is said once; the same of samples that are not finite.
mkdir -p unwritable && touch unwritable/samples
ranks 2 train run.ini --run unwritable >log 2>&1 || fail "pictures that cannot be written: $(tail -n 3 log)"
[ "$(grep -c 'samples.*said once' log)" -eq 1 ] || fail "not said once: $(cat log)"
expect_same run-1/checkpoints/latest unwritable/checkpoints/latest
ranks 2 train run.ini --run not-finite --set task.noise=1e39 >log 2>&1 || fail "samples that are not finite: $(tail -n 3 log)"
[ "$(grep -c 'is not finite; a picture' log)" -eq 2 ] || fail "not said once for each of the weights: $(cat log)"
[ -z "$(ls not-finite/samples 2>/dev/null)" ] || fail "pictures of samples that are not finite: $(ls not-finite/samples)"

# The verb takes [sample] of the run, and makes the same at any number of ranks.
saved=run-1/checkpoints/latest
"$LOCKSTEP" sample "$saved" --out as-in-training.png >log 2>&1 || fail "sample: $(cat log)"
cmp as-in-training.png run-1/samples/step-000000060-model.png || fail "sample and [sample] differ"
"$LOCKSTEP" sample "$saved" --count 20 --weights ema/0.5 --out ema.png >log 2>&1 || fail "--weights: $(cat log)"
cmp ema.png run-1/samples/step-000000060-ema-0.5.png || fail "sample and [sample] differ in EMA weights"
for count in 1 2 3 4; do
  for kind in png h5; do
    ranks "$count" sample "$saved" --count 109 --class all --seed 3 --out "out-$count.$kind" >log 2>&1 || fail "$count ranks: $(cat log)"
    cmp "out-1.$kind" "out-$count.$kind" || fail "other bytes on $count ranks: $kind"
  done
done
"$LOCKSTEP" sample "$saved" --count 10 --class 3 --out three.h5 >log 2>&1 || fail "--class 3: $(cat log)"
"$LOCKSTEP" sample "$saved" --count 10 --class none --steps 2 --out none.h5 >log 2>&1 || fail "--class none: $(cat log)"
"$LOCKSTEP" sample "$saved" --count 10 --class all --seed 3 --out few.h5 >log 2>&1 || fail "few: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "the data files are not what was asked for"
import h5py, numpy as np
d, o = h5py.File("digits.h5"), h5py.File("out-1.h5")
assert sorted(o) == ["x", "y"] and not o.attrs and o["x"].dtype == d["x"].dtype and o["x"].shape == (109,) + d["x"].shape[1:], (o["x"], d["x"])
assert o["y"].dtype == np.int64 and (o["y"][:] == np.arange(109) % 10).all()
assert o["x"][:].min() == 0 and o["x"][:].max() == 16
assert (h5py.File("three.h5")["y"][:] == 3).all() and list(h5py.File("none.h5")) == ["x"]
assert (h5py.File("few.h5")["x"][:] == o["x"][:10]).all(), "a sample depends on how many there are"
mean = np.stack([d["x"][:][d["y"][:] == k].mean(0) for k in range(10)])
found = np.stack([o["x"][:].astype(float)[o["y"][:] == k].mean(0) for k in range(10)])
assert np.abs(found - mean).mean() < 1.5, np.abs(found - mean).mean()
PY
# A classifier takes the file as it is.
small_mlp 'steps = 150' 'global_batch = 96' >classifier.ini
"$lockstep" train classifier.ini --run classifier >log 2>&1 || fail "the classifier: $(tail -n 3 log)"
"$lockstep" eval classifier/checkpoints/latest --data out-1.h5 --json >eval.json 2>log || fail "eval of samples: $(cat log)"
/usr/bin/python3 -c 'import json; assert json.load(open("eval.json"))["accuracy"] > 0.9' || fail "samples are not their classes: $(cat eval.json)"

# The Frechet distance is a metric of every one of the weights, the same at any number of ranks; better weights have a lower one.
for count in 1 3; do
  ranks "$count" train run.ini --run "near-$count" --set sample.every=0 --set sample.features=classifier/checkpoints/latest \
    --set sample.features_count=300 --set train.eval_every=20 --set checkpoint.keep_best=eval_frechet >log 2>&1 ||
    fail "sample.features on $count ranks: $(tail -n 3 log)"
done
has_line 'step 60 .* frechet [0-9.]+ .*ema/0.5 .* frechet [0-9.]+' <log || fail "frechet is not logged: $(tail -n 3 log)"
/usr/bin/python3 - <<'PY' || fail "eval_frechet"
import json, os
runs = [{line["step"]: line for line in map(json.loads, open(f"near-{n}/metrics.jsonl")) if "eval_loss" in line} for n in (1, 3)]
for step in (20, 40, 60):
    for name in ("eval_frechet", "eval_ema_0.5_frechet"):
        assert runs[0][step][name] == runs[1][step][name] > 0, (step, name, runs)
found = [runs[0][step]["eval_frechet"] for step in (20, 40, 60)]
assert found[2] < found[0], found
assert os.readlink("near-1/checkpoints/best") == "step-%09d.h5" % min((20, 40, 60), key=lambda step: runs[0][step]["eval_frechet"])
PY

# A stop ends the measurement of the distance, and a resume repeats the evaluation.
begin measured sample.every=0 sample.features=classifier/checkpoints/latest sample.features_count=40 train.eval_every=20 \
  sample.steps=1000000000
touch measured/stop
ended measured 76
expect_same run-1/checkpoints/step-000000020.h5 measured/checkpoints/latest
ranks 2 train run.ini --run measured "${endless[@]}" --set sample.every=0 --set sample.features=classifier/checkpoints/latest \
  --set sample.features_count=40 --set train.eval_every=20 >log 2>&1 || fail "measured, resumed: $(tail -n 3 log)"
[ "$(grep -c '"eval_frechet"' measured/metrics.jsonl)" -eq 3 ] || fail "measured: $(grep -c eval_frechet measured/metrics.jsonl) evaluations, not 3"

# A table of floats of a range of its own, and no classes.
/usr/bin/python3 - <<'PY'
import h5py, numpy as np
d = h5py.File("digits.h5")
with h5py.File("table.h5", "w") as f:
    f["x"], f["y"] = d["x"][:].reshape(len(d["x"]), -1).astype(np.float32) * 0.5 - 3, d["y"][:]
PY
"$LOCKSTEP" train run.ini --run table --set data.train=table.h5 --set data.range="-3 5" --set model.num_classes=0 --set sample.class=auto \
  --set model.channels=64 --set model.height=1 --set model.width=1 --set sample.every=0 --set ema.sigma_rel="0.05 0.1" >log 2>&1 || fail "a table: $(tail -n 3 log)"
"$LOCKSTEP" sample table/checkpoints/latest --count 3 --out table-out.h5 >log 2>&1 || fail "samples of a table: $(cat log)"
"$LOCKSTEP" ema table --sigma-rel 0.08 --out sigma.h5 >log 2>&1 || fail "ema: $(cat log)"
"$LOCKSTEP" sample sigma.h5 --count 3 --out sigma-out.h5 >log 2>&1 || fail "samples of EMA weights made afterwards: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "samples of a table"
import h5py, numpy as np
for name in ("table-out.h5", "sigma-out.h5"):
    o = h5py.File(name)
    assert list(o) == ["x"] and o["x"].shape == (3, 64) and o["x"].dtype == np.float32, name
    assert -3 <= o["x"][:].min() < -1 and 1 < o["x"][:].max() <= 5, name
PY

# stamps ARGUMENTS...: on 2 ranks, with errors as one_error looks for them.
stamps() {
  local code
  ranks 2 "$@"
  code=$?
  sed -i 's/^stamps: /lockstep: /' err.log
  return "$code"
}
# no_sample CODE TEXT ARGUMENTS...
no_sample() {
  refused "$1" "$2" stamps sample "${@:3}"
}
no_sample 2 "sample: the checkpoint file is missing"
no_sample 2 "sample: --out FILE is missing" "$saved" --count 3
no_sample 2 "--count: " "$saved" --count 0 --out bad.png
no_sample 2 "--count: " "$saved" --count many --out bad.png
no_sample 2 "--class \"10\": is not all, none or a class of the model, 0 to 9" "$saved" --count 3 --class 10 --out bad.png
no_sample 2 "--class \"-1\": is not all, none or a class" "$saved" --count 3 --class -1 --out bad.png
no_sample 2 "--class \"all\": the model takes no classes" table/checkpoints/latest --count 3 --class all --out bad.h5
no_sample 2 "--steps 11: does not fit" "$saved" --count 3 --steps 11 --out bad.png
no_sample 2 "--sampler euler: is neither" "$saved" --count 3 --sampler euler --out bad.png
no_sample 2 "--eta: " "$saved" --count 3 --eta 2 --out bad.png
no_sample 2 "--guidance: " "$saved" --count 3 --guidance nan --out bad.png
no_sample 2 "--out \"bad.jpg\": ends neither with .png nor with .h5" "$saved" --count 3 --out bad.jpg
no_sample 2 "--weights ema: must be model, ema/RATE" "$saved" --count 3 --weights ema --out bad.png
no_sample 2 "exceeds 16384 pixels per side" "$saved" --count 100000000 --out ./bad.png --class 1
no_sample 2 "\[64, 1, 1\]" table/checkpoints/latest --count 3 --out bad.png
no_sample 2 "out-1.png: already exists; --force replaces it" "$saved" --count 3 --out out-1.png
no_sample 2 "is an input, which is never replaced" run-1/checkpoints/step-000000060.h5 --count 3 --force --out run-1/checkpoints/step-000000060.h5
no_sample 2 "nowhere" "$saved" --count 3 --out nowhere/bad.png
no_sample 2 "sample: classifier/checkpoints/latest: task.name = classification: its models cannot make samples" classifier/checkpoints/latest --count 3 --out bad.png
no_sample 3 "gone.h5" gone.h5 --count 3 --out bad.png
no_sample 3 "digits.h5" digits.h5 --count 3 --out bad.png
no_sample 3 "ema/0.9" "$saved" --count 3 --weights ema/0.9 --out bad.png
"$LOCKSTEP" train run.ini --run wild --set task.noise=1e39 --set sample.every=0 >log 2>&1 || fail "wild: $(tail -n 3 log)"
no_sample 4 "sample 0 is not finite" wild/checkpoints/latest --count 5 --out bad.h5
no_sample 4 "sample 0 is not finite" wild/checkpoints/latest --count 5 --out bad.png
# What is not given is the run's: errors name its key, and weights that the file lacks are said.
"$LOCKSTEP" train run.ini --run other --set sample.every=0 --set sample.class=12 --set "sample.weights=ema/0.25 model" >log 2>&1 || fail "other: $(tail -n 3 log)"
"$LOCKSTEP" sample other/checkpoints/latest --class 1 --count 2 --out other.png >log 2>&1 || fail "other weights: $(cat log)"
[ "$(grep -c 'has no weights ema/0.25, the first of sample.weights of the run; using model' log)" -eq 1 ] || fail "weights that the file lacks: $(cat log)"
no_sample 2 '^lockstep: sample.class "12": is not all, none' other/checkpoints/latest --count 2 --out bad.png
"$LOCKSTEP" sample "$saved" --count 20 --out out-1.png --force >log 2>&1 || fail "--force: $(cat log)"
cmp out-1.png as-in-training.png || fail "--force did not replace the file"

# no_run TEXT SECTION.KEY=VALUE...: training ends with exit code 2 before it begins.
no_run() {
  local settings=("${@:2}")
  refused 2 "$1" stamps train run.ini --run none "${settings[@]/#/--set=}"
}
no_run 'sample.weights: .*ema/0.9.* is not averaged' sample.weights=ema/0.9
no_run 'sample.weights: .*twice' "sample.weights=model model"
no_run 'sample.class "12": is not all, none or a class' sample.class=12
no_run 'sample.steps x: does not fit' sample.steps=x
no_run 'sample.sampler euler' sample.sampler=euler
no_run 'sample.count' sample.count=0
no_run 'data.range' "data.range=16 0"
no_run 'data.range = 0 16: cannot be combined with data.normalize of x' data.normalize=x
no_run 'sample.features: nothing is evaluated' sample.features=classifier/checkpoints/latest data.eval_fraction=0
no_run 'sample.features: compares with all samples of data.train, each once, but its files have weights' \
  sample.features=classifier/checkpoints/latest "data.train=digits.h5*0.5 digits.h5*0.5"
no_run 'sample.features: .*the classifier takes samples \[1, 8, 8\], but the model makes \[1, 4, 4\]' sample.features=classifier/checkpoints/latest \
  model.height=4 model.width=4
no_run 'data.range: is missing: x of table.h5 has values from -3 to 5' data.train=table.h5 data.range=
refused 3 'gone.h5' stamps train run.ini --run none --set sample.features=gone.h5
mv run.ini stamps.ini
cp classifier.ini run.ini
no_run 'sample.every = 15: task.name = classification: its models cannot make samples' sample.every=15
no_run 'sample.features: task.name = classification: its models cannot make samples' sample.features=classifier/checkpoints/latest
mv stamps.ini run.ini

# Another loss over a diffusion's estimate is a task of three lines, with the keys of the built-in one.
cat >robust.ini <<'INI'
[model]
name = unet
image_size = 8
in_channels = 1
model_channels = 32
out_channels = 1
num_res_blocks = 1
channel_mult = 1 1
[task]
name = robust
[diffusion]
schedule = cosine
steps = 6
[data]
train = digits.h5
range = 0 16
[train]
steps = 3
global_batch = 12
shards = 3
[log]
every = 1
INI
for count in 1 3; do ranks "$count" train robust.ini --run "robust-$count" >log 2>&1 || fail "another loss: $(tail -n 3 log)"; done
expect_same robust-1/checkpoints/latest robust-3/checkpoints/latest
ranks 1 train robust.ini --run squares --set task.name=diffusion >log 2>&1 || fail "its built-in loss: $(tail -n 3 log)"
python3 - <<'PY' || fail "another loss than the absolute error of the first estimate, 0: $(head -n 3 robust-1/metrics.jsonl squares/metrics.jsonl)"
import json, math
def first(run):
    return next(line["loss"] for line in map(json.loads, open(run + "/metrics.jsonl")) if line.get("step") == 1 and "loss" in line)
assert abs(first("robust-1") - math.sqrt(2 / math.pi)) < 0.1 and abs(first("squares") - 1) < 0.2
PY
ranks 1 sample robust-1/checkpoints/latest --count 2 --out robust.h5 >log 2>&1 || fail "samples: $(tail -n 3 log)"
finish
