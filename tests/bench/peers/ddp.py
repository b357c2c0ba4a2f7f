#!/usr/bin/env python3
"""Times training steps of a standard workload with PyTorch, on one thread a rank: the peer of `lockstep bench step`.

Usage: [mpirun -n RANKS] ddp.py [--workload gpt-cpu|resnet-cpu|mlp-wide] [--steps N] [--bucket-mb X] [--alone] [--version]

Several ranks train with DistributedDataParallel over Gloo (--alone: each rank by itself, at the same time, without it). Rank 0
prints one JSON document; every time is a median over steps, of the slowest rank in each. Models are tests/golden/generate.py's,
parameter for parameter; where this PyTorch has a faster way to the same numbers it is used: fused attention, the fused AdamW,
gradients as views of buckets. Gloo meets at MASTER_ADDR and MASTER_PORT (by default on this machine).
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
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
except ImportError as missing:
    print(f"ddp.py: {missing}", file=sys.stderr)
    sys.exit(77)

UNMEASURED_STEPS = 4


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, q, k, v):
        b, t, c = q.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        if hasattr(F, "scaled_dot_product_attention"):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            score = q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5
            out = score.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v
        return out.transpose(1, 2).reshape(b, t, c)


class Block(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(c, 3 * c), "c_proj": nn.Linear(c, c)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(c, 4 * c), "c_proj": nn.Linear(4 * c, c)})
        self.core = Attention(heads)

    def forward(self, x):
        q, k, v = self.attn["c_attn"](self.ln_1(x)).chunk(3, -1)
        x = x + self.attn["c_proj"](self.core(q, k, v))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, context, layers, heads, channels):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, channels), "wpe": nn.Embedding(context, channels),
            "h": nn.ModuleList([Block(channels, heads) for _ in range(layers)]), "ln_f": nn.LayerNorm(channels)})

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"].weight[:tokens.shape[1]]
        for block in t["h"]:
            x = block(x)
        return t["ln_f"](x) @ t["wte"].weight.t()


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet(nn.Module):
    def __init__(self, in_channels, blocks, width, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        i = width
        for k, n in enumerate(blocks):
            o = width << k
            stage = [BasicBlock(i if j == 0 else o, o, 2 if k > 0 and j == 0 else 1) for j in range(n)]
            setattr(self, f"layer{k + 1}", nn.Sequential(*stage))
            i = o
        self.stages = len(blocks)
        self.fc = nn.Linear(i, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for k in range(self.stages):
            x = getattr(self, f"layer{k + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Mlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        net = []
        for i, o in zip(sizes[:-1], sizes[1:]):
            net += [nn.Linear(i, o), nn.ReLU()]
        self.net = nn.Sequential(*net[:-1])

    def forward(self, x):
        return self.net(x)


def adamw(model):
    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.1},
              {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=1e-3, fused=True)
    except (TypeError, RuntimeError):  # older PyTorch: not at all, or on GPUs only
        return torch.optim.AdamW(groups, lr=1e-3)


# Name: (samples a rank, model, optimizer, a batch)
WORKLOADS = {
    "gpt-cpu": (8, lambda: Gpt(vocab=256, context=128, layers=4, heads=4, channels=256), adamw,
                lambda n: (torch.randint(256, (n, 128)), torch.randint(256, (n, 128)))),
    "resnet-cpu": (32, lambda: ResNet(in_channels=3, blocks=[2, 2, 2], width=32, classes=10),
                   lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                   lambda n: (torch.randn(n, 3, 32, 32), torch.randint(10, (n,)))),
    "mlp-wide": (32, lambda: Mlp([1024, 4096, 4096, 1024]),
                 lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
                 lambda n: (torch.randn(n, 1024), torch.randint(1024, (n,)))),
}


def join_world(rank, ranks):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    if os.environ["MASTER_ADDR"] == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120))


def time_steps(workload, steps, rank, ranks, alone, bucket_mb):
    samples, make_model, make_optimizer, make_batch = WORKLOADS[workload]
    torch.manual_seed(1)
    model = make_model()
    replica = model
    if ranks > 1 and not alone:
        replica = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    torch.manual_seed(2 + rank)
    x, y = make_batch(samples)
    mine = []
    if ranks > 1:
        dist.barrier()
    for step in range(UNMEASURED_STEPS + steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        logits = replica(x)
        F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()
        if step >= UNMEASURED_STEPS:
            mine.append((time.perf_counter() - begin) * 1e3)
    slowest = torch.tensor(mine, dtype=torch.float64)
    if ranks > 1:
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    step_ms = statistics.median(slowest.tolist())
    return {"model": workload, "torch": torch.__version__, "precision": "fp32", "ranks": ranks, "step_ms": step_ms,
            "samples_per_second": samples * ranks * 1e3 / step_ms}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt-cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps measured")
    parser.add_argument("--bucket-mb", type=float, default=None, help="bucket_cap_mb of DistributedDataParallel")
    parser.add_argument("--alone", action="store_true", help="every rank by itself, at the same time")
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
    times = time_steps(args.workload, args.steps, rank, ranks, args.alone, bucket_mb)
    if rank == 0:
        print(json.dumps(times))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
