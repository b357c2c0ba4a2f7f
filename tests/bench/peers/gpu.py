#!/usr/bin/env python3
"""Times training steps of a standard workload with PyTorch on one GPU: the peer of `lockstep bench step --device cuda`.

Usage: gpu.py [--workload gpt-gpu|resnet-gpu] [--precision fp32|bf16] [--steps N] [--eager]

PyTorch at its best: torch.compile (but for --eager), fused attention, the fused AdamW, bf16 by autocast, images channels last, cuDNN's
choice by trial, TF32 for what stays float32. Prints one JSON document; the time is that of all steps in a row, waited for once.
"""
import argparse
import json
import os
import pathlib
import sys
import time
import types

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "golden"))
    sys.modules.setdefault("h5py", types.ModuleType("h5py"))  # only its data files need it
    import generate

    import ddp
except ImportError as missing:
    print(f"gpu.py: {missing}", file=sys.stderr)
    sys.exit(77)

UNMEASURED_STEPS = 10  # compiling, and the choice of algorithms


def resnet18():
    """generate.ResNet with the stem for large images; the pool comes before the ReLU here, which changes no value."""
    model = generate.ResNet(in_channels=3, blocks=[2, 2, 2, 2], width=64, classes=1000)
    model.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    model.bn1 = nn.Sequential(model.bn1, nn.MaxPool2d(3, 2, 1))
    return model


# Name: (samples, model, optimizer, a batch)
WORKLOADS = {
    "gpt-gpu": (16, lambda: generate.Gpt(vocab=50304, context=1024, layers=12, heads=12, channels=768), ddp.adamw,
                lambda n: (torch.randint(50304, (n, 1024)), torch.randint(50304, (n, 1024)))),
    "resnet-gpu": (128, resnet18, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                   lambda n: (torch.randn(n, 3, 224, 224), torch.randint(1000, (n,)))),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt-gpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--steps", type=int, default=40, help="steps measured")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: no GPU", file=sys.stderr)
        sys.exit(77)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    samples, make_model, make_optimizer, make_batch = WORKLOADS[args.workload]
    torch.manual_seed(1)
    model = make_model().cuda()
    x, y = (part.cuda() for part in make_batch(samples))
    if x.ndim == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model)
    forward = model if args.eager else torch.compile(model)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = forward(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        optimizer.step()

    for _ in range(UNMEASURED_STEPS):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(args.steps):
        step()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - begin) * 1e3 / args.steps
    print(json.dumps({"model": args.workload, "torch": torch.__version__, "compiled": not args.eager, "precision": args.precision,
                      "step_ms": step_ms, "samples_per_second": samples * 1e3 / step_ms,
                      "peak_device_memory_bytes": torch.cuda.max_memory_reserved()}))


if __name__ == "__main__":
    main()
