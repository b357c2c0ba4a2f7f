#!/usr/bin/env bash
# The standard workloads beside PyTorch on this machine: 1 rank, 2 ranks, and two independent 1-rank runs side by side.
#
# run.sh [-r ROUNDS] [-s STEPS] [WORKLOAD...]        default: 3 rounds of 20 steps of gpt-cpu, resnet-cpu and mlp-wide
#
# Ours is `lockstep bench step --json`, theirs ddp.py: DistributedDataParallel over Gloo. Both use one thread a rank, are started by
# mpirun, and take turns in rounds; printed are medians over rounds, and ratios. The peers:
#   newest   PyTorch from PyPI, installed into build/peers on first use (about 5 GB: PyPI has the CUDA build only, which runs on
#            CPUs as well; LOCKSTEP_PEER_VENV names another virtual environment, LOCKSTEP_PEER_INSTALL=no forbids installing)
#   debian   /usr/bin/python3 with python3-torch, unless it would compute with the reference BLAS
# LOCKSTEP names the program (default: build/release/bin/lockstep). Exit code 77: there is no PyTorch to compare with.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$folder/../../.." && pwd)
lockstep=${LOCKSTEP:-$repository/build/release/bin/lockstep}
venv=${LOCKSTEP_PEER_VENV:-$repository/build/peers}

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

say() { echo "run.sh: $*" >&2; }
[ -x "$lockstep" ] || { say "no program at $lockstep: build it, or set LOCKSTEP"; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
mpirun=(mpirun --oversubscribe --bind-to none)

version_of() { "$1" "$folder/ddp.py" --version 2>/dev/null; }

install_newest() {
  [ -z "$(version_of "$venv/bin/python")" ] || return 0
  [ "${LOCKSTEP_PEER_INSTALL:-yes}" = yes ] || return 0
  local free_gb
  free_gb=$(($(df --output=avail -k "$repository" | tail -n 1) / 1000000))
  [ "$free_gb" -ge 15 ] || { say "newest: not installed, it takes 15 GB of disk on the way and $free_gb are free"; return 0; }
  say "newest: installing PyTorch from PyPI into $venv"
  { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --no-cache-dir torch numpy h5py; } >"$scratch/pip.log" 2>&1 ||
    say "newest: not installed: $(tail -n 1 "$scratch/pip.log")"
}

# Debian's PyTorch calls whichever libblas.so.3 is installed; with the reference one it is ten times slower than it need be.
slow_blas() {
  /usr/bin/python3 -c 'import torch, re
for line in open("/proc/self/maps"):
    if re.search("/blas/libblas.so", line): print(line.split()[-1]); break' 2>/dev/null
}

declare -A python=()
install_newest
if [ -n "$(version_of "$venv/bin/python")" ]; then python[newest]=$venv/bin/python; fi
if [ -z "$(version_of /usr/bin/python3)" ]; then
  say "debian: /usr/bin/python3 has no torch (package python3-torch)"
elif [ -n "$(slow_blas)" ]; then
  say "debian: left out, it computes with the reference BLAS, $(slow_blas) (package libopenblas0-pthread)"
else
  python[debian]=/usr/bin/python3
fi
[ ${#python[@]} -gt 0 ] || { say "no PyTorch here: nothing to compare with"; exit 77; }

step_ms() { python3 -c 'import json, sys; print(json.load(sys.stdin)["step_ms"])'; }

# run WHO RANKS WORKLOAD: prints step_ms
run() {
  local command=("$lockstep" bench step --json)
  [ "$1" = ours ] || command=("${python[$1]}" "$folder/ddp.py")
  "${mpirun[@]}" -n "$2" "${command[@]}" --workload "$3" --steps "$steps" 2>"$scratch/error-$BASHPID" | step_ms ||
    { say "$1, $2 ranks, $3: $(tail -n 3 "$scratch/error-$BASHPID")"; exit 1; }
}

# beside WHO WORKLOAD: two runs of 1 rank at the same time; prints step_ms of the slower
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

echo "$("$lockstep" --version), $("${mpirun[0]}" --version | head -n 1), $(getconf _NPROCESSORS_ONLN) cores: $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
for who in "${!python[@]}"; do echo "$who: PyTorch $(version_of "${python[$who]}")"; done
python3 - "$scratch/times" "$rounds" "$steps" <<'PY'
import collections
import statistics
import sys

times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    workload, who, *ms = line.split()
    for what, value in zip(("one", "two", "beside"), ms):
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
PY
