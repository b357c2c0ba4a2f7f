#!/usr/bin/env python3
"""Times checkpoints of PyTorch: the peer of `lockstep bench checkpoint`, on tensors of the same sizes.

Usage: [mpirun -n RANKS] checkpoint.py [--mib N] [--directory DIR] [--rounds N]

torch.save: rank 0 writes everything and syncs the file, the others wait, as data-parallel programs do. Distributed checkpoint, where
this PyTorch has it: all ranks write, files synced (its default); and its asynchronous save, until it returns. Prints one JSON
document of medians over rounds, of the slowest rank in each.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist

    import ddp
except ImportError as missing:
    print(f"checkpoint.py: {missing}", file=sys.stderr)
    sys.exit(77)

try:
    import torch.distributed.checkpoint as dcp

    dcp.save  # 2.2 and later
except (ImportError, AttributeError):
    dcp = None


def made_up_model(mib):
    """Matrices of 4 MiB with a bias of 4 KiB each."""
    pattern, state = torch.rand(1024, 1024), {}
    while sum(t.numel() for t in state.values()) * 4 < mib << 20:
        layer = len(state) // 2
        state[f"layer{layer}.weight"], state[f"layer{layer}.bias"] = pattern.clone(), torch.rand(1024)
    return state


def time_ms(action):
    dist.barrier()
    begin = time.perf_counter()
    action()
    mine = torch.tensor([(time.perf_counter() - begin) * 1e3], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size, in MiB")
    parser.add_argument("--directory", default=".", help="on the storage to measure")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    ddp.join_world(rank, ranks)
    state = made_up_model(args.mib)
    names = [tempfile.mkdtemp(prefix="torch-bench-", dir=args.directory) if rank == 0 else None]
    dist.broadcast_object_list(names)
    folder = pathlib.Path(names[0])
    times = {}

    def save():
        if rank == 0:
            with open(folder / "model.pt", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        dist.barrier()

    def load():
        torch.load(folder / "model.pt")

    try:
        for number in range(args.rounds):
            times.setdefault("save_ms", []).append(time_ms(save))
            times.setdefault("load_ms", []).append(time_ms(load))
            if dcp:
                path = folder / f"dcp{number}"
                times.setdefault("dcp_save_ms", []).append(time_ms(lambda: dcp.save(state, checkpoint_id=path)))
                pending = []
                times.setdefault("dcp_async_stall_ms", []).append(
                    time_ms(lambda: pending.append(dcp.async_save(state, checkpoint_id=folder / f"async{number}"))))
                pending[0].result()
            dist.barrier()
            if rank == 0:
                for old in list(folder.glob("dcp*")) + list(folder.glob("async*")):
                    shutil.rmtree(old)
                (folder / "model.pt").unlink()
            dist.barrier()
    finally:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        size = sum(t.numel() * t.element_size() for t in state.values())
        print(json.dumps({"torch": torch.__version__, "ranks": ranks, "bytes": size,
                          **{name: statistics.median(values) for name, values in times.items()}}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
