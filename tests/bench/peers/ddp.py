#!/usr/bin/env python3
"""Times training steps of a standard workload with PyTorch, on one thread a rank: the peer of `lockstep bench step`.

Usage: [mpirun -n RANKS] ddp.py [--workload gpt-cpu|resnet-cpu|mlp-wide|unet-cpu] [--steps N] [--bucket-mb X] [--alone] [--precision fp32|bf16] [--compile]
       ddp.py --version

Several ranks train with DistributedDataParallel over Gloo (--alone: each rank by itself, at the same time, without it). Rank 0
prints one JSON document; every time is a median over steps, of the slowest rank in each, and the peak of memory rank 0's. Models are tests/golden/generate.py's,
parameter for parameter, and unet.py's; where this PyTorch has a faster way to the same numbers it is used: fused attention, the fused AdamW,
gradients as views of buckets. Gloo meets at MASTER_ADDR and MASTER_PORT (by default on this machine).
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "golden"))
    import generate
    import unet
except ImportError as missing:
    print(f"ddp.py: {missing}", file=sys.stderr)
    sys.exit(77)

UNMEASURED_STEPS = 4


class FusedAttention(nn.Module):
    """generate.Attention where all heads attend causally, by PyTorch's own kernel."""

    def __init__(self, heads, causal=True):
        super().__init__()
        assert causal
        self.heads = heads

    def forward(self, q, k, v):
        b, t, c = q.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)


if hasattr(F, "scaled_dot_product_attention"):
    generate.Attention = FusedAttention


def adamw(model):
    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.1},
              {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=1e-3, fused=True)
    except (TypeError, RuntimeError):  # older PyTorch: not at all, or on GPUs only
        return torch.optim.AdamW(groups, lr=1e-3)


def adam_of_unet(model):
    try:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    except (TypeError, RuntimeError):
        return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)


def classify(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


# Of the linear schedule of 1,000 steps: the part of the image's variance that is left.
ALPHAS_CUMPROD = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)


def denoise(model, x, _):
    t = torch.randint(len(ALPHAS_CUMPROD), (len(x),))
    noise = torch.randn_like(x)
    left = ALPHAS_CUMPROD[t].reshape(-1, 1, 1, 1)
    return F.mse_loss(model(left.sqrt().float() * x + (1 - left).sqrt().float() * noise, t.float()).float(), noise)


# Name: (samples a rank, model, optimizer, a batch, loss)
WORKLOADS = {
    "gpt-cpu": (8, lambda: generate.Gpt(vocab=256, context=128, layers=4, heads=4, channels=256), adamw,
                lambda n: (torch.randint(256, (n, 128)), torch.randint(256, (n, 128))), classify),
    "resnet-cpu": (32, lambda: generate.ResNet(in_channels=3, blocks=[2, 2, 2], width=32, classes=10),
                   lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                   lambda n: (torch.randn(n, 3, 32, 32), torch.randint(10, (n,))), classify),
    "mlp-wide": (32, lambda: generate.Mlp([1024, 4096, 4096, 1024]),
                 lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
                 lambda n: (torch.randn(n, 1024), torch.randint(1024, (n,))), classify),
    "unet-cpu": (8, lambda: unet.UNet(image_size=32, in_channels=3, model_channels=64, out_channels=3, num_res_blocks=2, attention_resolutions=[2],
                                      channel_mult=[1, 2, 2], num_heads=4, use_scale_shift_norm=True), adam_of_unet,
                 lambda n: (torch.randn(n, 3, 32, 32), None), denoise),
}


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


def time_steps(args, rank, ranks, bucket_mb):
    samples, make_model, make_optimizer, make_batch, loss_of = WORKLOADS[args.workload]
    torch.manual_seed(1)
    model = make_model()
    replica = model
    if ranks > 1 and not args.alone:
        replica = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    if args.compile:
        replica = torch.compile(replica)
    torch.manual_seed(2 + rank)
    x, y = make_batch(samples)
    mine = []
    if ranks > 1:
        dist.barrier()
    for step in range(UNMEASURED_STEPS + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(replica, x, y)
        loss.backward()
        optimizer.step()
        if step >= UNMEASURED_STEPS:
            mine.append((time.perf_counter() - begin) * 1e3)
    slowest = torch.tensor(mine, dtype=torch.float64)
    if ranks > 1:
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    step_ms = statistics.median(slowest.tolist())
    return {"model": args.workload, "torch": torch.__version__, "precision": args.precision, "compiled": args.compile, "ranks": ranks, "step_ms": step_ms,
            "samples_per_second": samples * ranks * 1e3 / step_ms, "peak_memory_bytes": peak_memory_bytes()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt-cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps measured")
    parser.add_argument("--bucket-mb", type=float, default=None, help="bucket_cap_mb of DistributedDataParallel")
    parser.add_argument("--alone", action="store_true", help="every rank by itself, at the same time")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: by autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile, where this PyTorch has it")
    parser.add_argument("--version", action="store_true", help="print PyTorch's version")
    args = parser.parse_args()
    if args.version:
        print(torch.__version__)
        return
    torch.set_num_threads(1)
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
