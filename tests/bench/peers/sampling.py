#!/usr/bin/env python3
"""Times the steps of ddim with PyTorch, on one thread: the peer of `lockstep sample`.

Usage: sampling.py CHECKPOINT_H5 [--compile]     prints one JSON document: the median of a step of 16 samples
       sampling.py --data FILE_H5                writes images that the U-Net of the workload unet-cpu can be trained on

The checkpoint is one of unet-cpu's model. Its weights go into unet.py's U-Net, which predicts the noise of the linear schedule of 1,000 steps.
--compile freezes them: Inductor then packs the weights once, as oneDNN wants them.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import h5py
    import numpy as np
    import torch
    import torch._inductor.config

    import workloads
except ImportError as missing:
    print(f"sampling.py: {missing}", file=sys.stderr)
    sys.exit(77)

SAMPLES, STEPS = 16, 20


def step_ms(path, compiled):
    model = workloads.WORKLOADS["unet-cpu"].model().eval()
    with h5py.File(path, "r") as file:
        model.load_state_dict({name: torch.from_numpy(values[()]) for name, values in file["model"].items()})
    model = model.to(memory_format=torch.channels_last)
    if compiled:
        torch._inductor.config.freezing = True
        model = torch.compile(model)
    times = []
    with torch.inference_mode():
        x = torch.randn(SAMPLES, 3, 32, 32).to(memory_format=torch.channels_last)
        spaced = list(range(0, 1000, 1000 // STEPS))
        for i in reversed(range(1, STEPS)):
            begin = time.perf_counter()
            left, before = workloads.ALPHAS_CUMPROD[spaced[i]].item(), workloads.ALPHAS_CUMPROD[spaced[i - 1]].item()
            eps = model(x, torch.full((SAMPLES,), float(spaced[i])))
            x0 = ((x - (1 - left) ** 0.5 * eps) / left**0.5).clamp(-1, 1)
            eps = (x - left**0.5 * x0) / (1 - left) ** 0.5
            x = before**0.5 * x0 + (1 - before) ** 0.5 * eps
            times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--data")
    args = parser.parse_args()
    if args.data:
        with h5py.File(args.data, "w") as file:
            file["x"] = np.random.default_rng(1).integers(0, 256, (64, 3, 32, 32), dtype=np.uint8)
            file["y"] = np.zeros(64, dtype=np.int64)
    else:
        torch.set_num_threads(1)
        workloads.keep_freed_memory()
        print(json.dumps({"step_ms": step_ms(args.checkpoint, args.compile), "pytorch": torch.__version__}))
