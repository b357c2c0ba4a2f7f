#!/usr/bin/env bash
# Batch norm over one value a channel: exit code 2 before a new run's first step, with the layer, on any number of ranks; a warning where a
# run goes on. Counted over ranks where these share statistics.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
{
  small_resnet 'eval_fraction = 0.5'
  printf '%s\n' '[train]' 'steps = 3' 'global_batch = 4' 'shards = 4'
} >run.ini
sed -i 's/^blocks = 1$/blocks = 1 1 1 1/' run.ini  # 8 x 8 images: 1 x 1 in layer4

for how in 'shards=4' 'shards=2 micro_batches=2'; do
  settings=()
  for setting in $how; do settings+=(--set "train.$setting"); done
  for count in 1 2; do
    refused 2 'layer4.0.bn1 and 2 more: batch norm over one value a channel' ranks "$count" train run.ini --run refused "${settings[@]}"
    [ ! -e refused/config.ini ] || fail "$how: a run is left"
  done
  refused 2 'layer4.0.bn1 and 2 more' ranks 1 train run.ini --run refused "${settings[@]}" --dry-run
done
refused 2 'layer4.0.bn1' ranks 1 train run.ini --run refused --set model.batch_norm=sync
ranks 2 train run.ini --run sync --set model.batch_norm=sync >log 2>&1 || fail "sync: $(tail -n 3 log)"
has_line 'note: layers that communicate .* the same bits at the same number of ranks only' <log || fail "sync: $(cat log)"
ranks 2 train run.ini --run two --set train.shards=2 >log 2>&1 || fail "two samples a shard: $(tail -n 3 log)"
! grep -q 'one value' log || fail "two samples a shard: $(cat log)"

# Its images have become smaller meanwhile.
sed -i 's/^blocks = .*/blocks = 1 1 1/' run.ini
ranks 2 train run.ini --run before >log 2>&1 || fail "before: $(tail -n 3 log)"
/usr/bin/python3 - <<'PY' || fail "no smaller images"
import h5py
with h5py.File("digits.h5", "a") as data:
    x, attributes = data["x"][:, :, ::2, ::2], dict(data["x"].attrs)
    del data["x"]
    data["x"] = x
    data["x"].attrs.update(attributes)
PY
refused 2 'layer3.0.bn1 and 2 more' ranks 2 train run.ini --run refused
ranks 2 train run.ini --run before --set train.steps=5 >log 2>&1 || fail "a resume: $(tail -n 3 log)"
[ "$(grep -c 'warning: layer3.0.bn1 and 2 more: batch norm over one value' log)" -eq 1 ] || fail "a resume: $(cat log)"
finish
