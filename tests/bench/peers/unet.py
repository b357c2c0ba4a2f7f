#!/usr/bin/env python3
"""The U-Net of guided-diffusion in PyTorch as one writes it today: fused attention, one SiLU of the embedding for all blocks.

Usage: unet.py --check DIFFUSION_H5      compares it with the cases unet/NAME of a file (tests/golden/diffusion.py)

Arguments and parameter names are UNetModel's.
"""
import argparse
import json
import math
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as missing:
    print(f"unet.py: {missing}", file=sys.stderr)
    sys.exit(77)


def norm(channels):
    return nn.GroupNorm(32, channels)


def conv(channels_in, channels_out, stride=1):
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1)


def zeroed(module):
    for p in module.parameters():
        nn.init.zeros_(p)
    return module


class Downsample(nn.Module):
    def __init__(self, channels, with_conv):
        super().__init__()
        self.op = conv(channels, channels, stride=2) if with_conv else nn.AvgPool2d(2)

    def forward(self, x, emb=None):
        return self.op(x)


class Upsample(nn.Module):
    def __init__(self, channels, with_conv):
        super().__init__()
        if with_conv:
            self.conv = conv(channels, channels)
        self.with_conv = with_conv

    def forward(self, x, emb=None):
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return self.conv(x) if self.with_conv else x


class ResBlock(nn.Module):
    def __init__(self, cfg, channels_in, channels_out, resize=None):
        super().__init__()
        self.scale_shift = cfg["use_scale_shift_norm"]
        self.resize = {"down": Downsample(channels_in, False), "up": Upsample(channels_in, False), None: None}[resize]
        self.in_layers = nn.Sequential(norm(channels_in), nn.SiLU(), conv(channels_in, channels_out))
        self.emb_layers = nn.Sequential(nn.Identity(), nn.Linear(4 * cfg["model_channels"], channels_out * (2 if self.scale_shift else 1)))
        self.out_layers = nn.Sequential(norm(channels_out), nn.SiLU(), nn.Dropout(cfg["dropout"]), zeroed(conv(channels_out, channels_out)))
        self.skip_connection = nn.Identity() if channels_in == channels_out else nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x, emb):
        h = F.silu(self.in_layers[0](x))
        if self.resize is not None:
            h, x = self.resize(h), self.resize(x)
        h = self.in_layers[2](h)
        time = self.emb_layers(emb)[:, :, None, None]
        if self.scale_shift:
            scale, shift = time.chunk(2, dim=1)
            h = self.out_layers[1:](torch.addcmul(shift, self.out_layers[0](h), 1 + scale))
        else:
            h = self.out_layers(h + time)
        return self.skip_connection(x) + h


class Attention(nn.Module):
    def __init__(self, cfg, channels, heads):
        super().__init__()
        self.heads = heads if cfg["num_head_channels"] == -1 else channels // cfg["num_head_channels"]
        self.new_order = cfg["use_new_attention_order"]
        self.norm = norm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = zeroed(nn.Conv1d(channels, channels, 1))

    def forward(self, x, emb=None):
        """Convolutions of one place are products over channels, which come last then, as the heads want them."""
        n, c, height, width = x.shape
        h = F.linear(self.norm(x).flatten(2).transpose(1, 2), self.qkv.weight[:, :, 0], self.qkv.bias)
        if self.new_order:
            q, k, v = h.reshape(n, -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = h.reshape(n, -1, self.heads, 3, c // self.heads).permute(3, 0, 2, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, c)
        return x + F.linear(h, self.proj_out.weight[:, :, 0], self.proj_out.bias).transpose(1, 2).reshape(n, c, height, width)


class Block(nn.Sequential):
    def forward(self, x, emb):
        for layer in self:
            x = layer(x) if isinstance(layer, nn.Conv2d) else layer(x, emb)
        return x


class UNet(nn.Module):
    DEFAULTS = dict(attention_resolutions=[], channel_mult=[1, 2, 4, 8], conv_resample=True, num_heads=1, num_heads_upsample=-1, num_head_channels=-1,
                    use_scale_shift_norm=False, resblock_updown=False, num_classes=None, use_new_attention_order=False, dropout=0)

    def __init__(self, **arguments):
        super().__init__()
        cfg = {**self.DEFAULTS, **arguments}
        width, mult = cfg["model_channels"], cfg["channel_mult"]
        heads, heads_up = cfg["num_heads"], cfg["num_heads"] if cfg["num_heads_upsample"] == -1 else cfg["num_heads_upsample"]
        self.register_buffer("frequencies", torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2)), persistent=False)
        self.time_embed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.label_emb = nn.Embedding(cfg["num_classes"], 4 * width) if cfg["num_classes"] else None
        ch = int(mult[0] * width)
        self.input_blocks = nn.ModuleList([Block(conv(cfg["in_channels"], ch))])
        skips = [ch]
        for level, m in enumerate(mult):
            for _ in range(cfg["num_res_blocks"]):
                layers = [ResBlock(cfg, ch, int(m * width))]
                ch = int(m * width)
                if 2**level in cfg["attention_resolutions"]:
                    layers.append(Attention(cfg, ch, heads))
                self.input_blocks.append(Block(*layers))
                skips.append(ch)
            if level + 1 < len(mult):
                self.input_blocks.append(Block(ResBlock(cfg, ch, ch, "down") if cfg["resblock_updown"] else Downsample(ch, cfg["conv_resample"])))
                skips.append(ch)
        self.middle_block = Block(ResBlock(cfg, ch, ch), Attention(cfg, ch, heads), ResBlock(cfg, ch, ch))
        self.output_blocks = nn.ModuleList()
        for level, m in reversed(list(enumerate(mult))):
            for i in range(cfg["num_res_blocks"] + 1):
                layers = [ResBlock(cfg, ch + skips.pop(), int(m * width))]
                ch = int(m * width)
                if 2**level in cfg["attention_resolutions"]:
                    layers.append(Attention(cfg, ch, heads_up))
                if level and i == cfg["num_res_blocks"]:
                    layers.append(ResBlock(cfg, ch, ch, "up") if cfg["resblock_updown"] else Upsample(ch, cfg["conv_resample"]))
                self.output_blocks.append(Block(*layers))
        self.out = nn.Sequential(norm(ch), nn.SiLU(), zeroed(conv(ch, cfg["out_channels"])))

    def forward(self, x, t, y=None):
        angles = t[:, None].float() * self.frequencies
        emb = self.time_embed(F.pad(torch.cat([torch.cos(angles), torch.sin(angles)], -1), (0, self.time_embed[0].in_features % 2)))
        if y is not None:
            emb = emb + self.label_emb(y)
        emb = F.silu(emb)
        h, skips = x, []
        for block in self.input_blocks:
            h = block(h, emb)
            skips.append(h)
        h = self.middle_block(h, emb)
        for block in self.output_blocks:
            h = block(torch.cat([h, skips.pop()], 1), emb)
        return self.out(h)


def check(path):
    """The greatest error of each case, in units of max(1, the greatest of the tensor)."""
    import h5py
    import numpy as np

    with h5py.File(path, "r") as file:
        for name, case in file["unet"].items():
            model = UNet(**json.loads(case.attrs["case"])["unet"]).eval()
            model.load_state_dict({key: torch.from_numpy(value[()]) for key, value in case["param"].items()})
            x = torch.from_numpy(case["x"][()]).requires_grad_()
            output = model(x, torch.from_numpy(case["t"][()]), torch.from_numpy(case["y"][()]) if "y" in case else None)
            output.backward(torch.from_numpy(case["grad_output"][()]))
            pairs = [(output, case["output"]), (x.grad, case["grad_x"])] + [(p.grad, case[f"grad_param/{key}"]) for key, p in model.named_parameters()]
            worst = max(float(np.abs(found.detach().numpy() - wanted[()]).max() / max(1, np.abs(wanted[()]).max())) for found, wanted in pairs)
            print(f"{name}: {worst:.1e}")
            assert worst < 1e-4, name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", required=True, metavar="DIFFUSION_H5")
    check(parser.parse_args().check)
