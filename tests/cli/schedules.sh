#!/usr/bin/env bash
# The learning rate of every step in metrics.jsonl, against the formula in Python; also of a run that goes on with another schedule. What
# each schedule is: tests/optim/schedule.cpp.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'global_batch = 24' 'shards = 1' 'steps = 40' '[log]' 'every = 1' '[optimizer]' 'lr = 0.003' 'warmup_steps = 5' >run.ini

# rates NAME FORMULA [SECTION.KEY=VALUE...]: the run's rates are those of the formula of s, the step (from 0).
rates() {
  local name=$1 formula=$2
  shift 2
  ranks 1 train run.ini --run "$name" "${@/#/--set=}" >log 2>&1 || { fail "$name: $(tail -n 2 log)"; return; }
  /usr/bin/python3 - "$name" "$formula" <<'PY' || fail "$name: other rates"
import json, math, sys
steps, warmup, lr, low = 40, 5, 0.003, 0.0004
lines = [line for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "lr" in line]
assert [line["step"] for line in lines] == list(range(1, steps + 1)), lines
for s, line in enumerate(lines):
    wanted = lr * (s + 1) / warmup if s < warmup else eval(sys.argv[2])
    assert math.isclose(line["lr"], wanted, rel_tol=1e-12), (s, line["lr"], wanted)
PY
}

low=optimizer.min_lr=0.0004
rates wsd 'low + (lr - low) * min(1, (steps - s) / 12)' optimizer.schedule=wsd optimizer.decay_steps=12 $low

# A run that only warmed up and stayed is brought to its end from any step on.
ranks 1 train run.ini --run changed --set train.steps=25 >log 2>&1 || fail "a first part: $(tail -n 2 log)"
rates changed 'lr if s < 25 else low + (lr - low) * (steps - s) / 15' optimizer.schedule=wsd optimizer.decay_steps=15 $low

# No run is begun whose decay would have begun before it.
for length in train.steps=11 train.epochs=0.14; do
  refused 2 'optimizer.decay_steps = 12: the run has only 11 steps' \
    ranks 1 train run.ini --run none --set optimizer.schedule=wsd --set optimizer.decay_steps=12 --set $length
done
finish
