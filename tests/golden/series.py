#!/usr/bin/env python3
"""Write reference cases computed by PyTorch: models of series, whose modules docs/series.md shows.

Usage: series.py OUTDIR [--seed N]      (needs torch and h5py)

series.h5  /NAME  case={"model": {...}, "task": {...}, "optimizer": {...}, "ema": [], "clip": null, "steps": 20, "batch": N,
                        "metrics": {"loss": ..., "rmse": ...}}
           data/x[SAMPLES, T, F] data/y[SAMPLES ...] data/lengths[SAMPLES] data/y_lengths[SAMPLES] (if the case has them)
           batches[STEP, BATCH]: the samples of each step   init/NAME   grad/NAME (of the mean loss of all samples, at first)
           loss[STEP]   final/NAME   exp_avg/NAME   exp_avg_sq/NAME or momentum_buffer/NAME
           output (of all samples, at the end; 0 in steps that do not exist)
The metrics are those of all samples at the end, over the steps that exist: rmse, mae, r2, accuracy, in float64. Steps that do
not exist hold 1e30 in x and in y, or the label 99. Floats are float32, integers int64. Everything runs on the CPU.
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
SAMPLES, STEPS, BATCH, T, FEATURES = 30, 20, 6, 9, 3


def exists(lengths, steps):
    """[N, steps]: which steps exist."""
    return torch.arange(steps)[None] < lengths[:, None]


class Series(nn.Module):
    """Pooling and head; self.states(x, there) gives the states of the steps."""

    def finish(self, width, outputs, horizon, pooling):
        self.pooling, self.horizon = pooling, horizon
        self.head = nn.Linear(width, outputs * max(1, horizon))

    def forward(self, x, lengths=None):
        there = exists(lengths, x.shape[1]) if lengths is not None else torch.ones(x.shape[:2], dtype=torch.bool)
        h = self.states(x.masked_fill(~there[..., None], 0), None if lengths is None else ~there)
        count = there.sum(1)
        if self.pooling == "mean":
            h = h.masked_fill(~there[..., None], 0).sum(1) / count.clamp(min=1)[:, None]
        elif self.pooling == "last":
            h = h[torch.arange(len(h)), count.clamp(min=1) - 1].masked_fill((count == 0)[:, None], 0)
        y = self.head(h)
        return y.unflatten(1, (self.horizon, -1)) if self.horizon else y


class Encoder(Series):
    def __init__(self, features, context, layers, heads, channels, mlp_channels, outputs, horizon=0, pooling="mean", causal=False):
        super().__init__()
        self.input, self.positions = nn.Linear(features, channels), nn.Embedding(context, channels)
        layer = nn.TransformerEncoderLayer(channels, heads, mlp_channels, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(channels), enable_nested_tensor=False)
        self.causal = causal
        self.finish(channels, outputs, horizon, pooling)

    def states(self, x, padding):
        steps = x.shape[1]
        mask = torch.ones(steps, steps, dtype=torch.bool).triu(1) if self.causal else None
        return self.encoder(self.input(x) + self.positions.weight[:steps], mask, padding)


class Rnn(Series):
    def __init__(self, features, hidden, outputs, cell="gru", layers=1, horizon=0, pooling="last"):
        super().__init__()
        self.rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](features, hidden, layers, batch_first=True)
        self.finish(hidden, outputs, horizon, pooling)

    def states(self, x, padding):
        return self.rnn(x)[0]


def counted(output, data):
    """Which elements of the output without its last extent count."""
    lengths = data.get("y_lengths") if "y_lengths" in data else data.get("lengths")
    if output.ndim < 3 or lengths is None:
        return torch.ones(output.shape[:-1], dtype=torch.bool)
    return exists(lengths, output.shape[1])


def loss_of(task, output, data):
    there = counted(output, data)
    output, y = output[there], data["y"][there]
    if task["name"] == "classification":
        return F.cross_entropy(output, y)
    y = y.reshape(output.shape)
    return {"mse": F.mse_loss, "l1": F.l1_loss}[task["loss"]](output, y)


def metrics_of(task, output, data):
    there = counted(output, data)
    metrics = {"loss": loss_of(task, output.double(), {k: v.double() if v.is_floating_point() else v for k, v in data.items()})}
    if task["name"] == "classification":
        metrics["accuracy"] = (output[there].argmax(-1) == data["y"][there]).double().mean()
    else:
        output = output[there].double()
        y = data["y"][there].reshape(output.shape).double()
        errors = ((output - y) ** 2).sum()
        metrics["rmse"], metrics["mae"] = (errors / y.numel()).sqrt(), (output - y).abs().mean()
        metrics["r2"] = 1 - errors / ((y - y.mean()) ** 2).sum()
    return {name: float(value) for name, value in metrics.items()}


def write_case(g, kind, options, task, optimizer, has_lengths, r):
    model = {"encoder": Encoder, "rnn": Rnn}[kind](**options)
    with torch.no_grad():  # norms and biases matter
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter) if parameter.ndim == 1 else 0.05 * torch.randn_like(parameter))
    horizon, pooling, outputs = options.get("horizon", 0), model.pooling, options["outputs"]
    x = r.standard_normal((SAMPLES, T, FEATURES)).astype(np.float32)
    lengths = np.concatenate([[1, T], r.integers(1, T + 1, SAMPLES - 2)]) if has_lengths else np.full(SAMPLES, T)
    steps = [T] if pooling == "none" else [horizon] if horizon else []
    data = {"x": x}
    if task["name"] == "classification":
        data["y"] = r.integers(0, outputs, [SAMPLES, *steps])
    else:
        data["y"] = (2 + x[:, :1, :1].reshape([SAMPLES, *[1 for _ in steps], 1]) + 0.3 * r.standard_normal([SAMPLES, *steps, outputs])).astype(np.float32)
        if kind == "rnn" and outputs == 1:
            data["y"] = data["y"][..., 0]
    if has_lengths:
        x[~exists(torch.from_numpy(lengths), T).numpy()] = 1e30
        data["lengths"] = lengths
        of_y = lengths if pooling == "none" else None
        if horizon:
            of_y = data["y_lengths"] = r.integers(0, horizon + 1, SAMPLES)
        if of_y is not None:
            data["y"][~exists(torch.from_numpy(of_y), data["y"].shape[1]).numpy()] = 99 if data["y"].dtype == np.int64 else 1e30
    batches = np.stack([r.permutation(SAMPLES)[:BATCH] for _ in range(STEPS)]).astype(np.int64)
    for name, values in data.items():
        g[f"data/{name}"] = values
    g["batches"] = batches
    for name, value in model.state_dict().items():
        g[f"init/{name}"] = value.numpy()
    data = {name: torch.from_numpy(values) for name, values in data.items()}
    loss_of(task, model(data["x"], data.get("lengths")), data).backward()
    for name, param in model.named_parameters():
        g[f"grad/{name}"] = param.grad.numpy().copy()
    if optimizer["optimizer"] == "adamw":
        update = torch.optim.AdamW(model.parameters(), lr=optimizer["lr"], betas=tuple(optimizer["betas"]), eps=optimizer["eps"], weight_decay=0)
    else:
        update = torch.optim.SGD(model.parameters(), lr=optimizer["lr"], momentum=optimizer["momentum"])
    losses = []
    for step in torch.from_numpy(batches):
        update.zero_grad()
        batch = {name: values[step] for name, values in data.items()}
        loss = loss_of(task, model(batch["x"], batch.get("lengths")), batch)
        loss.backward()
        update.step()
        losses.append(loss.item())
    g["loss"] = np.array(losses, np.float32)
    for name, param in model.named_parameters():
        g[f"final/{name}"] = param.detach().numpy()
        for slot, value in update.state[param].items():
            if slot != "step":
                g[f"{slot}/{name}"] = value.numpy()
    with torch.no_grad():
        output = model(data["x"], data.get("lengths"))
    g["output"] = output.masked_fill(~counted(output, data)[..., None], 0).numpy()
    g.attrs["case"] = json.dumps({
        "model": dict(options, name=kind), "task": task, "optimizer": optimizer, "ema": [], "clip": None, "steps": STEPS, "batch": BATCH,
        "metrics": metrics_of(task, output, data)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    r = np.random.default_rng(args.seed)
    # The gradient of the bias of keys is 0 but for rounding, which a small eps would make as large as others.
    adamw = {"optimizer": "adamw", "lr": 5e-3, "betas": [0.9, 0.99], "eps": 1e-3, "weight_decay": 0}
    sgd = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
    classes, numbers = {"name": "classification"}, {"name": "regression", "loss": "mse"}
    encoder = dict(features=FEATURES, context=T + 2, layers=2, heads=2, channels=16, mlp_channels=24)
    rnn = dict(features=FEATURES, hidden=12)
    cases = {  # model, options, task, optimizer, lengths
        "encoder_classes": ("encoder", dict(encoder, outputs=4), classes, adamw, True),
        "encoder_of_whole_series": ("encoder", dict(encoder, outputs=2, pooling="last"), numbers, sgd, False),
        "encoder_causal_labels": ("encoder", dict(encoder, outputs=3, pooling="none", causal=True), classes, sgd, True),
        "encoder_forecast": ("encoder", dict(encoder, outputs=2, horizon=4), numbers, adamw, True),
        "encoder_recomputed": ("encoder", dict(encoder, outputs=1, pooling="none", recompute=True), dict(numbers, loss="l1"), adamw, True),
        "gru_classes": ("rnn", dict(rnn, outputs=4, layers=2), classes, adamw, True),
        "gru_by_step": ("rnn", dict(rnn, outputs=1, pooling="none"), numbers, sgd, True),
        "gru_of_whole_series": ("rnn", dict(rnn, outputs=2), numbers, sgd, False),
        "lstm_forecast": ("rnn", dict(rnn, outputs=1, horizon=5, cell="lstm", layers=2, pooling="mean"), numbers, adamw, True),
        "lstm_labels": ("rnn", dict(rnn, outputs=3, cell="lstm", layers=2, pooling="none"), classes, sgd, True),
    }
    with h5py.File(args.outdir / "series.h5", "w") as f:
        for name, (kind, options, task, optimizer, has_lengths) in cases.items():
            recompute = options.pop("recompute", None)
            g = f.create_group(name)
            write_case(g, kind, options, task, optimizer, has_lengths, r)
            if recompute:
                what = json.loads(g.attrs["case"])
                what["model"]["recompute"] = True
                g.attrs["case"] = json.dumps(what)
    print(f"wrote {args.outdir / 'series.h5'} with torch {torch.__version__}")


if __name__ == "__main__":
    main()
