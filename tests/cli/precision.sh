#!/usr/bin/env bash
# bf16 where the processor is no faster in it: refused at once, or what train.bf16_fallback says, recorded and said. Where it is, bf16
# is plain bf16: then only what holds everywhere is looked at.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_resnet 'eval_fraction = 0.2' '[train]' 'steps = 4' 'global_batch = 16' 'shards = 2' 'device = cpu' >run.ini
native=$(grep -cw avx512_bf16 /proc/cpuinfo)
why="this processor .* has neither AVX512-BF16 nor AMX"

# recorded NAME TEXT: in the newest checkpoint.
recorded() {
  "$LOCKSTEP" inspect "$1/checkpoints/latest" | has_line "precision = $2\$" ||
    fail "$1 does not record '$2': $("$LOCKSTEP" inspect "$1/checkpoints/latest" | grep precision)"
}

train_to_end converted 2 train.precision=bf16 train.bf16_fallback=convert train.steps=2
if [ "$native" -eq 0 ]; then
  refused 2 "precision bf16 would be slower than fp32: rank 0 on .*: $why; use precision fp32, or set train.bf16_fallback" \
    ranks 2 train run.ini --run none --set train.precision=bf16

  train_to_end floats 2 train.precision=bf16 train.bf16_fallback=fp32
  [ "$(grep -c "precision bf16: computes in float32: .*$why" log-floats)" -eq 1 ] || fail "fp32 is not said once: $(cat log-floats)"
  recorded floats fp32
  train_to_end plain 1
  expect_same plain/checkpoints/latest floats/checkpoints/latest

  [ "$(grep -c "precision bf16 by conversion, slower than fp32: .*$why" log-converted)" -eq 1 ] ||
    fail "convert is not said once: $(cat log-converted)"
  has_line "1 thread a rank, bf16 by conversion" <log-converted || fail "the banner does not say it: $(cat log-converted)"
  recorded converted "bf16 by conversion"
  train_to_end converted 1 train.precision=bf16 train.bf16_fallback=fp32  # a run may change what bf16 becomes: that is said
  has_line "was written with precision bf16 by conversion, this run has fp32: results differ by their rounding" <log-converted ||
    fail "another precision on a resume is not said: $(cat log-converted)"
  recorded converted fp32

  # Evaluation is in float32 then, and in bf16 when it is asked for.
  "$LOCKSTEP" eval floats/checkpoints/latest --json >fp32.json 2>err.log || fail "eval: $(cat err.log)"
  has_line "computes in float32: $why" <err.log || fail "eval does not say its precision: $(cat err.log)"
  "$LOCKSTEP" doctor --config run.ini >out.log
  has_line "^ok +precision +fp32; bf16 would be slower on this CPU: $why" <out.log || fail "doctor: $(grep precision out.log)"
  sed 's/^steps = .*/&\nprecision = bf16/' run.ini >bf16.ini
  "$LOCKSTEP" doctor --config bf16.ini >out.log
  [ $? -eq 1 ] || fail "doctor finds no problem in what train refuses"
  has_line "^problem +configuration +precision bf16 would be slower than fp32" <out.log || fail "doctor: $(grep precision out.log)"
else
  recorded converted bf16
  "$LOCKSTEP" eval converted/checkpoints/latest --precision fp32 --json >fp32.json || fail "eval --precision fp32"
fi

"$LOCKSTEP" eval converted/checkpoints/latest --precision bf16 --json >bf16.json 2>err.log || fail "eval --precision bf16: $(cat err.log)"
"$LOCKSTEP" eval converted/checkpoints/latest --precision fp32 --json >fp32.json 2>err.log || fail "eval --precision fp32: $(cat err.log)"
python3 - <<'PY' || fail "fp32 and bf16 evaluate to $(cat fp32.json bf16.json)"
import json
fp32, bf16 = (json.load(open(name))["loss"] for name in ("fp32.json", "bf16.json"))
assert fp32 != bf16 and abs(fp32 - bf16) < 2e-2 * fp32, (fp32, bf16)
PY
refused 2 "precision 'fp16' is unknown; one of fp32, bf16" ranks 1 eval converted/checkpoints/latest --precision fp16
finish
