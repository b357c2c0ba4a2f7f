#!/usr/bin/env bash
# The plans of tests/gpu.sh without a GPU, with made-up programs: their order, what is alone and what is not, limits, the report, its
# archives, and that a second start does only what is left.
# shellcheck source=tests/support/cli.sh
source "$(dirname "$0")/../support/cli.sh"

mkdir -p bundle/tests/{support,bin,bench} bundle/{bin,jobs,libexec}
cp "$LOCKSTEP_SOURCE_DIR/tests/gpu.sh" bundle/tests/
cp "$LOCKSTEP_SOURCE_DIR"/tests/support/{run_list,plans}.py bundle/tests/support/
cp "$LOCKSTEP_SOURCE_DIR/tests/bench/kernel_list.py" bundle/tests/bench/
cp "$LOCKSTEP_SOURCE_DIR/jobs/mpi.sh" bundle/jobs/
: >bundle/libexec/libkernel_list.so
echo '[{"name": "gpu.kernel", "labels": ["gpu"], "timeout_s": 60, "command": ["true"], "environment": {}, "skip_code": 77}]' \
  >bundle/tests/list.json
export HERE=$PWD

# Each program writes what it is and when it begins and ends.
cat >traced <<'P'
#!/bin/sh
name=$1
shift
case "$*" in
  --version | 'doctor --json' | list | --query*) ;;
  *) echo "begin $name $*" >>"$HERE/trace"; trap 'echo "end $name $*" >>"$HERE/trace"' EXIT ;;
esac
if [ -n "${LOCKSTEP_KERNEL_LIST:-}" ]; then
  for steps; do :; done
  printf '{"kernels": [{"name": "load", "count": 1, "ns": 5}, {"name": "fold<float>", "count": %s, "ns": %s}], ' \
    $((3 * steps + 1)) $((6000000 * steps + 7)) >"$LOCKSTEP_KERNEL_LIST.$$"
  printf '"copies": [], "dropped": 0, "unfinished": 0}' >>"$LOCKSTEP_KERNEL_LIST.$$"
fi
case "$name $*" in
  'nvidia-smi --query'*) echo "$(cat "$HERE/card"), 580.1, 81559 MiB, 9.0, $(cat "$HERE/uuid")" ;;
  'nvidia-smi dmon'*) echo 'a line a second'; trap - EXIT; exec sleep 1000 ;;
  'lockstep bench'*)
    [ "${*#*--steps*--steps}" = "$*" ] || exit 2 # as bench does
    case "$*" in # once
      *gpt-gpu*)
        if [ -e "$HERE/hangs" ]; then
          trap 'rm -f "$HERE/hangs"; kill $!; exit 1' TERM
          sleep 1000 &
          wait
        fi ;;
    esac
    case "$*" in
      *unet-gpu*) step_ms=7 ;;
      *resnet*) step_ms=$(($(grep -c 'begin lockstep.*resnet' "$HERE/trace") + 2)) ;; # 3 and 4
      *) step_ms=4 ;;
    esac
    quartiles=
    case "$*" in *vocab=50257*) quartiles=', "step_ms_quartiles": [3.9, 4.1]' ;; esac
    echo "{\"step_ms\": $step_ms$quartiles}" ;;
  'gpu.py '*--compile-only*)
    : >"$HERE/compiles"
    until [ -e "$HERE/checks" ]; do sleep 0.05; done # beside it, and longer than all that it is beside
    case "$*" in *resnet*) until [ -e "$HERE/races" ]; do sleep 0.05; done; sleep 1 ;; esac
    mkdir -p "$HERE/bundle/work/compiled/triton"
    echo compiled >"$HERE/bundle/work/compiled/triton/$$"
    echo '{}' >"$HERE/bundle/work/compiled/choice.json"
    mkdir -p "$HERE/bundle/work/compiled/triton/large"
    echo group >"$HERE/bundle/work/compiled/triton/large/group.json"
    truncate -s 16M "$HERE/bundle/work/compiled/triton/large/kernel.cubin"
    echo '{}' ;;
  'compute-sanitizer --tool racecheck'*norms*) : >"$HERE/races" ;;
  gpu.py*resnet50*) exit 77 ;;
  'gpu.py '*unet-gpu*quick*)
    [ -e "$HERE/short" ] || { : >"$HERE/short"; echo 'no time' >&2; exit 75; } # once
    echo '{"step_ms": 5, "mode": "default", "all_tried": false}' ;;
  'gpu.py '*quick*)
    (sleep 2; : >"$HERE/left") & # as compilers
    echo '{"step_ms": 5, "mode": "default", "all_tried": false}' ;;
  'gpu.py '*unet-gpu*) exit 75 ;;
  gpu.py*resnet*) echo '{"step_ms": 4, "mode": "max-autotune", "all_tried": true}' ;;
  gpu.py*) echo '{"step_ms": 5, "mode": "default", "all_tried": true}' ;;
  ncu*normalise*) echo '==PROF== nothing' ;;
  ncu*copy_rows*) echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1 ;;
  ncu*) printf '%s\n' '==PROF== profiled' '{"step_ms": 4}' '"ID","gpu__time_duration.sum"' '"","us"' '"0","4.5"' ;;
  'checklist.sh list') printf '%s\n' first second ;;
  'checklist.sh first'*) : >"$HERE/checks"; until [ -e "$HERE/compiles" ]; do sleep 0.05; done ;;
  'checklist.sh loop'* | 'checklist.sh ranks'*) echo 'loop: step_ms: 4.5'; echo '{"step_ms": 4.5}' ;;
esac
P
chmod +x traced
for program in lockstep nvidia-smi compute-sanitizer ncu; do
  printf '#!/bin/sh\nexec "%s/traced" %s "$@"\n' "$PWD" "$program" >bundle/bin/$program
  chmod +x bundle/bin/$program
done
# shellcheck disable=SC2016  # expanded by the script
echo 'exec "$HERE/traced" checklist.sh "$@"' >bundle/tests/support/checklist.sh
# shellcheck disable=SC2016  # expanded by the script
printf '#!/bin/sh\ncase "$1" in */peers/gpu.py) shift; exec "$HERE/traced" gpu.py "$@" ;; esac
case "$*" in *importlib*) cat "$HERE/torch" ;; *) exec "%s" "$@" ;; esac\n' \
  "$(python3 -c 'import sys; print(sys.executable)')" >bundle/bin/python3
chmod +x bundle/bin/python3

gpu_sh() {
  : >trace
  bash bundle/tests/gpu.sh "$@" >log 2>&1
  echo $?
}
# holds WHAT CODE: Python about `report`, `entries` (by name) and `trace` (lines).
holds() {
  python3 - "$1" "$2" <<'P' || fail "$1: $(cat log)"
import json, sys
what, code = sys.argv[1:]
report = json.load(open(f"out/{what.split(',')[0]}.json"))
entries = {entry["name"]: entry for stage in report["stages"] for entry in stage["entries"]}
trace = open("trace").read().splitlines()
exec(code)
P
}

# All of it, in this order.
echo 'NVIDIA H100' >card
echo GPU-1 >uuid
echo 2.11 >torch
[ "$(gpu_sh --plan figures --report out/figures.json)" -eq 0 ] || fail "figures: $(cat log)"
holds figures '
order = [stage["name"] for stage in report["stages"] if stage["yields"]]
assert order == "machine compile checklist sanitizer gpt resnet unet variants kernels training ranks peers".split(), order
assert {name for name, entry in entries.items() if entry["result"] != "passed"} == {"resnet50.pytorch.1", "unet.pytorch.2"}, entries
assert len(entries) == 48 and all({"name", "result", "seconds"} <= set(entry) for entry in entries.values()), len(entries)
assert (report["passed"], report["failed"], report["skipped"]) == (40, 0, 2), report
# Alone, after all that compiles, checks and looks for races.
def measured(line):
    return any(word in line for word in ("bench", "gpu.py", "loop", "ranks")) and "--compile" not in line and "--profile" not in line
begin = next(at for at, line in enumerate(trace) if measured(line))
assert not any("--compile-only" in line or "compute-sanitizer" in line or "sh first" in line for line in trace[begin:]), trace
rest = trace[begin:]
assert all(first == second.replace("end", "begin", 1) for first, second in zip(rest[::2], rest[1::2], strict=True)), rest
assert any("gpu.py" in line and "--limit 40 " in line for line in rest), rest  # 15 s less than it is allowed
# A peer without time is asked again when the others have what they need; max-autotune and what is no ratio come last.
peers = [line.split()[3].replace("-gpu", "") + " quick" * ("quick" in line) for line in rest if "begin gpu.py" in line]
assert peers == ["gpt quick", "resnet quick", "unet quick", "unet quick", "gpt", "unet64 quick", "resnet50 quick", "unet", "resnet",
                 "gpt"], peers
assert any("--shards 8" in line for line in rest) and any("model.vocab=50257" in line for line in rest), rest
# Figures.
assert report["pytorch_to_lockstep"] == {"gpt": 1.25, "resnet": round(4 / 3.5, 4), "unet": 0.7143, "unet64": 1.25}, report
assert report["pytorch_not_all_tried"] == ["unet", "unet64"], report
assert entries["gpt.train"]["figures"] == {"step_ms": 4.5} and entries["gpt.lockstep.1"]["command"].startswith("lockstep bench"), entries
kernels = entries["gpt.kernels"]["figures"]
assert (kernels["launches"], kernels["kernel_ms"]) == (3, 6.0) and [row["name"] for row in kernels["kernels"]] == ["fold<float>"], kernels
'
[ "$(find out -type f | wc -l)" -eq 3 ] || fail "files: $(ls -R out)"
for file in figures/dmon.txt figures/report.json figures/kernels.gpt.kernels.log compiled/choice.json; do
  tar -tzf out/figures.tar.gz | has_line "^$file\$" || fail "no $file in the archive: $(tar -tzf out/figures.tar.gz)"
done
tar -tzf out/figures-compiled.tar.gz | has_line '^compiled/triton/' || fail "what was compiled"
! tar -tzf out/figures-compiled.tar.gz | has_line 'large/group.json' || fail "a part of a kernel's files"
grep -q '^unet64: .* ours, .*not all of its modes' log || fail "a ratio with less than all modes: $(cat log)"
grep -q '^gpt: .*not all' log && fail "a ratio with all modes: $(cat log)"

# A second start has nothing to do but to ask again what could not be asked; the report has all of it.
[ "$(gpu_sh --plan figures --report out/figures.json)" -eq 0 ] || fail "nothing left: $(cat log)"
holds "figures, nothing left" 'assert report["passed"] == 40 == sum(entry.get("earlier", False) for entry in entries.values()) - 6, report'
grep -v 'resnet50\|unet-gpu\|unet64\|dmon' trace && fail "done again: $(cat trace)"

# What the figures leave open: those that differ by more than 2 %, in one start or between two, again; then tests.
[ "$(gpu_sh --plan explain --report out/explain.json)" -eq 1 ] || fail "explain: $(cat log)"
holds explain '
assert report["limit_s"] == 120 and report["failed"] == 1, report
assert [name for name in entries if ".again" in name] == [
    f"{name}.again.{number}" for name in ("resnet.lockstep.1", "gpt.vocabulary_50257") for number in (1, 2)], entries
assert [stage["name"] for stage in report["stages"]] == ["pytorch", "counters", "again", "kernels", "tests"], report
assert entries["gpu.kernel"]["result"] == "passed" and "gpt.graph_kernels" in entries, entries
assert any("gpu.py --one" in line and line.endswith("--steps 42") for line in trace), trace
assert entries["gpt.pytorch_kernels"]["figures"]["kernel_ms"] == 6, entries
# Counters have rows, or it is said why not.
assert entries["ncu.layer_gradients"]["figures"]["rows"][1] == {"ID": "0", "gpu__time_duration.sum": "4.5"}, entries
assert entries["ncu.normalise_group"]["reason"] == "it printed no row", entries
assert (entries["ncu.copy_rows"]["result"], entries["ncu.copy_rows"]["reason"]) == ("skipped", "ERR_NVGPUCTRPERM"), entries
'

# On another card, if only by its number, nothing of that holds. What hangs costs its stage, not the later ones, and no failure; and it is
# tried again at the end. Peers are not begun where they would be cut.
echo GPU-2 >uuid
: >hangs
limit_s=$((30 * ${LOCKSTEP_TEST_TIME_FACTOR:-1}))
[ "$(gpu_sh --plan figures --limit-s "$limit_s" --report out/figures.json)" -eq 0 ] || fail "cut off: $(cat log)"
grep -q 'of another GPU, version or size (gpus)' log || fail "another card: $(cat log)"
grep -q 'skipped.*  gpt.*cut off after' log || fail "nothing was cut off: $(cat log)"
holds "figures, cut off" '
cut = [entry for entry in entries.values() if "--limit-s" in entry.get("reason", "")]
assert all(entry["result"] == "skipped" for entry in cut), entries
assert any(entry["result"] == "passed" for stage in report["stages"][5:] for entry in stage["entries"]), entries
assert not any(entry.get("earlier") for entry in entries.values()), report
'
tar -tzf out/figures.tar.gz | has_line '^figures/report.json$' || fail "the archive: $(tar -tzf out/figures.tar.gz)"

# With other files neither. SIGTERM ends it with all that it started, and leaves the report and its archive.
echo '# other code' >>bundle/tests/support/plans.py
: >hangs
: >trace
rm out/figures.tar.gz
bash bundle/tests/gpu.sh --plan figures --report out/figures.json >log 2>&1 &
script=$!
until_says 'begin lockstep bench.*gpt-gpu' trace "$script"
kill -TERM "$script"
wait "$script"
[ $? -eq 130 ] || fail "SIGTERM: $(cat log)"
grep -q 'of another GPU, version or size (code)' log || fail "other code: $(cat log)"
grep -q 'end lockstep bench' trace || fail "SIGTERM leaves what was started: $(cat trace)"
holds "figures, ended" 'assert report["failed"] == 0 and any(entry.get("reason") == "ended with the script" for entry in entries.values()), report'
tar -tzf out/figures.tar.gz | has_line '^figures/report.json$' || fail "the archive: $(tar -tzf out/figures.tar.gz)"

[ ! -e left ] || fail "what a command leaves runs on"

# A failure is the exit code; but what cannot be asked of this card is none.
rm -f hangs
# shellcheck disable=SC2016  # expanded by the script
printf '#!/bin/sh\ncase "$*" in *images*) echo "Error: Device not supported."; exit 1 ;; *) exit 9 ;; esac\n' >bundle/bin/compute-sanitizer
rm bundle/work/figures/report.json # as if it were the first start
[ "$(gpu_sh --plan figures --report out/figures.json)" -eq 1 ] || fail "a race: $(cat log)"
holds "figures, a race" '
assert entries["racecheck.norms"]["reason"] == "exit code 9" and entries["gpt.lockstep.1"]["result"] == "passed", entries
assert (entries["memcheck.images"]["result"], entries["memcheck.images"]["reason"]) == ("skipped", "Device not supported."), entries
'

# What would be lost is refused before anything starts: a GPU's results by a start that sees none, and files that are no report.
mv bundle/bin/nvidia-smi kept
printf '#!/bin/sh\necho "Failed to initialize NVML"; exit 9\n' >bundle/bin/nvidia-smi
chmod +x bundle/bin/nvidia-smi
[ "$(gpu_sh --plan figures --report out/figures.json)" -eq 2 ] || fail "without a GPU: $(cat log)"
grep -q 'has results of one, which stay' log || fail "without a GPU: $(cat log)"
holds "figures, kept" 'assert report["gpus"] and entries["gpt.lockstep.1"]["result"] == "passed", report'
mv kept bundle/bin/nvidia-smi
echo notes >out/notes.json
ln -s figures.json out/link.json
: >out/other.tar.gz
for report in notes link other; do
  [ "$(gpu_sh --plan figures --report "out/$report.json")" -eq 2 ] || fail "--report $report: $(cat log)"
  [ ! -s trace ] || fail "--report $report: it began"
done
{ [ "$(cat out/notes.json)" = notes ] && [ -L out/link.json ] && [ ! -s out/other.tar.gz ]; } || fail "something was written over"
finish
