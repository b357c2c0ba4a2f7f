#!/usr/bin/env bash
# tests/gpu.sh and a list of made-up tests: each kind of end is reported as what it is, and one failure is the script's exit code.
# shellcheck source=tests/support/cli.sh
source "$(dirname "$0")/../support/cli.sh"

mkdir -p bundle/tests/support bundle/{bin,jobs} empty
cp "$LOCKSTEP_SOURCE_DIR/tests/gpu.sh" bundle/tests/
cp "$LOCKSTEP_SOURCE_DIR"/tests/support/{run_list,plans}.py bundle/tests/support/
cp "$LOCKSTEP_SOURCE_DIR/jobs/mpi.sh" bundle/jobs/
# entry NAME LABELS TIMEOUT_S COMMAND, of the list
entry() {
  printf '{"name": "%s", "labels": [%s], "timeout_s": %s, "command": ["sh", "-c", "%s"], ' "$@"
  printf '"environment": {"WHERE": "{bundle}"}, "skip_code": 77}'
}
list() {
  local IFS=,
  echo "[$*]" >bundle/tests/list.json
}
# says NAME RESULT [REASON]: of the report
says() {
  python3 -c '
import json, sys
name, result, reason = (sys.argv[1:] + [""])[:3]
report = json.load(open("report.json"))
test = next(test for stage in report["stages"] for test in stage["entries"] if test["name"] == name)
sys.exit(0 if test["result"] == result and reason in test.get("reason", "") else "%s: %s" % (name, test))' "$@" || fail "$*"
}
gpu_sh() {
  bash bundle/tests/gpu.sh "$@" >log 2>&1
  echo $?
}

# shellcheck disable=SC2016  # expanded by the test
list "$(entry good '' 60 'test -d $WHERE/tests')" "$(entry bad '' 60 'echo why; exit 3')" \
  "$(entry elsewhere '' 60 'echo SKIPPED: no such thing; exit 77')" "$(entry endless '' 0.2 'sleep 1000')" "$(entry other '' 60 'exit 1')"
[ "$(gpu_sh --match '^(good|bad|elsewhere|endless)$')" -eq 1 ] || fail "a failed test is exit code 1: $(cat log)"
says good passed
says bad failed "exit code 3"
says elsewhere skipped "no such thing"
says endless failed "not done after 0.2 s"
grep -q '^    why$' log || fail "what a failed test wrote is not shown: $(cat log)"
grep -q '"name": "other"' report.json && fail "a test that was not asked for ran"

[ "$(gpu_sh --match good --limit-s 0.001)" -eq 0 ] || fail "no time: $(cat log)"
says good skipped "not reached"
list "$(entry endless '' 60 'exec sleep 1000')"
[ "$(gpu_sh --match endless --limit-s 2)" -eq 0 ] || fail "not enough time: $(cat log)"
says endless skipped "--limit-s was reached"

# Without a GPU: an nvidia-smi that finds none.
printf '#!/bin/sh\necho No devices were found\nexit 6\n' >bundle/bin/nvidia-smi
chmod +x bundle/bin/nvidia-smi
list "$(entry gpu.kernel '"gpu"' 60 'exit 3')" "$(entry comm.sum.np2 '' 60 'exit 0')" "$(entry comm.sum.np3 '' 60 'exit 3')"
[ "$(gpu_sh)" -eq 0 ] || fail "without a GPU: $(cat log)"
says gpu.kernel skipped "No devices were found"
[ "$(gpu_sh --cpu)" -eq 0 ] || fail "--cpu: $(cat log)"
says gpu.kernel skipped "No devices were found"
says comm.sum.np2 passed

# With one.
printf '#!/bin/sh\necho "NVIDIA H200, 580.1, 143771 MiB, 9.0"\n' >bundle/bin/nvidia-smi
[ "$(gpu_sh)" -eq 1 ] || fail "with a GPU: $(cat log)"
says gpu.kernel failed "exit code 3"
python3 -c '
import json, sys
gpus = json.load(open("report.json"))["gpus"]
sys.exit(0 if gpus[0]["name"] == "NVIDIA H200" and gpus[0]["driver_version"] == "580.1" else str(gpus))' || fail "the GPU in the report"

# The checklist comes first. One entry of it that fails, or hangs and does not listen, does not keep the others, the tests and the
# measurements from being reported.
cat >bundle/tests/support/checklist.sh <<'CHECKLIST'
case "$1" in
  list) printf '%s\n' fails hangs holds elsewhere ;;
  fails) echo "a and b differ"; exit 1 ;;
  hangs) trap '' TERM; while :; do sleep 1; done ;;
  holds) echo "step_ms: 7" ;;
  elsewhere) echo "not here"; exit 77 ;;
esac
CHECKLIST
sed -i 's/^CHECK_TIMEOUT_S = .*/CHECK_TIMEOUT_S = 2/' bundle/tests/support/plans.py
list "$(entry gpu.kernel '"gpu"' 60 'exit 0')"
[ "$(gpu_sh --no-benchmarks)" -eq 1 ] || fail "a checklist with a failure: $(cat log)"
says checklist.fails failed "exit code 1"
says checklist.hangs failed "not done after 2.0 s"
says checklist.holds passed
says checklist.elsewhere skipped "not here"
says gpu.kernel passed
for text in 'a and b differ' 'step_ms: 7'; do grep -q "^    $text\$" log || fail "the checklist's '$text' is not shown: $(cat log)"; done
awk '/checklist.holds/ { first = NR } /gpu.kernel/ { if (first && NR > first) found = 1 } END { exit !found }' log ||
  fail "the tests do not come after the checklist: $(cat log)"
[ "$(gpu_sh --no-benchmarks --checklist no)" -eq 0 ] || fail "--checklist no: $(cat log)"

rm bundle/tests/support/checklist.sh

# Measurements, each with what it printed or why it could not; none of them fails the script.
# shellcheck disable=SC2016  # expanded by the program
printf '#!/bin/sh\ncase "$*" in *profile*) exit 5;; *resnet*) echo no JSON;; *) echo "{\\"step_ms\\": 5.5}";; esac\n' >bundle/bin/lockstep
chmod +x bundle/bin/lockstep
list "$(entry gpu.kernel '"gpu"' 60 'exit 0')"
[ "$(gpu_sh)" -eq 0 ] || fail "measurements: $(cat log)"
python3 - <<'PYTHON' || fail "measurements: $(cat report.json)"
import json
measured = {entry["name"]: entry for entry in json.load(open("report.json"))["stages"][-1]["entries"]}
assert measured["gpt-gpu.lockstep.1"]["figures"] == {"step_ms": 5.5} and measured["gpt-gpu.lockstep.1"]["command"].startswith("lockstep bench")
assert measured["resnet-gpu.lockstep.1"]["reason"] == "it printed no JSON" and measured["gpt-gpu.profile"]["reason"] == "exit code 5"
PYTHON
[ "$(gpu_sh --no-benchmarks)" -eq 0 ] || fail "--no-benchmarks: $(cat log)"
grep -q '"name": "benchmarks"' report.json && fail "--no-benchmarks measured: $(cat report.json)"

: >file
[ "$(gpu_sh --report file/report.json)" -eq 2 ] || fail "a report that cannot be written: $(cat log)"
rm bundle/tests/list.json
[ "$(gpu_sh)" -eq 2 ] || fail "no list: $(cat log)"
grep -q 'runs in a bundle' log || fail "no list: $(cat log)"
finish
