#!/usr/bin/env bash
# --json prints one JSON document on standard output and nothing else there, with the documented keys, alone and on 2 ranks.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
printf '[model]\nname = mlp\nsizes = 64 16 10\n[data]\ntrain = digits.h5\neval_fraction = 0.2\n[train]\nsteps = 4\nglobal_batch = 16\nshards = 2\n[ema]\nrates = 0.9\n' >run.ini
ranks 2 train run.ini --run run >log 2>&1 || fail "training: $(tail -n 3 log)"
checkpoint=run/checkpoints/latest

keys() {  # keys "a b c" ARGUMENTS...
  local wanted=$1
  shift
  for count in 1 2; do
    ranks "$count" "$@" >out.json 2>err.log
    python3 -c '
import json, sys
document = json.load(open("out.json"))
missing = [key for key in sys.argv[1].split() if key not in document]
sys.exit(f"missing keys: {missing}" if missing else 0)' "$wanted" || fail "$* on $count ranks"
  done
}
keys "loss accuracy samples weights step" eval "$checkpoint" --json
keys "loss accuracy samples weights step" eval "$checkpoint" --data digits.h5 --weights ema/0.9 --json
keys "model precision ranks shards micro_batches set step_ms step_ms_quartiles samples_per_second exposed_comm_ms tflops peak_memory_bytes page_faults" bench step --workload gpt-cpu --steps 1 --json
# The arithmetic of a step is that of its operations.
"$LOCKSTEP" bench step --workload gpt-cpu --steps 1 --json >step.json && "$LOCKSTEP" bench step --workload gpt-cpu --steps 1 --profile --json >profile.json
python3 - <<'PY' || fail "bench step: $(cat step.json)"
import json
step, profile = (json.load(open(f"{name}.json")) for name in ("step", "profile"))
of_operations = sum(operation.get("gflops", 0) * operation["ms"] for operation in profile["operations"]) / 1e3
assert abs(step["tflops"] * step["step_ms"] / of_operations - 1) < 1e-9, (step, of_operations)
PY
keys "rows" bench allreduce --bytes 4096 262148 --json
python3 - <<'PY' || fail "bench allreduce: $(cat out.json)"
import json
rows = json.load(open("out.json"))["rows"]
assert all(row.keys() == {"bytes", "ranks", "lockstep_ms", "mpi_ms", "ratio"} for row in rows), rows
assert [(row["bytes"], row["ranks"]) for row in rows] == [(4096, 2), (262148, 2)], rows
assert all(row["ratio"] == row["mpi_ms"] / row["lockstep_ms"] > 0 for row in rows), rows
PY
ranks 2 bench overlap --workload resnet-cpu --steps 1 --json >out.json 2>err.log
python3 - <<'PY' || fail "bench overlap: $(cat out.json)"
import json
rows = json.load(open("out.json"))["rows"]
keys = {"mode", "step_ms", "compute_ms", "comm_ms", "critical_path_ms", "exposed_comm_ms"}
assert all(row.keys() == keys for row in rows), rows
assert [row["mode"] for row in rows] == ["per_parameter", "flat", "overlapped"], rows
assert all(row["critical_path_ms"] >= row["comm_ms"] > 0 and row["compute_ms"] > 0 for row in rows), rows
PY
keys "tensors step digest" inspect "$checkpoint" --json
keys "whole problems" verify "$checkpoint" --json
keys "same differences" diff "$checkpoint" "$checkpoint" --json
keys "ok ranks hosts findings" doctor --json

python3 - <<'PY' || fail "metrics.jsonl"
import json
lines = [json.loads(line) for line in open("run/metrics.jsonl")]
steps = [line for line in lines if "loss" in line]
keys = {"step", "loss", "lr", "grad_norm", "samples", "samples_per_second", "step_ms", "data_wait_ms", "exposed_comm_ms", "log_ms", "memory_mib",
        "rank_compute_ms", "time"}
assert steps and all(keys <= line.keys() for line in steps), steps
assert all(len(line["rank_compute_ms"]) == 2 and min(line["rank_compute_ms"]) > 0 and line["memory_mib"] > 1 for line in steps), steps
assert all(0 <= line["data_wait_ms"] <= line["step_ms"] for line in steps), steps
evaluations = [line for line in lines if "eval_loss" in line]
assert {"eval_loss", "eval_accuracy", "eval_ema_0.9_accuracy"} <= evaluations[-1].keys(), evaluations
PY
for verb in "" train status eval predict generate prepare inspect diff verify convert ema bench "bench allreduce" "bench step" "bench data" "bench overlap" "bench checkpoint" doctor; do
  # shellcheck disable=SC2086
  "$LOCKSTEP" $verb --help >help.txt || fail "$verb --help"
  lines=$(wc -l <help.txt) columns=$(wc -L <help.txt)
  ((lines > 3 && lines <= 24 && columns <= 80)) || fail "$verb --help has $lines lines of up to $columns columns: it must fit a screen"
done

# Completion asks the program for its verbs, options and words.
# shellcheck disable=SC2317  # called by the completion
lockstep() { "$LOCKSTEP" "$@"; }
# shellcheck source=share/completion/lockstep
source "$LOCKSTEP_SOURCE_DIR/share/completion/lockstep"
# completes WANTED WORD...: WANTED is among the completions of the last word.
completes() {
  local wanted=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _lockstep
  printf '%s\n' "${COMPREPLY[@]}" | grep -qx -e "$wanted" || fail "$* is not completed by $wanted: ${COMPREPLY[*]}"
}
completes doctor lockstep doc
completes --json lockstep verify --
completes overlap lockstep bench o
completes --bucket-mb lockstep bench overlap --b
completes cifar lockstep prepare ci
completes train.steps= lockstep train run.ini --set train.st
finish
