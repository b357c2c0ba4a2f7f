#!/usr/bin/env python3
"""torchvision's resnet18, resnet50 and vit_b_16 with random weights, on random normalised images of 224 x 224.

Usage: torchvision_models.py LOCKSTEP FOLDER [MODEL...]      (needs torch, torchvision, safetensors and h5py)

For each model, and for its weights as .pth and as .safetensors: `lockstep convert` and `lockstep predict` give logits within
1e-4 max(1, m) of torchvision's, m their largest; `lockstep convert` back to .pth and .safetensors gives weights that torchvision
loads strictly, bit for bit. The last line has the figures; the exit code says whether all held. Files of 350 MB are made in FOLDER.
"""
import pathlib
import subprocess
import sys

import h5py
import torch
import torchvision
from safetensors.torch import load_file, save_file

CONFIGURATION = """[model]
{model}
in_channels = 3
classes = 1000
[data]
train = {data}
format = arrays
[train]
global_batch = 4
steps = 1
"""
RESNET = "name = resnet\nwidth = 64\nstem = 7x7\nblock = {}\nblocks = {}"
MODELS = {
    "resnet18": RESNET.format("basic", "2 2 2 2"),
    "resnet34": RESNET.format("basic", "3 4 6 3"),
    "resnet50": RESNET.format("bottleneck", "3 4 6 3"),
    "resnet101": RESNET.format("bottleneck", "3 4 23 3"),
    "vit_b_16": "name = vit\nimage_size = 224\npatch = 16\nlayers = 12\nheads = 12\nchannels = 768\nmlp_channels = 3072",
}


def with_random_weights(name, images):
    """Statistics of images, and heads that are not 0."""
    torch.manual_seed(45)
    model = getattr(torchvision.models, name)()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1 or parameter_name in ("class_token", "heads.head.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.train()(images)
        return model.eval(), model(images).numpy()


def main():
    lockstep, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    torch.manual_seed(1)
    images = torch.randn(4, 3, 224, 224)
    data, configuration = folder / "images.h5", folder / "run.ini"
    with h5py.File(data, "w") as file:
        file["x"] = images.numpy()

    def run(*arguments):
        subprocess.run([lockstep, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    figures, held = [], True
    for name in sys.argv[3:] or ("resnet18", "resnet50", "vit_b_16"):
        configuration.write_text(CONFIGURATION.format(model=MODELS[name], data=data))
        model, wanted = with_random_weights(name, images)
        state = model.state_dict()
        for suffix in (".pth", ".safetensors"):
            weights, checkpoint, out = folder / f"{name}{suffix}", folder / "checkpoint.h5", folder / "out.h5"
            torch.save(state, weights) if suffix == ".pth" else save_file(state, weights)
            run("convert", weights, checkpoint, "--config", configuration, "--force")
            run("predict", checkpoint, "--data", data, "--out", out, "--force")
            with h5py.File(out) as file:
                error = abs(file["output"][()] - wanted).max() / max(1, abs(wanted).max())
            back = folder / f"back{suffix}"
            run("convert", checkpoint, back, "--force")
            loaded = torch.load(back, weights_only=True) if suffix == ".pth" else load_file(back)
            other = getattr(torchvision.models, name)()
            other.load_state_dict(loaded, strict=True)
            same = all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), state.values(), strict=True))
            held = held and bool(error <= 1e-4) and same
            figures.append(f"{name}{suffix}: {error:.1e}, loads back {'the same' if same else 'DIFFERENT'}")
            for file in (weights, checkpoint, out, back):
                file.unlink()
    print("; ".join(figures))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
