#!/usr/bin/env bash
# Checkpoints beside PyTorch's on this storage: bytes of the same tensors on 2 ranks, in alternating rounds.
#
# checkpoint.sh [-r ROUNDS] [-m MIB] [-d DIR]        default: 5 rounds of 1024 MiB in the current directory
#
# Ours is `lockstep bench checkpoint --json`, theirs checkpoint.py; peers as in pytorch.sh. Exit code 77: there is no PyTorch.
set -euo pipefail
rounds=5 mib=1024 directory=.
while getopts r:m:d: option; do
  case $option in
    r) rounds=$OPTARG ;;
    m) mib=$OPTARG ;;
    d) directory=$OPTARG ;;
    *) exit 2 ;;
  esac
done
# shellcheck source=tests/bench/peers/pytorch.sh
source "$(dirname "${BASH_SOURCE[0]}")/pytorch.sh"
find_pytorch

take_turns "$rounds" 2 checkpoint --mib "$mib" --directory "$directory" --rounds 1

say_versions
python3 - "$scratch/times" "$mib" <<'PY'
import collections
import json
import statistics
import sys

figures = collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, text = line.split(" ", 1)
    for name, value in json.loads(text).items():
        if name.endswith("_ms"):
            figures[who, name].append(value)
median = {key: statistics.median(values) for key, values in figures.items()}
ours, stall = median["ours", "sync_ms"], median["ours", "async_stall_ms"]
print(f"{sys.argv[2]} MiB, 2 ranks; ms, medians")
print(f"{'ours':<32}save {ours:8.0f}   asynchronous: returns after {stall:6.0f}")
for who in dict.fromkeys(who for who, _ in figures if who != "ours"):
    save = median[who, "save_ms"]
    print(f"{who + ': torch.save':<32}save {save:8.0f}   ours is {save / ours:.2f} times faster")
    if (who, "dcp_save_ms") in median:
        save, theirs = median[who, "dcp_save_ms"], median[who, "dcp_async_stall_ms"]
        print(f"{who + ': distributed checkpoint':<32}save {save:8.0f}   asynchronous: returns after {theirs:6.0f}   "
              f"ours is {save / ours:.2f} and {theirs / stall:.2f} times faster")
PY
