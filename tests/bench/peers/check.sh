#!/usr/bin/env bash
# The peers' training steps beside ours: from the same parameters, with the same batch, noise and times, three steps have the same losses.
#
# check.sh PEER_CASE [small|all]        default: all
#
# PEER_CASE is the program of peer_case.cpp; theirs are the steps that ddp.py and gpu.py time, on the CPU in float32. small: what takes
# seconds, eager. all: every workload, eager and compiled. Exit code 77: there is no PyTorch of today.
set -euo pipefail
LOCKSTEP=${1:?usage: check.sh PEER_CASE [small|all]} what=${2:-all}
# shellcheck source=tests/bench/peers/pytorch.sh
source "$(dirname "${BASH_SOURCE[0]}")/pytorch.sh"
find_pytorch
torch=${python[newest]:-}
[ -n "$torch" ] || { say "no PyTorch of today here"; exit 77; }
failed=0 checked=0

# check SCRIPT WORKLOAD SAMPLES [ARGUMENT...]
check() {
  local script=$1 case=$scratch/$2.h5
  [ -e "$case" ] || "$lockstep" "$2" "$3" "$case"
  shift 3
  "$torch" "$folder/$script.py" --check "$case" "$@" 2>"$scratch/error" || { say "$(tail -n 1 "$scratch/error")"; failed=$((failed + 1)); }
  checked=$((checked + 1))
}

small=(gpt-cpu:2 resnet-cpu:2 mlp-wide:2 unet-cpu:1)
large=(gpt-gpu:1 resnet-gpu:2 unet-gpu:1 unet64-gpu:1)
for workload in "${small[@]}"; do
  check ddp "${workload%:*}" "${workload#*:}"
  [ "$what" = small ] || check ddp "${workload%:*}" "${workload#*:}" --compile
done
if [ "$what" = all ]; then
  for workload in "${large[@]}"; do
    check gpu "${workload%:*}" "${workload#*:}" --mode eager
    check gpu "${workload%:*}" "${workload#*:}" --mode default
    rm "$scratch/${workload%:*}.h5"
  done
fi
echo "$((checked - failed)) of $checked peers have our losses"
[ $failed -eq 0 ]
