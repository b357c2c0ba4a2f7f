#!/usr/bin/env bash
# Series of different lengths from a file: classes, values, a forecast and labels of steps; the same bits at 1 to 3 ranks, after a kill, and
# whatever the padding holds; each feature has its own mean; predictions of steps that do not exist are NaN; what does not fit is one line.
source "$(dirname "$0")/../support/cli.sh"

cat >data.py <<'PY'
import sys
import h5py
import numpy as np
name, padding, more = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
r = np.random.default_rng(3)
N, T, H = 120, 12, 4
rate, kind = r.uniform(0.3, 1.2, N), r.integers(0, 3, N)
wave = np.sin(np.arange(T + H) * rate[:, None]) * (1 + kind[:, None])
x = np.stack([300 + 5 * wave, 1000 * np.gradient(wave, axis=1)], 2)
lengths, y_lengths = r.integers(2, T + 1, N), r.integers(0, H + 1, N)
lengths[:2] = 0, T
labels = (wave > 0).astype(np.int64)[:, :T]
later = np.stack([x[n, m:m + H, :1] for n, m in enumerate(lengths)])
x, there = x[:, :T].copy(), np.arange(T) < lengths[:, None]
x[~there], labels[~there] = padding, -7 if padding else 0
later[np.arange(H) >= y_lengths[:, None]] = padding
x = np.concatenate([x, np.full((N, more, 2), padding)], 1)
labels = np.concatenate([labels, np.full((N, more), -7)], 1)
with h5py.File(name, "w") as file:
    for field, values in dict(x=x, lengths=lengths, y_lengths=y_lengths, kind=kind, rate=rate[:, None], later=later, labels=labels).items():
        file[field] = values
PY
/usr/bin/python3 data.py zeros.h5 0 0 || fail "data"
/usr/bin/python3 data.py garbage.h5 nan 0 || fail "data"
/usr/bin/python3 data.py longer.h5 0 5 || fail "data"

cat >run.ini <<'INI'
[model]
name = encoder
features = 2
outputs = 3
context = 20
layers = 2
heads = 2
channels = 16
mlp_channels = 32
dropout = 0.1
[data]
train = zeros.h5
fields = x y:/kind lengths
normalize = x
eval_fraction = 0.2
[train]
steps = 12
global_batch = 24
shards = 6
seed = 5
eval_every = 6
[optimizer]
lr = 5e-3
schedule = constant
[checkpoint]
every = 3
keep = 1000
INI
sed '/^\(context\|heads\|channels\|mlp_channels\) =/d' run.ini >rnn.ini
sed -i 's/^name = encoder/name = rnn\nhidden = 12/' rnn.ini
forecast=(model.horizon=4 model.outputs=1 task.name=regression "data.fields=x y:/later lengths y_lengths" "data.normalize=x y")
# shellcheck disable=SC2034  # by name below
values=(model.outputs=1 task.name=regression "data.fields=x y:/rate lengths" "data.normalize=x y" model.pooling=last)
by_step=(model.pooling=none model.outputs=2 "data.fields=x y:/labels lengths" task.per_class=true)

# trained RUN RANKS INI SETTING...
trained() {
  local run=$1 count=$2 ini=$3 settings=()
  shift 3
  for setting in "$@"; do settings+=(--set "$setting"); done
  ranks "$count" train "$ini" --run "$run" "${settings[@]}" >"log-$run" 2>&1 || fail "$run: $(tail -n 3 "log-$run")"
}

for ini in run rnn; do
  for kind in classes forecast values by_step; do
    settings=()
    [ $kind = classes ] || { declare -n more=$kind && settings=("${more[@]}"); }
    trained $ini-$kind-1 1 $ini.ini "${settings[@]}"
    trained $ini-$kind-3 3 $ini.ini "${settings[@]}"
    expect_same $ini-$kind-1/checkpoints/latest $ini-$kind-3/checkpoints/latest
    # NaN in the padding changes no bit of the weights, nor of the figures.
    trained $ini-$kind-garbage 2 $ini.ini "${settings[@]}" data.train=garbage.h5
    ranks 1 diff $ini-$kind-1/checkpoints/latest $ini-$kind-garbage/checkpoints/latest >log 2>&1 || fail "$ini, $kind: the padding counts: $(cat log)"
    grep -q 'held-out data' "log-$ini-$kind-garbage" && fail "$ini, $kind: a warning of values that do not exist"
  done
done
trained numbers 1 run.ini model.pooling=none model.outputs=1 task.name=regression "data.fields=x y:/labels" "data.normalize=x y"
has_line 'zeros.h5: /lengths is not read' <log-numbers || fail "no word of lengths: $(head -n 5 log-numbers)"
[ "$(h5ls -r numbers/checkpoints/latest/data/y | grep -c 'mean.*{1}')" = 1 ] || fail "y [N, T] has one mean: $(h5ls -r numbers/checkpoints/latest/data/y)"
trained resumed 2 run.ini "${by_step[@]}" train.steps=6
trained resumed 3 run.ini "${by_step[@]}" train.steps=12
expect_same run-by_step-1/checkpoints/latest resumed/checkpoints/latest
kill_when killed/checkpoints/step-000000003.h5 2 train rnn.ini --run killed --set train.steps=1000000
find killed/checkpoints -name 'step-*.h5' | sort | tail -n +3 | xargs -r rm -f
trained killed 1 rnn.ini
expect_same rnn-classes-1/checkpoints/latest killed/checkpoints/latest

# More padding changes rounding alone; counts are those of the steps that exist.
for run in run-by_step-1 rnn-forecast-1; do
  for file in zeros garbage longer; do
    "$LOCKSTEP" eval $run/checkpoints/latest --data $file.h5 --json >eval-$run-$file.json 2>log || fail "eval of $run: $(cat log)"
    "$LOCKSTEP" predict $run/checkpoints/latest --data $file.h5 --out predicted-$run-$file.h5 >log 2>&1 || fail "predict of $run: $(cat log)"
    grep -q 'not finite' log && fail "steps that do not exist are said not to be finite: $(cat log)"
  done
done
/usr/bin/python3 - <<'PY' || fail "figures"
import json
import h5py
import numpy as np
with h5py.File("zeros.h5") as file:
    data = {name: file[name][:] for name in file}
there = np.arange(12) < data["lengths"][:, None]
figures = {(run, file): json.load(open(f"eval-{run}-{file}.json")) for run in ("run-by_step-1", "rnn-forecast-1") for file in ("zeros", "garbage", "longer")}
outputs = {key: h5py.File("predicted-%s-%s.h5" % key)["output"][:] for key in figures}
for run in ("run-by_step-1", "rnn-forecast-1"):
    assert figures[run, "zeros"] == figures[run, "garbage"], figures
    for name, value in figures[run, "zeros"].items():
        if isinstance(value, float):
            assert abs(value - figures[run, "longer"][name]) < 1e-5 * max(1, abs(value)), (name, value)
    assert np.array_equal(outputs[run, "zeros"], outputs[run, "garbage"], equal_nan=True)
found = figures["run-by_step-1", "zeros"]
output = outputs["run-by_step-1", "zeros"]
assert (np.isnan(output).all(-1) == ~there).all() and (np.isnan(outputs["run-by_step-1", "longer"][:, 12:])).all()
label = h5py.File("predicted-run-by_step-1-zeros.h5")["label"][:]
assert (label[~there] == -1).all() and sum(found["samples_by_class"]) == there.sum(), found["samples_by_class"]
assert abs(found["accuracy"] - (label == data["labels"])[there].mean()) < 1e-9, found
per_class = [(label == data["labels"])[there & (data["labels"] == k)].mean() for k in range(2)]
assert np.allclose(found["accuracy_by_class"], per_class) and np.allclose([found["accuracy_class_0"], found["accuracy_class_1"]], per_class)
found, output = figures["rnn-forecast-1", "zeros"], outputs["rnn-forecast-1", "zeros"]
there = np.arange(4) < data["y_lengths"][:, None]
assert (np.isnan(output[..., 0]) == ~there).all()
error = (output - data["later"])[there]
assert abs(found["mae_in_units"] - abs(error).mean()) < 1e-4 * abs(error).mean(), (found, abs(error).mean())
assert abs(found["rmse_in_units"] - (error**2).mean()**0.5) < 1e-4 * found["rmse_in_units"], found
with h5py.File("run-classes-1/checkpoints/latest") as file:  # of the training part: near those of all
    mean = file["data/x/mean"][:]
    wanted = data["x"][np.arange(12) < data["lengths"][:, None]].mean(0)
    assert mean.shape == (2,) and abs(mean[0] - wanted[0]) < 1 and abs(mean[1] - wanted[1]) < 200, (mean, wanted)
PY

# What does not fit: one line, on any number of ranks.
/usr/bin/python3 - <<'PY' || fail "bad files"
import shutil
import h5py
import numpy as np
def changed(name, field, change):
    shutil.copy("zeros.h5", name)
    with h5py.File(name, "a") as file:
        values = file[field][:]
        del file[field]
        file[field] = change(values)
def at_7(value):
    def change(values):
        values[7] = value
        return values
    return change
changed("beyond.h5", "lengths", at_7(13))
changed("negative.h5", "lengths", at_7(-1))
changed("y_beyond.h5", "y_lengths", at_7(5))
changed("floats.h5", "lengths", lambda values: values.astype(float))
changed("columns.h5", "lengths", lambda values: values[:, None])
changed("labels.h5", "labels", lambda values: np.where(np.arange(12) == 0, 9, values))
PY
for count in 1 3; do
  bad() { refused "$1" "$2" ranks "$count" train "$3" --run bad "${@:4}"; }
  bad 3 'beyond.h5: row 7: lengths is 13, but x has 12 steps' run.ini --set data.train=beyond.h5
  bad 3 'negative.h5: row 7: lengths is -1, but x has 12 steps' rnn.ini --set data.train=negative.h5
  bad 3 'floats.h5: field lengths is float32 .* a sample, but the lengths of series are one integer a sample' run.ini --set data.train=floats.h5
  bad 3 'columns.h5: field lengths is int64 .1. a sample, but the lengths of series are one integer a sample' run.ini --set data.train=columns.h5
done
bad 3 'y_beyond.h5: row 7: y_lengths is 5, but y has 4 steps' run.ini --set data.train=y_beyond.h5 "${forecast[@]/#/--set=}"
bad 3 'zeros.h5: y_lengths is for forecasts .model.horizon.; here lengths says which steps of y exist' run.ini "${by_step[@]/#/--set=}" \
  --set data.fields="x y:/labels lengths y_lengths"
ranks 2 eval run-classes-1/checkpoints/latest --data zeros.h5 --fields 'x y:/kind' >log 2>&1 || fail "eval without lengths: $(cat log)"
has_line 'zeros.h5: has no lengths, unlike the data that .* learned from: all steps of x exist' <log || fail "no warning: $(cat log)"
bad 3 'labels.h5: row 1 of /labels is 9, but the model has 2 classes' run.ini --set data.train=labels.h5 "${by_step[@]/#/--set=}"
bad 3 'set model.features to the last extent of x' run.ini --set model.features=3
bad 3 'set model.context to the steps of the longest series' run.ini --set model.context=11
bad 3 'zeros.h5: field y of numbers .* model.horizon' run.ini "${forecast[@]/#/--set=}" --set model.horizon=5
bad 2 'model.heads' run.ini --set model.heads=3
finish
