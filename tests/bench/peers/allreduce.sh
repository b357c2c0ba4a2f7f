#!/usr/bin/env bash
# Sums over all ranks of this machine beside Gloo's, in alternating rounds.
#
# allreduce.sh [-r ROUNDS] [-n RANKS]        default: 3 rounds on 2 ranks
#
# Ours is `lockstep bench allreduce --json` (beside MPI_Allreduce, in the same run), theirs allreduce.py; peers as in pytorch.sh. Exit
# code 77: there is no PyTorch.
set -euo pipefail
rounds=3 ranks=2
while getopts r:n: option; do
  case $option in
    r) rounds=$OPTARG ;;
    n) ranks=$OPTARG ;;
    *) exit 2 ;;
  esac
done
# shellcheck source=tests/bench/peers/pytorch.sh
source "$(dirname "${BASH_SOURCE[0]}")/pytorch.sh"
find_pytorch

take_turns "$rounds" "$ranks" allreduce

say_versions
python3 - "$scratch/times" "$ranks" <<'PY'
import collections
import json
import statistics
import sys

times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, text = line.split(" ", 1)
    for row in json.loads(text)["rows"]:
        for name in ("lockstep_ms", "mpi_ms", "gloo_ms"):
            if row.get(name) is not None:
                times[row["bytes"], who if name == "gloo_ms" else name[:-3]].append(row[name])
peers = [who for who in dict.fromkeys(who for _, who in times) if who != "lockstep"]
print(f"{sys.argv[2]} ranks; ms, medians; a peer's time and how many times ours is faster")
print(f"{'bytes':>12}{'lockstep':>10}" + "".join(f"{'Gloo, ' + who if who != 'mpi' else 'MPI':>24}" for who in peers))
for size in sorted({size for size, _ in times}):
    ours = statistics.median(times[size, "lockstep"])
    line = f"{size:>12}{ours:>10.3f}"
    for who in peers:
        theirs = statistics.median(times[size, who])
        line += f"{theirs:>15.3f}{theirs / ours:>8.1f}x"
    print(line)
PY
