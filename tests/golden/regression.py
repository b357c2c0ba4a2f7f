#!/usr/bin/env python3
"""Write reference cases computed by PyTorch: a model of two inputs that learns numbers, or yes and no.

Usage: regression.py OUTDIR [--seed N]      (needs torch and h5py; Debian: python3-torch python3-h5py)

regression.h5  /NAME  case={"model": {...}, "task": {...}, "optimizer": {...}, "ema": [], "clip": ..., "steps": N,
                            "batch": N, "metrics": {"loss": ..., "rmse": ...}}
               data/x[SAMPLES, ...] data/z[SAMPLES, ...] data/y[SAMPLES] or [SAMPLES, OUTPUTS]: fields of the data
               batches[STEP, BATCH]: the samples of each step   init/NAME   loss[STEP]   final/NAME
               exp_avg/NAME   exp_avg_sq/NAME   output (of all samples, at the end)
The metrics are those of all samples at the end: rmse, r2 and accuracy by the formulas of scikit-learn, in float64.
Floats are float32, integers int64. Everything runs on the CPU.
"""
import argparse
import json
import pathlib

import h5py
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class TwoInputs(nn.Module):
    def __init__(self, x, z, width, outputs):
        super().__init__()
        self.x, self.z = nn.Linear(x, width), nn.Linear(z, width)
        self.hidden, self.y = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, x, z):
        return self.y(F.relu(self.hidden(F.relu(self.x(x) + self.z(z)))))


def loss_of(task, output, y):
    y = y.reshape(output.shape).to(output.dtype)
    if task["name"] == "binary":
        return F.binary_cross_entropy_with_logits(output, y)
    return {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, beta=task["beta"])}[task["loss"]](output, y)


def metrics_of(task, output, y):
    output, y = output.double(), y.reshape(output.shape).double()
    metrics = {"loss": loss_of(task, output, y)}
    if task["name"] == "binary":
        metrics["accuracy"] = ((output > 0) == (y >= 0.5)).double().mean()
    else:
        errors = ((output - y) ** 2).sum()
        metrics["rmse"], metrics["r2"] = (errors / y.numel()).sqrt(), 1 - errors / ((y - y.mean()) ** 2).sum()
    return {name: float(value) for name, value in metrics.items()}


def targets(task, signal, outputs, r):
    """Far from what a new model gives, so that the signs of errors, which are all that l1 sees, are the same in any arithmetic."""
    if task["name"] == "binary":
        return (signal + 0.5 * r.standard_normal(signal.shape) > 0).astype(np.int64)  # [samples]: labels
    scale = np.linspace(1, 2, outputs)
    return (3 + np.outer(np.tanh(signal), scale) + 0.1 * r.standard_normal((len(signal), outputs))).astype(np.float32)


def write_case(g, task, optimizer, clip, outputs, r, samples=96, steps=30, batch=12):
    what = {"x": int(r.integers(3, 9)), "z": int(r.integers(1, 4)), "width": int(r.integers(12, 33)), "outputs": outputs}
    x, z = (r.standard_normal((samples, what[name])).astype(np.float32) for name in "xz")
    signal = x @ r.standard_normal(what["x"]) / 2 + z[:, 0]
    data = {"x": x, "z": z, "y": targets(task, signal, outputs, r)}
    batches = np.stack([r.permutation(samples)[:batch] for _ in range(steps)]).astype(np.int64)
    model = TwoInputs(**what)
    for name, values in data.items():
        g[f"data/{name}"] = values
    g["batches"] = batches
    for name, value in model.state_dict().items():
        g[f"init/{name}"] = value.numpy()

    fields = {name: torch.from_numpy(values) for name, values in data.items()}
    everything = optimizer["decay"] == "all"  # else matrices decay; biases do not
    adamw = torch.optim.AdamW([
        {"params": [p for p in model.parameters() if everything or p.ndim >= 2], "weight_decay": optimizer["weight_decay"]},
        {"params": [p for p in model.parameters() if not everything and p.ndim < 2], "weight_decay": 0.0}],
        lr=optimizer["lr"], betas=tuple(optimizer["betas"]), eps=optimizer["eps"])
    losses = []
    for step in torch.from_numpy(batches):
        adamw.zero_grad()
        loss = loss_of(task, model(fields["x"][step], fields["z"][step]), fields["y"][step])
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        adamw.step()
        losses.append(loss.item())
    g["loss"] = np.array(losses, np.float32)
    for name, param in model.named_parameters():
        g[f"final/{name}"] = param.detach().numpy()
        for slot in ("exp_avg", "exp_avg_sq"):
            g[f"{slot}/{name}"] = adamw.state[param][slot].numpy()
    with torch.no_grad():
        output = model(fields["x"], fields["z"])
    g["output"] = output.numpy()
    g.attrs["case"] = json.dumps({
        "model": dict(what, name="two_inputs"), "task": task, "optimizer": dict(optimizer, optimizer="adamw"), "ema": [], "clip": clip,
        "steps": steps, "batch": batch, "metrics": metrics_of(task, output, fields["y"])})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    r = np.random.default_rng(args.seed)
    adamw = {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.05, "decay": "matrices"}
    cases = {  # task, changes of the optimizer, clip, outputs
        "mse": ({"name": "regression", "loss": "mse"}, {}, None, 1),
        "l1": ({"name": "regression", "loss": "l1"}, {}, None, 1),
        "smooth_l1": ({"name": "regression", "loss": "smooth_l1", "beta": 0.5}, {"lr": 2e-2}, 1.0, int(r.integers(2, 5))),
        "binary": ({"name": "binary"}, {"betas": [0.8, 0.95], "decay": "all"}, None, 1),
    }
    with h5py.File(args.outdir / "regression.h5", "w") as f:
        for name, (task, changes, clip, outputs) in cases.items():
            write_case(f.create_group(name), task, dict(adamw, **changes), clip, outputs, r)
    print(f"wrote {args.outdir / 'regression.h5'} with torch {torch.__version__}")


if __name__ == "__main__":
    main()
