#!/usr/bin/env bash
# Volumes [N, C, D, H, W] without code: jobs/cosmoflow.ini, a resnet and a unet end in the same bits at 1, 2 and 3 ranks, one of them
# after a kill; fields are predicted as fields, in the units of the file; shapes that do not fit are one line.
source "$(dirname "$0")/../support/cli.sh"

/usr/bin/python3 "$LOCKSTEP_SOURCE_DIR/share/example/cosmoflow.py" universes.h5 36 16 || fail "the generator failed"
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
draw = np.random.default_rng(1)
with h5py.File("fields.h5", "w") as f:  # two channels to one, of another mean
    f["before"] = draw.normal(300, 20, (24, 2, 4, 8, 12)).astype("f4")
    f["after"] = 5 + 1e-3 * f["before"][:].sum(1, keepdims=True)
    f["after"].attrs["units"] = "K"
    f["warm"] = (f["before"][:].sum(1) > 600).astype("i8")
    f["small"], f["flat"] = f["before"][:, :, :3], f["before"][:, :, 0]
    f["more"] = f["before"][:][:, [0, 1, 1]]
PY
small=(train.steps=8 train.global_batch=6 train.shards=3 train.eval_every=4 checkpoint.every=2)
sed 's/^image_size = 32/image_size = 16/; s/^width = 16/width = 4/; s/^layers = 5/layers = 3/; s/^dropout = .*/dropout = 0.2/
  s/^train = .*/train = universes.h5/; s/^epochs = .*/steps = 1/' "$LOCKSTEP_SOURCE_DIR/jobs/cosmoflow.ini" >run.ini
for count in 1 2 3; do train_to_end "cosmoflow-$count" "$count" "${small[@]}"; done
for count in 2 3; do expect_same cosmoflow-1/checkpoints/latest "cosmoflow-$count/checkpoints/latest"; done
train_to_end cosmoflow-once 1 "${small[@]}" ddp.shards_at_once=3
expect_same cosmoflow-1/checkpoints/latest cosmoflow-once/checkpoints/latest
kill_when killed/checkpoints/step-000000004.h5 3 train run.ini --run killed --set train.global_batch=6 --set train.shards=3 \
  --set train.eval_every=4 --set checkpoint.every=2 --set checkpoint.keep=100000 --set "train.steps=$endless_steps" \
  --set optimizer.schedule=constant
find killed/checkpoints -name 'step-*.h5' | sort | tail -n +3 | xargs -r rm -f
train_to_end killed 2 "${small[@]}" optimizer.schedule=constant
train_to_end whole 1 "${small[@]}" optimizer.schedule=constant
expect_same whole/checkpoints/latest killed/checkpoints/latest

sed -i '/^\[model\]/,/^$/d' run.ini
printf '%s\n' '' '[model]' 'name = resnet' 'dims = 3' 'blocks = 1 1' 'width = 4' 'in_channels = 1' 'classes = 2' '[task]' 'name = regression' >>run.ini
for count in 1 3; do train_to_end "resnet-$count" "$count" "${small[@]}"; done
expect_same resnet-1/checkpoints/latest resnet-3/checkpoints/latest

cat >run.ini <<'INI'
[model]
name = unet
dims = 3
time_embed = false
in_channels = 2
out_channels = 1
model_channels = 8
norm_groups = 4
num_res_blocks = 1
channel_mult = 1 2
[task]
name = regression
[data]
train = fields.h5
fields = x:/before y:/after
normalize = x y
eval_fraction = 0.25
[train]
steps = 8
global_batch = 6
[optimizer]
lr = 0.01
INI
for count in 1 2; do train_to_end "unet-$count" "$count" "${small[@]}"; done
expect_same unet-1/checkpoints/latest unet-2/checkpoints/latest
train_to_end unet-once 1 "${small[@]}" ddp.shards_at_once=3
expect_same unet-1/checkpoints/latest unet-once/checkpoints/latest
for run in cosmoflow unet; do ! grep -q "at once" "log-$run-once" || fail "$run: shards at once: $(grep "at once" "log-$run-once")"; done
"$LOCKSTEP" predict unet-1/checkpoints/latest --data fields.h5 --out fields-predicted.h5 >log 2>&1 || fail "predict: $(tail -n 3 log)"
/usr/bin/python3 - <<'PY' || fail "predictions of fields"
import h5py, numpy as np
with h5py.File("fields-predicted.h5") as p, h5py.File("fields.h5") as f:
    found, wanted = p["output"][:], f["after"][:]
    assert found.shape == (24, 1, 4, 8, 12), found.shape
    error = np.sqrt(((found - wanted) ** 2).mean())
    assert abs(found.mean() - wanted.mean()) < 0.02 and error < wanted.std(), (error, found.mean(), wanted.std())
PY

# A field of this name means nothing to a model whose output has no steps.
/usr/bin/python3 -c 'import h5py, numpy as np
with h5py.File("fields.h5", "a") as f: f["y_lengths"] = np.arange(24) % 3'
train_to_end named 1 "${small[@]}" data.fields='x:/before y:/after y_lengths'
cmp <(h5dump -d /model/out.2.weight unet-1/checkpoints/latest | tail -n +2) <(h5dump -d /model/out.2.weight named/checkpoints/latest | tail -n +2) ||
  fail "a field named y_lengths changes a unet"

# A value that is not finite in data to evaluate.
/usr/bin/python3 -c 'import h5py
with h5py.File("fields.h5") as f, h5py.File("nan.h5", "w") as g:
    for name in ("before", "after"): g[name] = f[name][:]
    g["before"][5, 0, 0, 0, 0] = float("nan")'
train_to_end raw 1 "${small[@]}" data.normalize= train.steps=1
"$LOCKSTEP" eval raw/checkpoints/latest --data nan.h5 >log 2>&1 || fail "eval of NaN: $(cat log)"
has_line 'nan.h5: row 5 of field x holds nan' <log || fail "no warning of NaN: $(cat log)"

# Labels of positions: above and below the mean.
labels=(data.fields='x:/before y:/warm' data.normalize=x model.class_logits=true model.out_channels=2 task.name=classification)
train_to_end labels 2 "${small[@]}" "${labels[@]}" train.steps=24
"$LOCKSTEP" predict labels/checkpoints/latest --data fields.h5 --out labels.h5 >log 2>&1 || fail "labels: $(tail -n 3 log)"
/usr/bin/python3 - <<'PY' || fail "labels of positions"
import h5py
with h5py.File("labels.h5") as p, h5py.File("fields.h5") as f:
    right = (p["label"][:] == f["warm"][:]).mean()
    assert p["output"].shape == (24, 4, 8, 12, 2) and right > 0.9, (p["output"].shape, right)
PY
"$LOCKSTEP" eval labels/checkpoints/latest --per-class >log 2>&1 || fail "eval --per-class: $(tail -n 3 log)"

# wrong SETTING... TEXT: one line on 2 ranks.
wrong() {
  local text=${*: -1} settings=()
  for setting in "${@:1:$#-1}"; do settings+=(--set "$setting"); done
  ends 3 "$text" ranks 2 train run.ini --run wrong "${settings[@]}"
}
channels='set model.dims .2: images, 3: volumes., model.in_channels and the levels of model.channel_mult'
wrong 'data.fields=x:/flat y:/after' "[0-9], 2, 8, 12. does not fit the unet's .batch, 2, depth, height, width.*$channels"
wrong 'data.fields=x:/more y:/after' "[0-9], 3, 4, 8, 12. does not fit the unet's .batch, 2, depth.*$channels"
wrong 'data.fields=x:/small y:/after' '[0-9], 2, 3, 8, 12. does not fit.*each of them divisible by 2'
wrong model.out_channels=3 'field y is .1, 1, 4, 8, 12., but the unet.s output is .batch, 3, depth, height, width.; set model.out_channels'
wrong model.class_logits=true 'field y has numbers; set model.class_logits = false to learn fields'
wrong data.fields='x:/before y:/warm' data.normalize=x task.name=classification 'field y has labels; set model.class_logits = true'
wrong model.time_embed=true model.image_size=8 'needs a field t: model.time_embed is true'
ends 2 'model.image_size is missing' ranks 2 train run.ini --run wrong --set model.time_embed=true
ends 3 'no field t|takes no field t|diffusion' ranks 2 train run.ini --run wrong --set task.name=diffusion --set diffusion.schedule=cosine \
  --set data.range='200 400' --set model.out_channels=2 --set data.normalize=
finish
