#!/usr/bin/env python3
"""Write particles on springs as a file of graphs, and how PyTorch trains the network of share/example/graph.cpp on them.

Usage: graphs.py OUTDIR [--seed N]                         (needs torch)
       graphs.py --make FILE.h5 [--samples N] [--seed N]   (a file of graphs alone)

graphs.h5          particles [rows, 4], from and to [rows] (index_of = particles), y [rows, 4 STEPS], each with NAME_offsets
                   attribute losses[20]: AdamW (no decay) on samples [12 i, 12 i + 12), the weights at first those of the next file
graphs_weights.h5  edge.0.weight ... node.2.bias
"""
import argparse
import pathlib

import h5py
import numpy as np

STEPS, WIDTH, BATCH, TIME_STEP = 5, 64, 12, 0.1


def simulate(random, count, substeps=20):
    """State and later states of `count` particles, and the springs: two rows for each, [from, to]."""
    state = random.normal(size=(count, 4))
    joined = np.triu(random.random((count, count)) < 0.4, 1)
    springs = np.argwhere(joined | joined.T)
    later, now, dt = [], state.copy(), TIME_STEP / substeps

    def kick(time):
        offset = now[springs[:, 0], :2] - now[springs[:, 1], :2]
        distance = np.sqrt((offset**2).sum(axis=1, keepdims=True) + 0.05)
        np.add.at(now[:, 2:], springs[:, 1], time * 2 * (distance - 1) / distance * offset)

    for _ in range(STEPS):
        for _ in range(substeps):
            kick(dt / 2)
            now[:, :2] += dt * now[:, 2:]
            kick(dt / 2)
        later.append(now.copy())
    return state, springs, np.concatenate(later, axis=1)


def make(path, samples, seed):
    random = np.random.default_rng(seed)
    graphs = [simulate(random, int(random.integers(3, 13))) for _ in range(samples)]
    offsets = [np.concatenate([[0], np.cumsum([len(graph[i]) for graph in graphs])]) for i in range(2)]
    with h5py.File(path, "w") as file:
        file["particles"] = np.concatenate([graph[0] for graph in graphs]).astype("float32")
        file["y"] = np.concatenate([graph[2] for graph in graphs]).astype("float32")
        file["particles_offsets"], file["from_offsets"] = offsets
        file["y_offsets"], file["to_offsets"] = file["particles_offsets"], file["from_offsets"]  # the same arrays
        springs = np.concatenate([graph[1] for graph in graphs])
        for i, name in enumerate(["from", "to"]):
            file[name] = springs[:, i]
            file[name].attrs["index_of"] = "particles"


def batch_of(file, samples):
    """The joined rows of some samples, as Lockstep joins them."""
    import torch

    rows = {name: [] for name in ["particles", "from", "to", "y"]}
    first = 0
    for sample in samples:
        for name in rows:
            begin, end = file[name + "_offsets"][sample : sample + 2]
            values = file[name][begin:end]
            rows[name].append(values + first if name in ("from", "to") else values)
        first += len(rows["particles"][-1])
    return {name: torch.from_numpy(np.concatenate(parts)) for name, parts in rows.items()}


def network():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge = nn.Sequential(nn.Linear(4, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
            self.node = nn.Sequential(nn.Linear(2 + WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 4))

        def forward(self, batch):
            state, source, to = batch["particles"], batch["from"], batch["to"]
            states = []
            for _ in range(STEPS):
                messages = self.edge(state[source] - state[to])
                total = torch.zeros(len(state), WIDTH).index_add_(0, to, messages)
                velocity = state[:, 2:]
                change = self.node(torch.cat([velocity, total], 1))
                state = state + change + nn.functional.pad(TIME_STEP * velocity, (0, 2))
                states.append(state)
            return torch.cat(states, 1)

    return Network()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outdir", type=pathlib.Path, nargs="?")
    parser.add_argument("--make")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.make:
        return make(args.make, args.samples, args.seed)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    path = args.outdir / "graphs.h5"
    make(path, 20 * BATCH, args.seed)
    model = network()
    with h5py.File(args.outdir / "graphs_weights.h5", "w") as file:
        for name, value in model.state_dict().items():
            file[name] = value.numpy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    losses = []
    with h5py.File(path, "r+") as file:
        for step in range(20):
            batch = batch_of(file, range(BATCH * step, BATCH * (step + 1)))
            loss = torch.nn.functional.mse_loss(model(batch), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        file.attrs["losses"], file.attrs["torch"] = losses, str(torch.__version__)


if __name__ == "__main__":
    main()
