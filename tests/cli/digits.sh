#!/usr/bin/env bash
# jobs/digits.ini on 2 ranks: held-out accuracy of the EMA weights is at least 0.985.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
ranks 2 train "$LOCKSTEP_SOURCE_DIR/jobs/digits.ini" --run run --set data.train=digits.h5 >log 2>&1 ||
  fail "training: $(tail -n 3 log)"
for rate in 0.99 0.999; do
  "$LOCKSTEP" eval run/checkpoints/latest --weights "ema/$rate" --json >eval.json || fail "eval"
  python3 -c '
import json, sys
found = json.load(open("eval.json"))
print(found)
sys.exit(0 if found["samples"] == 359 and found["accuracy"] >= 0.985 else 1)' || fail "ema/$rate: accuracy below 0.985"
done
finish
