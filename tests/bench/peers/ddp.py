#!/usr/bin/env python3
"""Times training steps of a standard workload with PyTorch, on one thread a rank: the peer of `lockstep bench step`.

Usage: [mpirun -n RANKS] ddp.py [--workload gpt-cpu|resnet-cpu|mlp-wide|unet-cpu] [--steps N] [--bucket-mb X] [--alone] [--precision fp32|bf16] [--compile]
       ddp.py --check FILE_H5 [--compile]      compares losses with a file of peer_case
       ddp.py --version

Several ranks train with DistributedDataParallel over Gloo (--alone: each rank by itself, at the same time, without it). Rank 0
prints one JSON document; every time is a median over steps, of the slowest rank in each, and the peak of memory rank 0's. Models and steps
are those of workloads.py; gradients are views of buckets. Gloo meets at MASTER_ADDR and MASTER_PORT (by default on this machine).
"""
import argparse
import datetime
import json
import os
import statistics
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import workloads
except ImportError as missing:
    print(f"ddp.py: {missing}", file=sys.stderr)
    sys.exit(77)

WORKLOADS = [name for name in workloads.WORKLOADS if not name.endswith("-gpu")]
UNMEASURED_STEPS = 4


def join_world(rank, ranks):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    if os.environ["MASTER_ADDR"] == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120))


def peak_memory_bytes():
    """What was resident at most, of this program alone (getrusage would count what it was forked from, too)."""
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def make_trainer(name, args, wrap=lambda module: module):
    return workloads.Trainer(name, precision=args.precision, mode="default" if args.compile else None, wrap=wrap)


def time_steps(args, rank, ranks, bucket_mb):
    def replicated(module):
        # Rank 0's buffers are those that are saved, whether they are sent to the others in each step or not.
        return DistributedDataParallel(module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, broadcast_buffers=False)

    trainer = make_trainer(args.workload, args, replicated if ranks > 1 and not args.alone else lambda module: module)
    trainer.make_batch(seed=2 + rank)
    mine = []
    if ranks > 1:
        dist.barrier()
    for step in range(UNMEASURED_STEPS + args.steps):
        begin = time.perf_counter()
        trainer.step()
        if step >= UNMEASURED_STEPS:
            mine.append((time.perf_counter() - begin) * 1e3)
    slowest = torch.tensor(mine, dtype=torch.float64)
    if ranks > 1:
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    step_ms = statistics.median(slowest.tolist())
    return {"model": args.workload, "torch": torch.__version__, "precision": args.precision, "compiled": args.compile, "ranks": ranks, "step_ms": step_ms,
            "samples_per_second": trainer.workload.samples * ranks * 1e3 / step_ms, "peak_memory_bytes": peak_memory_bytes()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt-cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps measured")
    parser.add_argument("--bucket-mb", type=float, default=None, help="bucket_cap_mb of DistributedDataParallel")
    parser.add_argument("--alone", action="store_true", help="every rank by itself, at the same time")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: by autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile, where this PyTorch has it")
    parser.add_argument("--check", metavar="FILE_H5", help="of peer_case")
    parser.add_argument("--version", action="store_true", help="print PyTorch's version")
    args = parser.parse_args()
    if args.version:
        print(torch.__version__)
        return
    torch.set_num_threads(1)
    workloads.keep_freed_memory()
    if args.check:
        workloads.check(make_trainer(workloads.workload_of(args.check), args), args.check)
        return
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if ranks > 1:
        join_world(rank, ranks)
    # None is DistributedDataParallel's own choice: 25 MiB, the first bucket 1 MiB.
    bucket_mb = 25 if args.bucket_mb is None and torch.__version__.startswith("1.") else args.bucket_mb
    times = time_steps(args, rank, ranks, bucket_mb)
    if rank == 0:
        print(json.dumps(times))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
