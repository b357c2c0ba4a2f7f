#!/usr/bin/env python3
"""Write reference cases computed by torchvision: a small resnet of bottlenecks and a small vit.

Usage: vision.py OUTDIR [--seed N]      (needs torch, torchvision and h5py)

vision.h5  /NAME  case={"model": {...}, "frozen_statistics": BOOL}
           init/NAME   x[BATCH, ...]   y[BATCH]
           loss[1], grad/NAME: of a training pass (with frozen statistics: batch norms in evaluation mode)
           eval_logits: of x, in evaluation, after that pass
Floats are float32, integers int64. Everything runs on the CPU.
"""
import argparse
import json
import pathlib

import h5py
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import VisionTransformer
from torchvision.models.resnet import Bottleneck, ResNet

torch.set_num_threads(1)


class NarrowResNet(ResNet):
    """torchvision's ResNet of bottlenecks with another width and at most four stages; __init__ there has width 64."""

    def __init__(self, in_channels, blocks, width, classes, block, stem):
        assert block == "bottleneck" and stem == "7x7"
        nn.Module.__init__(self)
        self._norm_layer, self.dilation, self.groups, self.base_width, self.inplanes = nn.BatchNorm2d, 1, 1, 64, width
        self.conv1, self.bn1 = nn.Conv2d(in_channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        for k in range(4):
            stage = self._make_layer(Bottleneck, width << k, blocks[k], 1 if k == 0 else 2) if k < len(blocks) else nn.Identity()
            setattr(self, f"layer{k + 1}", stage)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(self.inplanes, classes)


def vit(image_size, patch, layers, heads, channels, mlp_channels, in_channels, classes):
    assert in_channels == 3
    return VisionTransformer(image_size, patch, layers, heads, channels, mlp_channels, num_classes=classes)


def randomize(model):
    """Values that a mistake would show: torchvision's class token and head begin at 0, norms at 1 and 0."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith("weight") and tensor.ndim == 1:
                tensor.normal_(1, 0.2)
            elif tensor.ndim <= 1 and tensor.is_floating_point() or name == "class_token" or name.startswith("heads."):
                tensor.normal_(0, 0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=4545)
    args = parser.parse_args()
    args.outdir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    resnet = {"in_channels": 3, "blocks": [2, 1], "width": 4, "classes": 5, "block": "bottleneck", "stem": "7x7"}
    transformer = {"image_size": 16, "patch": 4, "layers": 2, "heads": 2, "channels": 16, "mlp_channels": 32,
                   "in_channels": 3, "classes": 5}
    cases = {"bottleneck": ("resnet", NarrowResNet, resnet, 24, False),
             "bottleneck_frozen": ("resnet", NarrowResNet, resnet, 24, True),
             "vit": ("vit", vit, transformer, 16, False)}
    with h5py.File(args.outdir / "vision.h5", "w") as f:
        for name, (kind, make, options, size, frozen) in cases.items():
            g = f.create_group(name)
            g.attrs["case"] = json.dumps({"model": {"name": kind, **options}, "frozen_statistics": frozen})
            model = make(**options)
            randomize(model)
            for n, t in model.state_dict().items():
                g[f"init/{n}"] = t.numpy()
            x, y = torch.randn(3, 3, size, size), torch.randint(0, options["classes"], (3,))
            g["x"], g["y"] = x.numpy(), y.numpy()
            model.train(not frozen)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            g["loss"] = loss.detach().reshape(1).numpy()
            for n, p in model.named_parameters():
                g[f"grad/{n}"] = p.grad.numpy()
            model.eval()
            g["eval_logits"] = model(x).detach().numpy()
    print(f"wrote vision.h5 under {args.outdir} with torch {torch.__version__}")


if __name__ == "__main__":
    main()
