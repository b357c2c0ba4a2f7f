#!/usr/bin/env python3
"""Write reference cases computed by PyTorch: networks of images and volumes (share/example/volumes.py) that learn numbers.

Usage: volumes.py OUTDIR [--seed N]      (needs torch and h5py)

regression_volumes.h5  /NAME  as regression.py writes them, without field z and the optimizer's state; output of evaluation mode
                       grad/NAME: of the first batch, in training mode
"""
import argparse
import copy
import json
import pathlib
import sys

import h5py
import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "share/example"))
import volumes  # noqa: E402
from regression import loss_of, metrics_of  # noqa: E402

torch.set_num_threads(1)
MAKE = {"resnet": volumes.ResNet, "unet": volumes.UNet, "cosmoflow": volumes.CosmoFlow}


def make(model):
    options = {key: value for key, value in model.items() if key not in ("name", "time_embed")}
    if model["name"] == "cosmoflow":
        options["dropout"] = 0.0
    return MAKE[model["name"]](**options)


def train(model, task, optimizer, x, y, batches):
    """The losses, and the gradients of the first step."""
    adamw = torch.optim.AdamW([
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": optimizer["weight_decay"]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}],
        lr=optimizer["lr"], betas=tuple(optimizer["betas"]), eps=optimizer["eps"])
    losses, gradients = [], {}
    for step in torch.from_numpy(batches):
        adamw.zero_grad()
        loss = loss_of(task, model(x[step]), y[step])
        loss.backward()
        if not losses:
            gradients = {name: param.grad.clone() for name, param in model.named_parameters()}
        adamw.step()
        losses.append(loss.item())
    return losses, gradients


def write_case(g, what, loss, size, target, r, samples=12, steps=12, batch=6):
    optimizer = {"lr": 2e-3, "betas": [0.9, 0.99], "eps": 1e-5, "weight_decay": 0.05, "decay": "matrices"}
    task = {"name": "regression", "loss": loss}
    model = make(what)
    with torch.no_grad():
        for tensor in model.parameters():  # norms and biases that matter
            tensor.add_(torch.randn_like(tensor) * (0.2 if tensor.ndim == 1 else 0.02))
    x = r.standard_normal((samples, what["in_channels"], *size)).astype(np.float32)
    level = x.mean(axis=tuple(range(1, x.ndim)), keepdims=True) * np.sqrt(x[0].size)
    y = (np.tanh(level.reshape([samples] + [1] * len(target))) + 0.3 * r.standard_normal((samples, *target))).astype(np.float32)
    batches = np.stack([r.permutation(samples)[:batch] for _ in range(steps)]).astype(np.int64)
    g["data/x"], g["data/y"], g["batches"] = x, y, batches
    for name, value in model.state_dict().items():
        g[f"init/{name}"] = value.numpy()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    exact, _ = train(copy.deepcopy(model).double(), task, optimizer, x.double(), y.double(), batches)
    losses, gradients = train(model, task, optimizer, x, y, batches)
    for name, gradient in gradients.items():
        g[f"grad/{name}"] = gradient.numpy()
    if not np.allclose(losses, exact, rtol=2e-5):
        raise SystemExit(f"{g.name}: a ReLU or a pool is so near to another choice that float64 makes it; take another --seed")
    g["loss"] = np.array(losses, np.float32)
    for name, value in model.state_dict().items():
        g[f"final/{name}"] = value.numpy()
    model.eval()
    with torch.no_grad():
        output = model(x)
    g["output"] = output.numpy()
    if what["name"] == "cosmoflow":
        what = dict(what, dropout=0.0)
    g.attrs["case"] = json.dumps({
        "model": what, "task": task, "optimizer": dict(optimizer, optimizer="adamw"), "ema": [], "clip": None, "steps": steps,
        "batch": batch, "metrics": metrics_of(task, output, y)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=50)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    r = np.random.default_rng(args.seed)
    unet = {"name": "unet", "time_embed": False, "model_channels": 4, "num_res_blocks": 1, "norm_groups": 2}
    cases = {  # model, loss, positions of a sample, target of a sample
        "resnet": ({"name": "resnet", "in_channels": 2, "blocks": [1, 1], "width": 4, "classes": 1}, "mse", (6, 9), ()),
        "resnet_3d": ({"name": "resnet", "dims": 3, "in_channels": 2, "blocks": [1, 1], "width": 4, "classes": 3}, "mse", (5, 6, 7), (3,)),
        "bottleneck_3d": ({"name": "resnet", "dims": 3, "in_channels": 1, "blocks": [1, 1], "width": 2, "classes": 2,
                           "block": "bottleneck", "stem": "7x7"}, "mse", (9, 9, 9), (2,)),
        "unet": (dict(unet, in_channels=1, out_channels=3, channel_mult=[1, 1.5], attention_resolutions=[2], num_heads=2), "mse", (6, 8), (3, 6, 8)),
        "unet_3d": (dict(unet, dims=3, in_channels=2, out_channels=1, channel_mult=[1, 1], middle_attention=False), "l1", (4, 6, 8), (1, 4, 6, 8)),
        "unet_3d_attention": (dict(unet, dims=3, in_channels=1, out_channels=2, channel_mult=[1, 1], attention_resolutions=[2], num_heads=2,
                                   resblock_updown=True), "mse", (4, 4, 6), (2, 4, 4, 6)),
        "cosmoflow": ({"name": "cosmoflow", "image_size": 5, "in_channels": 2, "outputs": 3, "width": 3, "layers": 2}, "mse", (5, 5, 5), (3,)),
    }
    with h5py.File(args.outdir / "regression_volumes.h5", "w", libver="latest") as f:
        for name, (what, loss, size, target) in cases.items():
            write_case(f.create_group(name), what, loss, size, target, r)
    print(f"wrote {args.outdir / 'regression_volumes.h5'} with torch {torch.__version__}")


if __name__ == "__main__":
    main()
