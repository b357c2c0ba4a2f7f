#!/usr/bin/env bash
# A trained resnet is tuned for other classes: checkpoint.load = partial names what is new; with train.frozen_statistics running statistics
# stay, batch norms train, and synchronized ones give the same bits at any number of ranks, as nothing is left to share.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
{
  small_resnet 'eval_fraction = 0.2'
  printf '%s\n' '[train]' 'steps = 4' 'global_batch = 32' 'shards = 4'
} >run.ini
sed -i 's/^width = 8/width = 8\nblock = bottleneck/' run.ini
train_to_end base 2

tuned=(train.init=base/checkpoints/latest train.frozen_statistics=true model.classes=12)
refused 3 'wrong shape: .*fc.weight is \[10, 32\] in the file, \[12, 32\] here' ranks 2 train run.ini --run refused "${tuned[@]/#/--set=}"
tuned+=(checkpoint.load=partial)
for norm in plain sync; do
  for count in 1 2; do train_to_end "$norm-$count" "$count" "${tuned[@]}" "model.batch_norm=$norm"; done
  expect_same "$norm-1/checkpoints/latest" "$norm-2/checkpoints/latest"
done
expect_same plain-1/checkpoints/latest sync-1/checkpoints/latest
[ "$(grep -c 'parameters loaded; new, with their initial values: fc.weight, fc.bias$' log-plain-2)" -eq 1 ] || fail "$(cat log-plain-2)"
! grep -q 'same number of ranks only' log-sync-2 || fail "frozen statistics are not shared: $(cat log-sync-2)"
/usr/bin/python3 - <<'PY' || fail "statistics or batch norms"
import h5py
import numpy as np
with h5py.File("base/checkpoints/latest") as before, h5py.File("plain-1/checkpoints/latest") as after:
    for name in before["model"]:
        if name.startswith("fc."):
            continue
        same = np.array_equal(before["model"][name][()], after["model"][name][()])
        assert same == name.endswith(("running_mean", "running_var", "num_batches_tracked")), name
PY

refused 2 'train.frozen_statistics' ranks 1 train run.ini --run plain-1 "${tuned[@]/#/--set=}" --set train.frozen_statistics=false
train_to_end alone 1 train.frozen_statistics=true
grep -q 'note: train.frozen_statistics = true in a run from new weights' log-alone || fail "new weights: $(cat log-alone)"
small_mlp 'steps = 1' 'global_batch = 8' >mlp.ini
refused 2 'train.frozen_statistics = true: the model has no batch norm' ranks 2 train mlp.ini --run refused --set train.frozen_statistics=true
finish
