#!/usr/bin/env python3
"""Write reference cases of Muon: the formula of torch.optim.Muon, evaluated in float32 throughout.

Usage: muon.py OUTDIR [--seed N]      (needs numpy and h5py; Debian: python3-numpy python3-h5py)

optim_muon.h5   as the optim.h5 of generate.py, and momentum_buffer/NAME (at the end)
PyTorch itself rounds to bfloat16 in the steps of Newton and Schulz, so its own values are no reference here.
What has one dimension gets torch.optim.AdamW, without weight decay.
"""
import argparse
import json
import math
import pathlib

import h5py
import numpy as np

f32 = np.float32


def lerp(start, end, weight):
    """torch.lerp"""
    w = f32(weight)
    return start + w * (end - start) if w < 0.5 else end - (end - start) * (f32(1) - w)


def newton_schulz(matrix, a=f32(3.4445), b=f32(-4.7750), c=f32(2.0315), steps=5, eps=1e-7):
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / np.maximum(np.linalg.norm(x).astype(f32), f32(eps))
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon:
    def __init__(self, shape, what):
        self.buffer, self.what = np.zeros(shape, f32), what

    def step(self, value, grad):
        what, (rows, columns) = self.what, value.shape
        self.buffer = lerp(self.buffer, grad, 1 - what["momentum"])
        update = newton_schulz(lerp(grad, self.buffer, what["momentum"]) if what["nesterov"] else self.buffer)
        value = value * f32(1 - what["lr"] * what["weight_decay"])
        return value - f32(what["lr"] * math.sqrt(max(1, rows / columns))) * update


class AdamW:
    def __init__(self, shape, what):
        self.m, self.v, self.t, self.what = np.zeros(shape, f32), np.zeros(shape, f32), 0, what

    def step(self, value, grad):
        (beta1, beta2), eps, lr = self.what["betas"], self.what["eps"], self.what["lr"]
        self.t += 1
        self.m = lerp(self.m, grad, 1 - beta1)
        self.v = self.v * f32(beta2) + f32(1 - beta2) * grad * grad
        root = np.sqrt(self.v) / f32(math.sqrt(1 - beta2 ** self.t)) + f32(eps)
        return value - f32(lr / (1 - beta1 ** self.t)) * self.m / root


MUON = {"optimizer": "muon", "steps": 6, "clip": None, "lr": 2e-2, "momentum": 0.95, "nesterov": True, "weight_decay": 0.1,
        "betas": [0.9, 0.95], "eps": 1e-8}
CASES = {
    "tall": (dict(MUON), (23, 7)),
    "wide": (dict(MUON), (6, 31)),
    "square": (dict(MUON), (16, 16)),
    "row": (dict(MUON), (1, 9)),
    "column": (dict(MUON), (9, 1)),
    "plain_momentum": (dict(MUON, nesterov=False, momentum=0.9), (12, 5)),
    "several_blocks": (dict(MUON, steps=2), (70, 67)),  # of the 4096 elements that norms are summed over
}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("outdir", type=pathlib.Path)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    r = np.random.default_rng(args.seed)
    with h5py.File(args.outdir / "optim_muon.h5", "w") as f:
        for name, (what, shape) in CASES.items():
            g = f.create_group(name)
            g.attrs["case"] = json.dumps(what)
            values = {"weight": r.standard_normal(shape).astype(f32), "bias": r.standard_normal(5).astype(f32)}
            rules = {"weight": Muon(shape, what), "bias": AdamW((5,), what)}
            for n, value in values.items():
                g[f"init/{n}"] = value
            norms = []
            for s in range(what["steps"]):
                grads = {n: (r.standard_normal(values[n].shape) * (1 + s)).astype(f32) for n in values}
                norms.append(math.sqrt(sum(float((grad.astype(np.float64) ** 2).sum()) for grad in grads.values())))
                for n, grad in grads.items():
                    values[n] = rules[n].step(values[n], grad)
                    assert values[n].dtype == f32
                    g[f"grad/{s}/{n}"], g[f"param/{s}/{n}"] = grad, values[n]
            g["norm"] = np.array(norms, f32)
            g["momentum_buffer/weight"] = rules["weight"].buffer
    print(f"wrote {args.outdir / 'optim_muon.h5'} with numpy {np.__version__}")


if __name__ == "__main__":
    main()
