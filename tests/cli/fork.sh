#!/usr/bin/env bash
# train --fork: the whole state of a checkpoint, in a new run. Where nothing differs it has the bits of the undisturbed run at any number
# of ranks; what differs is said and recorded; what cannot be carried over is an error that names it.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
{
  small_mlp 'global_batch = 24' 'shards = 3' 'steps = 20' 'eval_every = 10'
  printf '%s\n' '[optimizer]' 'name = adamw' '[ema]' 'rates = 0.9' '[checkpoint]' 'every = 10' 'keep = 3' '[log]' 'every = 10' \
    '[data]' 'eval = digits.h5'
} >run.ini
ranks 2 train run.ini --run whole >log 2>&1 || fail "train: $(tail -n 2 log)"
half=whole/checkpoints/step-000000010.h5

# fork RUN RANKS ARGUMENTS...: what it says is in RUN.log.
fork() {
  local run=$1 count=$2
  shift 2
  ranks "$count" train run.ini --run "$run" --fork "$half" "$@" >"$run.log" 2>&1
}
# no_run CODE TEXT ARGUMENTS...
no_run() {
  refused "$1" "$2" ranks 1 train run.ini "${@:3}"
}
provenance() {
  "$LOCKSTEP" inspect "$1/checkpoints/latest" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["provenance"].get(sys.argv[1], ""))' "$2"
}

for count in 1 3; do
  fork "same-$count" "$count" --set train.shards=0 || fail "fork on $count: $(tail -n 2 "same-$count.log")"
  expect_same "same-$count/checkpoints/latest" whole/checkpoints/latest
  expect_same "same-$count/checkpoints/step-000000010.h5" "$half"
  ! grep -q 'fork: ' "same-$count.log" || fail "a difference where there is none: $(grep 'fork: ' "same-$count.log")"
done

# From a path that is no UTF-8, which JSON has no text for.
odd=$'whole\xff' && cp -r whole "$odd"
half="$odd/checkpoints/step-000000010.h5" fork odd 1 --set train.shards=0 || fail "a path that is no UTF-8: $(tail -n 2 odd.log)"
expect_same odd/checkpoints/latest whole/checkpoints/latest
python3 -c 'import json; [json.loads(line) for line in open("odd/metrics.jsonl", encoding="utf-8")]' || fail "metrics of a path that is no UTF-8"

# Under another configuration: keys that a resume forbids, too.
changes=(--set train.seed=7 --set train.global_batch=30 --set train.shards=2 --set 'data.train=digits.h5*2 digits.h5'
  --set optimizer.lr=0.0005 --set train.steps=30 --set 'ema.rates=0.9 0.5' --set train.device=cpu)
fork changed-1 1 "${changes[@]}" || fail "changed: $(tail -n 2 changed-1.log)"
fork changed-2 2 "${changes[@]}" || fail "changed on 2: $(tail -n 2 changed-2.log)"
expect_same changed-1/checkpoints/latest changed-2/checkpoints/latest
for change in 'train.seed = 7 (was 1)' 'train.global_batch = 30 (was 24)' 'train.shards = 2 (was 3)' 'train.steps = 30 (was 20)' \
  'data.train = digits.h5*2 digits.h5 (was digits.h5)' 'optimizer.lr = 0.0005 (was 0.001)' 'train.device = cpu (was auto)'; do
  [ "$(grep -cF "fork: $change" changed-1.log)" -eq 1 ] || fail "not said once: $change: $(grep 'fork: ' changed-1.log)"
  grep -qF "step 10: $change" <<<"$(provenance changed-1 config_changes)" || fail "not in the provenance: $change"
done
[ "$(grep -c 'has no /ema/0.5: it starts from the weights loaded' changed-1.log)" -eq 1 ] || fail "the new EMA is not said"
[ "$(provenance changed-1 forked_from)" = "$half" ] || fail "forked_from: $(provenance changed-1 forked_from)"
[ "$(provenance changed-1 forked_step)" = 10 ] || fail "forked_step: $(provenance changed-1 forked_step)"
python3 - <<'PY' || fail "metrics.jsonl: $(cat changed-1/metrics.jsonl)"
import json
lines = [json.loads(line) for line in open("changed-1/metrics.jsonl")]
start = lines[0]
assert (start["start"], start["step"], start["forked_from"]) == ("forked", 10, "whole/checkpoints/step-000000010.h5"), start
assert start["changes"]["train.seed"] == {"from": "1", "to": "7"}, start
assert [line["step"] for line in lines if "loss" in line] == [20, 30], lines
assert [line["step"] for line in lines if "eval_loss" in line] == [10, 20, 30], lines
PY

# Normalisation is measured if the file has none, and carried over if it has.
arrays=(--set 'data.fields=x y' --set data.normalize=x)
fork measured 2 "${arrays[@]}" || fail "normalised: $(tail -n 2 measured.log)"
"$LOCKSTEP" inspect measured/checkpoints/latest | grep -q 'data/x/mean' || fail "no normalisation in the fork"
"$LOCKSTEP" train run.ini --run carried --fork measured/checkpoints/step-000000010.h5 "${arrays[@]}" \
  --set 'data.train=digits.h5*2 digits.h5' >log 2>&1 || fail "carried over: $(tail -n 2 log)"
"$LOCKSTEP" diff measured/checkpoints/latest carried/checkpoints/latest --json >diff.json
grep -q 'model/net.0.weight' diff.json || fail "other data changed nothing"
! grep -q 'data/x' diff.json || fail "the normalisation was measured again: $(cat diff.json)"

# A fork that has begun is just a run: it needs its file no more, resumes by the same command, and keeps its history.
cp -r changed-1 begun
rm -f begun/checkpoints/step-0000000[23]0.h5 begun/checkpoints/latest
mv "$half" away.h5
fork begun 2 "${changes[@]}" || fail "the same command again: $(tail -n 2 begun.log)"
grep -q 'going on after step 10' begun.log || fail "it did not resume: $(cat begun.log)"
expect_same begun/checkpoints/latest changed-1/checkpoints/latest
[ "$(provenance begun forked_from)" = "$half" ] || fail "a resume lost forked_from"
grep -qF 'step 10: train.seed = 7 (was 1)' <<<"$(provenance begun config_changes)" || fail "a resume lost the changes"
no_run 2 "begun: holds a fork of $half, not of away.h5" --run begun --fork away.h5 "${changes[@]}"
mv away.h5 "$half"
rm begun/config.ini  # killed between the first checkpoint and config.ini
fork begun 1 "${changes[@]}" || fail "without config.ini: $(tail -n 2 begun.log)"

no_run 2 'whole: holds a run already' --run whole --fork "$half"
no_run 2 '--fork .* and --resume .* name two files' --run none --fork "$half" --resume "$half"
no_run 2 '--fork .* and train.init = .* name two files' --run none --fork "$half" --set "train.init=$half"
no_run 2 '--fork: the file name is missing' --run none --fork ''
no_run 3 'nowhere.h5' --run none --fork nowhere.h5
no_run 2 'holds the state of adamw, but optimizer.name = sgd' --run none --fork "$half" --set optimizer.name=sgd
no_run 3 'wrong shape: model/net.2.weight is \[10, 32\] in the file, \[12, 32\] here' \
  --run none --fork "$half" --set 'model.sizes=64 32 12'
"$LOCKSTEP" convert "$half" weights.h5 >/dev/null || fail "convert"
no_run 3 'weights.h5: has no state of training' --run none --fork weights.h5
"$LOCKSTEP" convert weights.h5 weights.safetensors >/dev/null || fail "convert to .safetensors"
no_run 3 'is a .safetensors file, without a state of training; --resume weights.safetensors starts a new run' --run none --fork weights.safetensors
cp "$half" damaged.h5
printf '\377' | dd of=damaged.h5 bs=1 seek="$(($(stat -c %s damaged.h5) / 2))" conv=notrunc status=none
no_run 3 'damaged.h5: ' --run none --fork damaged.h5
finish
