#!/usr/bin/env python3
"""Time training steps of models of series on one thread beside PyTorch's modules, eager, in alternating rounds.

Usage: series.py LOCKSTEP [--rounds N] [--steps N] [--cases encoder,gru ...] [--bf16]      (needs torch and h5py)

encoder: 32 series of 128 steps of 8 numbers, 128 channels, 4 layers, 4 heads, mlp 512, AdamW; lengths: the same with series of
different lengths; gru, lstm: 2 layers of 128. With --bf16, PyTorch runs under its autocast. Prints milliseconds of a step, medians of the rounds, and the median of the ratios.
Ours is `lockstep bench step --config`, which reads the file; PyTorch has its batch in memory.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
import h5py
import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "golden"))
from series import Encoder, Rnn

torch.set_num_threads(1)
BATCH, T, FEATURES, CLASSES = 32, 128, 8, 10
ENCODER = dict(features=FEATURES, outputs=CLASSES, context=T, layers=4, heads=4, channels=128, mlp_channels=512)
RNN = dict(features=FEATURES, outputs=CLASSES, layers=2, hidden=128)
CASES = {"encoder": (Encoder, ENCODER, False), "lengths": (Encoder, ENCODER, True), "gru": (Rnn, RNN, False),
         "lstm": (Rnn, dict(RNN, cell="lstm"), False)}


def ours(lockstep, ini, steps):
    out = subprocess.run([lockstep, "bench", "step", "--config", ini, "--device", "cpu", "--steps", str(steps), "--json"],
                         capture_output=True, check=True, text=True).stdout
    return json.loads(out)["step_ms"]


def peer(model, optimizer, batch, steps, bf16):
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(batch["x"], batch.get("lengths"))
        torch.nn.functional.cross_entropy(logits.float(), batch["y"]).backward()
        optimizer.step()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    print(f"torch {torch.__version__}")
    r = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.cases.split(","):
            kind, options, has_lengths = CASES[name]
            data = {"x": r.standard_normal((8 * BATCH, T, FEATURES)).astype(np.float32), "y": r.integers(0, CLASSES, 8 * BATCH)}
            if has_lengths:
                data["lengths"] = r.integers(1, T + 1, 8 * BATCH)
            path, ini = (str(pathlib.Path(folder) / (name + end)) for end in (".h5", ".ini"))
            with h5py.File(path, "w") as file:
                for field, values in data.items():
                    file[field] = values
            keys = "\n".join(f"{key} = {value}" for key, value in options.items())
            pathlib.Path(ini).write_text(f"[model]\nname = {kind.__name__.lower()}\n{keys}\n[data]\ntrain = {path}\n"
                                         f"[train]\nsteps = 1\nprecision = {'bf16' if args.bf16 else 'fp32'}\nglobal_batch = {BATCH}\n[optimizer]\nname = adamw\nlr = 1e-3\n")
            model = kind(**options)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            batch = {field: torch.from_numpy(values[:BATCH]) for field, values in data.items()}
            pairs = [(ours(args.lockstep, ini, args.steps), peer(model, optimizer, batch, args.steps, args.bf16)) for _ in range(args.rounds)]
            mine, theirs = (statistics.median(side) for side in zip(*pairs))
            print(f"{name}: {mine:.1f} ms a step, PyTorch {theirs:.1f} ms: {statistics.median(b / a for a, b in pairs):.2f} times", flush=True)


if __name__ == "__main__":
    main()
