#!/usr/bin/env python3
"""Times all-reduces of float32 vectors over Gloo: the peer of `lockstep bench allreduce`.

Usage: mpirun -n RANKS allreduce.py [--rounds N]

The same sizes; in place, from a barrier to the slowest rank's end. Prints one JSON document: {"torch", "rows": [{"bytes", "ranks",
"gloo_ms"}]}, medians over rounds.
"""
import argparse
import json
import os
import statistics
import sys
import time

try:
    import torch
    import torch.distributed as dist

    import ddp
except ImportError as missing:
    print(f"allreduce.py: {missing}", file=sys.stderr)
    sys.exit(77)

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * KIB, 256 * KIB + 4, MIB, 4 * MIB + 28, 16 * MIB, 25 * MIB - 4, 100 * MIB]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="how often each size is timed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    ddp.join_world(rank, ranks)
    rows = []
    for size in SIZES:
        fresh = torch.rand(size // 4)
        times = []
        for _ in range(args.rounds):
            values = fresh.clone()
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(values)
            took = torch.tensor([(time.perf_counter() - begin) * 1e3], dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            times.append(took.item())
        rows.append({"bytes": size, "ranks": ranks, "gloo_ms": statistics.median(times)})
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "rows": rows}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
