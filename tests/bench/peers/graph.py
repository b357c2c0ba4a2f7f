#!/usr/bin/env python3
"""Time the steps of share/example/graph.cpp on one thread beside the same program in PyTorch, in alternating rounds.

Usage: graph.py GRAPH [--rounds N] [--steps N] [--batch N]      (GRAPH: the program; needs torch and h5py)

Both train on the same file of graphs (tests/golden/graphs.py --make) from weights of their own: forward, backward, clipping to norm 1
and AdamW. Lockstep's time has what its run does besides (reading, joining, the log); PyTorch's batches are joined beforehand. Prints
milliseconds a step, medians of the rounds, and the median of the ratios.
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
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "golden"))
import graphs

torch.set_num_threads(1)
CONFIG = """[model]
name = particles
[task]
name = regression
[data]
train = graphs.h5
fields = particles from to y
[train]
steps = {steps}
global_batch = {batch}
shards = 1
threads = 1
[optimizer]
lr = 3e-3
clip = 1
schedule = constant
[log]
every = {steps}
"""


class Peer:
    def __init__(self, path, batch):
        with h5py.File(path) as file:
            count = len(file["particles_offsets"]) - 1
            self.batches = [graphs.batch_of(file, range(i, i + batch)) for i in range(0, count - batch + 1, batch)]
        self.model = graphs.network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, foreach=True)

    def step_ms(self, steps):
        begin = time.perf_counter()
        for i in range(steps):
            batch = self.batches[i % len(self.batches)]
            loss = torch.nn.functional.mse_loss(self.model(batch), batch["y"])
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return 1e3 * (time.perf_counter() - begin) / steps


def ours_ms(program, steps, batch, run):
    pathlib.Path("graph.ini").write_text(CONFIG.format(steps=steps, batch=batch))
    subprocess.run([program, "train", "graph.ini", "--run", run], check=True, capture_output=True)
    lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return statistics.median(line["step_ms"] for line in lines if "step_ms" in line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    program = args.program.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        graphs.make("graphs.h5", 2000, 1)
        peer = Peer("graphs.h5", args.batch)
        peer.step_ms(20)
        rounds = []
        for i in range(args.rounds):
            rounds.append((ours_ms(program, args.steps, args.batch, f"run-{i}"), peer.step_ms(args.steps)))
        for i, name in enumerate(["lockstep", f"PyTorch {torch.__version__}"]):
            print(f"{name:24} {statistics.median(one[i] for one in rounds):8.3f} ms a step")
        print(f"{'ratio, median of rounds':24} {statistics.median(theirs / ours for ours, theirs in rounds):8.2f}")


if __name__ == "__main__":
    main()
