#!/usr/bin/env bash
# A run that fails logs its last steps, the one that ends it among them, and writes its page, which says that it failed and why.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
/usr/bin/python3 - <<'PY' || fail "no data with a NaN"
import h5py, numpy as np
with h5py.File("digits.h5") as data, h5py.File("nan.h5", "w") as bad:
    x = data["x"][:].astype("f4") / 16
    x[700] = np.nan
    bad["x"], bad["y"] = x, data["y"][:]
PY
{
  small_mlp 'steps = 120' 'global_batch = 16' 'shards = 2'
  printf '%s\n' '[log]' 'every = 1000'
} >run.ini

for count in 1 2; do
  run=nan-$count
  ranks "$count" train run.ini --run "$run" --set data.train=nan.h5 >log 2>&1
  code=$?
  [ "$code" -eq 4 ] || fail "$run: exit $code, expected 4: $(tail -n 3 log)"
  python3 - "$run" <<'PY' || fail "$run: $(cat "$run/metrics.jsonl" log)"
import json, os, re, subprocess, sys
run = sys.argv[1]
lines = [line for line in map(json.loads, open(run + "/metrics.jsonl")) if "loss" in line]
ending = json.load(open(run + "/exit.json"))
failed = int(re.search(r"step (\d+): the loss is", ending["why"]).group(1))
assert failed > 3, "the test shows little"
assert [line["step"] for line in lines] == list(range(1, failed + 1)), lines
assert all(isinstance(line["loss"], float) for line in lines[:-1]) and lines[-1]["loss"] is None, lines
page = open(run + "/report.html").read()
assert "failed, exit code 4" in page and ending["why"].split(";")[0] in page, "the page does not say why"
assert "the loss is not finite" in page, "the step is not among the events"
status = subprocess.run([os.environ["LOCKSTEP"], "status", run, "--json"], stdout=subprocess.PIPE, text=True).stdout
assert json.loads(status)[0]["step"] == failed - 1, status
PY
done
cmp <(grep -o '"loss":[^,}]*' nan-1/metrics.jsonl) <(grep -o '"loss":[^,}]*' nan-2/metrics.jsonl) || fail "other losses on two ranks"
"$LOCKSTEP" train run.ini --run no-page --set data.train=nan.h5 --set report.write=false >log 2>&1
[ ! -e no-page/report.html ] || fail "report.write = false wrote a page"

# An end without words of its own: what the job script has recorded.
"$LOCKSTEP" train run.ini --run killed --set train.steps=5 >log 2>&1 || fail "training: $(tail -n 3 log)"
printf '{"exit_code":137,"step":null,"time":"2026-01-01T00:00:00Z","why":"the launcher ended with exit code 137"}\n' >killed/exit.json
"$LOCKSTEP" report killed >/dev/null || fail "report"
grep -q 'failed, exit code 137' killed/report.html || fail "the page of a killed run looks healthy"
grep -q 'the launcher ended with exit code 137' killed/report.html || fail "the page of a killed run does not say why"
"$LOCKSTEP" report killed nan-1 --out both.html >/dev/null || fail "two runs"
[ "$(grep -o 'failed, exit code' both.html | wc -l)" -ge 2 ] || fail "the table does not say which runs failed"

# A later start that ends in order takes it back; one that is refused changes nothing.
"$LOCKSTEP" train run.ini --run killed --set train.steps=6 >log 2>&1 || fail "training: $(tail -n 3 log)"
! grep -q 'failed, exit' killed/report.html || fail "a run that is done has failed"
grep -q 'all steps done' killed/report.html || fail "a run that is done is not"
"$LOCKSTEP" train run.ini --run killed --set train.seed=7 >log 2>&1 && fail "another seed"
! grep -q 'failed, exit' killed/report.html || fail "a refused start has failed the run"
finish
