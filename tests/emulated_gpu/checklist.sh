#!/usr/bin/env bash
# The plan of figures of tests/gpu.sh on an emulated GPU, with tiny models: its checklist holds there, its commands are understood, and a
# GPU that gives other bits the second time is found.
# LOCKSTEP is lockstep_on_emulated_gpu, EMULATED_GPU_TEST the program of the GPU tests with it.
# shellcheck source=tests/support/cli.sh
source "$(dirname "$0")/../support/cli.sh"

mkdir -p bundle/tests/{support,bin,bench} bundle/bin bundle/share
cp "$LOCKSTEP_SOURCE_DIR/tests/gpu.sh" bundle/tests/
cp "$LOCKSTEP_SOURCE_DIR"/tests/support/{run_list.py,plans.py,checklist.sh} bundle/tests/support/
cp -r "$LOCKSTEP_SOURCE_DIR/share/data" bundle/share/
cp -r "$LOCKSTEP_SOURCE_DIR/jobs" bundle/
cp -r "$LOCKSTEP_SOURCE_DIR"/tests/bench/{peers,kernel_list.py} bundle/tests/bench/
cp "$LOCKSTEP_SOURCE_DIR/README.md" bundle/
echo '[]' >bundle/tests/list.json
printf '#!/bin/sh\necho "Emulated GPU, 580.1, 1 MiB, 9.0"\n' >bundle/bin/nvidia-smi
chmod +x bundle/bin/nvidia-smi
ln -s "$LOCKSTEP" bundle/bin/lockstep
export LOCKSTEP LOCKSTEP_GPU_TEST=$EMULATED_GPU_TEST

# Not in the time of a GPU: entries have the time that they need here. Peers, counters and lists of kernels need a GPU and are not here.
sed -i -e 's/^CHECK_TIMEOUT_S = .*/CHECK_TIMEOUT_S = 200/' -e 's/limit_s=60)/limit_s=200)/' bundle/tests/support/plans.py
bash bundle/tests/gpu.sh --plan figures --checklist small --jobs 2 --limit-s 2000 >log 2>&1 || fail "the plan: $(cat log)"
python3 - <<'P' || fail "the report: $(cat report.json)"
import json
report = json.load(open("report.json"))
stages = {stage["name"]: stage["entries"] for stage in report["stages"]}
checks = stages["checklist"]
assert len(checks) >= 10 and all(entry["result"] == "passed" for entry in checks), checks
two_runs = next(entry for entry in checks if entry["name"] == "checklist.two_runs")
assert any("loss:" in line and "step_ms:" in line for line in two_runs["output"]), two_runs
measured = [entry for name in ("machine", "gpt", "resnet", "unet", "variants", "training", "ranks") for entry in stages[name]
            if "peers" not in entry.get("command", "")]
assert len(measured) == 14 and all(entry["result"] == "passed" for entry in measured), measured
assert all(entry["figures"]["step_ms"] > 0 for entry in measured if entry["name"] != "nvidia_smi"), measured
P

# What differs is found, by name: a second run that begins from another seed.
cat >other <<'P'
#!/bin/sh
case "$*" in *"--run second"*) exec "$REAL" "$@" --set train.seed=2 ;; *) exec "$REAL" "$@" ;; esac
P
chmod +x other
export REAL=$LOCKSTEP
LOCKSTEP=$PWD/other bash bundle/tests/support/checklist.sh two_runs small >log 2>&1 && fail "two runs that differ pass: $(cat log)"
grep -q '^first and second differ: ' log || fail "two runs that differ: $(cat log)"
finish
