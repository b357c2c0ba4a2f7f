#!/usr/bin/env bash
# What a resumed run may change: it is said and recorded, survives a start that saved nothing, and gives the same bits at any number
# of ranks. Epochs become steps at the first start, and stay what they were when the data grows.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'global_batch = 24' 'shards = 3' 'epochs = 2' '[checkpoint]' 'every = 50' '[log]' 'every = 10' >run.ini
ranks 2 train run.ini --run begun >log 2>&1 || fail "train: $(tail -n 2 log)"
grep -q '^steps = 150$' begun/config.ini || fail "2 epochs of 1797 samples, 24 a step, are 150 steps: $(grep steps begun/config.ini)"
"$LOCKSTEP" inspect begun/checkpoints/latest --json | grep -q 'steps = 150' || fail "/config does not say the steps"

for count in 1 3; do
  cp -r begun "changed-$count"
  # A start that is told of the change and saves nothing: what it was told is in config.ini, and in no checkpoint.
  ranks 1 train run.ini --run "changed-$count" --set train.epochs=4 --set optimizer.lr=0.0005 --set train.init=nowhere >log 2>&1 &&
    fail "another train.init was taken"
  sed -i 's/^lr = .*/lr = 0.0005/' "changed-$count/config.ini"
  ranks "$count" train run.ini --run "changed-$count" --set train.epochs=4 --set optimizer.lr=0.0005 --set optimizer.clip=0.5 >log 2>&1 ||
    fail "changed on $count: $(tail -n 2 log)"
  "$LOCKSTEP" inspect "changed-$count/checkpoints/latest" | grep config_changes >changes.log
  for change in 'train.steps = 300 (was 150)' 'optimizer.lr = 0.0005 (was 0.001)' 'optimizer.clip = 0.5 (was 0)'; do
    grep -qF "step 150: $change" changes.log || fail "provenance does not say $change: $(cat changes.log)"
  done
  python3 - "changed-$count" <<'PY' || fail "metrics.jsonl: $(grep start "changed-$count/metrics.jsonl")"
import json, sys
starts = [line for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "start" in line]
assert [(line["start"], line["step"]) for line in starts] == [("new", 0), ("resumed", 150)], starts
assert starts[1]["changes"]["optimizer.lr"] == {"from": "0.001", "to": "0.0005"}, starts
assert starts[1].keys() >= {"time", "ranks", "nodes", "version"} and "loss" not in starts[1], starts
PY
done
expect_same changed-1/checkpoints/latest changed-3/checkpoints/latest
"$LOCKSTEP" diff changed-1/checkpoints/latest begun/checkpoints/latest >/dev/null && fail "the change changed nothing"
ranks 1 train run.ini --run begun --set optimizer.betas='0.8 0.9' >log 2>&1 && fail "betas were changed on a resume"

# A checkpoint under another's name is no place to go on from.
cp -r begun renamed
mv renamed/checkpoints/step-000000150.h5 renamed/checkpoints/step-000000199.h5
refused 2 'step-000000199.h5: holds the state after step 150' ranks 1 train run.ini --run renamed --set train.epochs=4

# More data: as many steps as there were; other epochs are counted anew.
ranks 1 train run.ini --run begun --set 'data.train=digits.h5 digits.h5' >log 2>&1 || fail "more data: $(tail -n 2 log)"
grep -q 'nothing to do: 150 steps done already' log || fail "more data made more steps: $(tail -n 2 log)"
ranks 1 train run.ini --run begun --set 'data.train=digits.h5 digits.h5' --set train.epochs=1.5 >log 2>&1 || fail "more epochs: $(tail -n 2 log)"
grep -q '^steps = 225$' begun/config.ini || fail "1.5 epochs of 3594 samples are 225 steps: $(grep steps begun/config.ini)"
ranks 1 train begun/config.ini --run begun >log 2>&1 || fail "the stored configuration: $(tail -n 2 log)"
finish
