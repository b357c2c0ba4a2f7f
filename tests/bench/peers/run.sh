#!/usr/bin/env bash
# The standard workloads beside PyTorch on this machine: 1 rank, 2 ranks, and two independent 1-rank runs side by side.
#
# run.sh [-r ROUNDS] [-s STEPS] [WORKLOAD...]        default: 3 rounds of 20 steps of gpt-cpu, resnet-cpu and mlp-wide
#
# Ours is `lockstep bench step --json`, theirs ddp.py: DistributedDataParallel over Gloo. Both use one thread a rank, are started by
# mpirun, and take turns in rounds; printed are medians over rounds, and ratios: of steps, and of the most memory a process took. Peers as in pytorch.sh. Exit code 77: there is no
# PyTorch to compare with.
set -euo pipefail
# shellcheck source=tests/bench/peers/pytorch.sh
source "$(dirname "${BASH_SOURCE[0]}")/pytorch.sh"

rounds=3 steps=20
while getopts r:s: option; do
  case $option in
    r) rounds=$OPTARG ;;
    s) steps=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
workloads=("$@")
[ ${#workloads[@]} -gt 0 ] || workloads=(gpt-cpu resnet-cpu mlp-wide)

find_pytorch

figures() { python3 -c 'import json, sys; f = json.load(sys.stdin); print(f["step_ms"], f["peak_memory_bytes"])'; }

# run WHO RANKS WORKLOAD: prints step_ms and peak_memory_bytes
run() {
  local command=("$lockstep" bench step --device cpu --json)
  [ "$1" = ours ] || command=("${python[$1]}" "$folder/ddp.py")
  "${mpirun[@]}" -n "$2" "${command[@]}" --workload "$3" --steps "$steps" 2>"$scratch/error-$BASHPID" | figures ||
    { say "$1, $2 ranks, $3: $(tail -n 3 "$scratch/error-$BASHPID")"; exit 1; }
}

# beside WHO WORKLOAD: two runs of 1 rank at the same time; prints the figures of the slower
beside() {
  run "$1" 1 "$2" >"$scratch/left" &
  run "$1" 1 "$2" >"$scratch/right"
  wait $!
  sort -g "$scratch/left" "$scratch/right" | tail -n 1
}

for round in $(seq "$rounds"); do
  for workload in "${workloads[@]}"; do
    for who in ours "${!python[@]}"; do
      say "round $round of $rounds: $workload, $who"
      one=$(run "$who" 1 "$workload")
      two=$(run "$who" 2 "$workload")
      beside=$(beside "$who" "$workload")
      echo "$workload $who $one $two $beside" >>"$scratch/times"
    done
  done
done

say_versions
python3 - "$scratch/times" "$rounds" "$steps" <<'PY'
import collections
import statistics
import sys

times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    workload, who, *figures = line.split()
    names = ("one", "one bytes", "two", "two bytes", "beside", "beside bytes")
    for what, value in zip(names, figures, strict=True):
        times[workload, who, what].append(float(value))
median = {key: statistics.median(values) for key, values in times.items()}
print(f"ms a step, one thread a rank; medians of {sys.argv[2]} rounds of {sys.argv[3]} steps. 'beside': two 1-rank runs at once")
print(f"{'workload':<12}{'who':<8}{'1 rank':>9}{'2 ranks':>9}{'beside':>9}{'2 ranks/beside':>16}{'2 ranks/1 rank':>16}{'ours is faster: 1 rank':>24}{'2 ranks':>9}")
for workload, who in dict.fromkeys((workload, who) for workload, who, _ in times):
    one, two, beside = (median[workload, who, what] for what in ("one", "two", "beside"))
    line = f"{workload:<12}{who:<8}{one:>9.1f}{two:>9.1f}{beside:>9.1f}{two / beside:>16.3f}{two / one:>16.3f}"
    if who != "ours":
        line += f"{one / median[workload, 'ours', 'one']:>23.2f}x{two / median[workload, 'ours', 'two']:>8.2f}x"
    print(line)

print(f"\nmost memory of a process, MiB\n{'workload':<12}{'who':<8}{'1 rank':>9}{'2 ranks':>9}{'ours/theirs: 1 rank':>22}{'2 ranks':>9}")
for workload, who in dict.fromkeys((workload, who) for workload, who, _ in times):
    one, two = (median[workload, who, what] for what in ("one bytes", "two bytes"))
    line = f"{workload:<12}{who:<8}{one / 2**20:>9.0f}{two / 2**20:>9.0f}"
    if who != "ours":
        line += f"{median[workload, 'ours', 'one bytes'] / one:>22.2f}{median[workload, 'ours', 'two bytes'] / two:>9.2f}"
    print(line)
PY
