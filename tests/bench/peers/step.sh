#!/usr/bin/env bash
# A step on one thread beside PyTorch's, eager and compiled, in float32 and bf16: samples/s in alternating rounds.
#
# step.sh [-r ROUNDS] [-s STEPS] [-p "fp32 bf16"] [WORKLOAD...]        default: 5 rounds of 10 steps of gpt-cpu and resnet-cpu in fp32
#
# Ours is `lockstep bench step --json`, theirs ddp.py with 1 rank; peers as in pytorch.sh. What a program refuses is left out, and the
# script says so (bf16 where the processor has none). Exit code 77: there is no PyTorch.
set -euo pipefail
# shellcheck source=tests/bench/peers/pytorch.sh
source "$(dirname "${BASH_SOURCE[0]}")/pytorch.sh"

rounds=5 steps=10 precisions=fp32
while getopts r:s:p: option; do
  case $option in
    r) rounds=$OPTARG ;;
    s) steps=$OPTARG ;;
    p) precisions=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
workloads=("$@")
[ ${#workloads[@]} -gt 0 ] || workloads=(gpt-cpu resnet-cpu)
find_pytorch

# measure WHO WORKLOAD PRECISION COMMAND...
measure() {
  local who=$1 workload=$2 precision=$3
  shift 3
  if "$@" --workload "$workload" --steps "$steps" --precision "$precision" >"$scratch/figures" 2>"$scratch/error"; then
    echo "$who $round $(tr -d '\n' <"$scratch/figures")" >>"$scratch/times"
  else
    say "$who, $workload, $precision: left out: $(tail -n 1 "$scratch/error")"
  fi
}

for round in $(seq "$rounds"); do
  for workload in "${workloads[@]}"; do
    for precision in $precisions; do
      say "round $round of $rounds: $workload, $precision"
      measure ours "$workload" "$precision" "$lockstep" bench step --device cpu --json
      for who in "${!python[@]}"; do
        measure "$who" "$workload" "$precision" "${python[$who]}" "$folder/ddp.py"
        [[ $(version_of "${python[$who]}") = 1.* ]] || measure "$who-compiled" "$workload" "$precision" "${python[$who]}" "$folder/ddp.py" --compile
      done
    done
  done
done

say_versions
python3 - "$scratch/times" "$rounds" "$steps" <<'PY'
import collections
import json
import statistics
import sys

times = collections.defaultdict(dict)  # (workload, precision, who): {round: ms}
for line in open(sys.argv[1]):
    who, number, text = line.split(" ", 2)
    figures = json.loads(text)
    times[figures["model"], figures["precision"], who][number] = figures["step_ms"]
print(f"ms a step on one thread; medians of {sys.argv[2]} rounds of {sys.argv[3]} steps; ratio: median over rounds of theirs / ours")
for (workload, precision, who), theirs in times.items():
    ours = times.get((workload, precision, "ours"), {})
    ratios = [ms / ours[number] for number, ms in theirs.items() if number in ours]
    line = f"{workload:<12}{precision:<6}{who:<18}{statistics.median(theirs.values()):>9.1f}"
    print(line + (f"{statistics.median(ratios):>8.2f}x" if ratios and who != "ours" else ""))
PY
