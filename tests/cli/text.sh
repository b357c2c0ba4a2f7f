#!/usr/bin/env bash
# A language model on text: the validation loss falls, and generate writes, the same text for the same seed.
source "$(dirname "$0")/../support/cli.sh"

words text.h5
ranks 2 train "$LOCKSTEP_SOURCE_DIR/jobs/gpt-text.ini" --run run --set data.train=text.h5 --set model.channels=64 \
  --set model.layers=2 --set train.steps=60 --set train.eval_every=20 --set optimizer.warmup_steps=10 \
  --set model.context=64 --set optimizer.lr=1e-3 --set log.every=20 >log 2>&1 || fail "training: $(tail -n 3 log)"
grep eval log
python3 - <<'PY' || fail "the validation loss does not fall"
import json
losses = [line["eval_loss"] for line in map(json.loads, open("run/metrics.jsonl")) if "eval_loss" in line]
assert len(losses) == 3 and losses[0] > losses[1] > losses[2], losses
PY
write() { "$LOCKSTEP" generate run/checkpoints/latest --prompt "There was " --tokens 80 --seed "$1"; }
if ! { write 1 >first && write 1 >again && write 2 >other; }; then fail "generate"; fi
cmp -s first again || fail "the same seed wrote another text"
cmp -s first other && fail "another seed wrote the same text"
[ "$(wc -c <first)" -ge 90 ] || fail "too short a text"
finish
