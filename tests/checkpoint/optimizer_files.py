"""Writes the files that tests/cli/optimizer.sh reads: python3 optimizer_files.py FOLDER, with PyTorch.

Those in optimizer_files/ are of PyTorch 2.15. half.pt and whole.pt are one run after 5 and 10 of 10 steps, on the data of
optimizer.sh. In the others a learning rate of 0 and a gradient that is the parameter make exp_avg 0.1 and exp_avg_sq 0.001 times
the parameter and its square.
"""
import sys

import numpy as np
import torch
from torch import nn

folder = sys.argv[1]


def mlp(*sizes):
    torch.manual_seed(1)
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.ModuleDict({"net": nn.Sequential(*layers[:-1])})


def by_rank(model, decay=0.0):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return {"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}


def save(name, model, optimizer, **others):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **others}, f"{folder}/{name}.pt")


def one_step(name, model, optimizer, unused=None):
    for parameter in model.parameters():
        parameter.grad = None if parameter is unused else parameter.detach().clone()
    optimizer.step()
    save(name, model, optimizer)


# As nanoGPT: matrices with weight decay, and the rest without.
i = np.arange(60).reshape(20, 3)
x, y = torch.tensor((i * 37 % 101 / 101).astype("f4")), torch.tensor((i[:, :2] * 53 % 97 / 97).astype("f4"))
model = mlp(3, 4, 4, 2)
optimizer = torch.optim.AdamW(by_rank(model, 0.1), lr=0.01, betas=(0.9, 0.95))
for step in range(1, 11):
    optimizer.zero_grad()
    nn.functional.mse_loss(model["net"](x), y).backward()
    optimizer.step()
    if step in (5, 10):
        save("half" if step == 5 else "whole", model, optimizer, iter_num=step)

# Orders, names, and what they leave open.
adamw = lambda params, **others: torch.optim.AdamW(params, lr=0.0, **others)
model = mlp(3, 4, 4, 2)
one_step("vectors_first", model, adamw(by_rank(model)[::-1]))
one_step("amsgrad", model, adamw(model.parameters(), amsgrad=True))
one_step("sgd", model, torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9))
one_step("one_unused", model, adamw(model.parameters()), unused=model["net"][2].bias)
body_and_head = [{"params": list(model["net"][4].parameters())}, {"params": list(model["net"][:4].parameters())}]
one_step("head_first", model, adamw(body_and_head))
square = mlp(3, 3, 3)
halves = [square["net"][2], square["net"][0]]
one_step("either", square, adamw([{"params": half.parameters()} for half in halves]))
one_step("named", square, adamw([{"params": half.named_parameters(prefix=name)} for half, name in zip(halves, ("net.2", "net.0"))]))
old = torch.optim.Adam(model.parameters(), lr=0.0)
one_step("old", model, old)
states = torch.load(f"{folder}/old.pt")
for state in states["optimizer"]["state"].values():
    state["step"] = int(state["step"])  # as before PyTorch 1.12
torch.save(states, f"{folder}/old.pt")
torch.save(states["optimizer"], f"{folder}/alone.pt")
torch.save({"model": model.state_dict(), "g": old.state_dict(), "d": old.state_dict()}, f"{folder}/two.pt")
torch.save({"model": model.state_dict(), "optimizer": adamw(model.parameters()).state_dict()}, f"{folder}/new.pt")
