"""Lockstep's resnet, unet (without a time) and cosmoflow as PyTorch modules: the same names, the same numbers."""
import torch
from torch import nn
import torch.nn.functional as F


def of(dims, name):
    """of(3, "Conv") is nn.Conv3d."""
    return getattr(nn, f"{name}{dims}d")


class CosmoFlow(nn.Module):
    def __init__(self, image_size, in_channels, outputs, width=32, layers=5, dropout=0.5):
        super().__init__()
        channels = [in_channels] + [width << i for i in range(layers)]
        self.conv = nn.ModuleList(nn.Conv3d(a, b, 3, padding=1) for a, b in zip(channels, channels[1:]))
        self.fc = nn.ModuleList([nn.Linear(channels[-1] * (image_size >> layers) ** 3, 128), nn.Linear(128, 64),
                                 nn.Linear(64, outputs)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        for conv in self.conv:
            x = F.max_pool3d(F.leaky_relu(conv(x), 0.3), 2)
        x = x.flatten(1)
        for fc in self.fc[:-1]:
            x = self.dropout(F.leaky_relu(fc(x), 0.3))
        return 1.2 * torch.tanh(self.fc[-1](x))


class Block(nn.Module):
    def __init__(self, a, width, stride, dims, bottleneck):
        super().__init__()
        Conv, Norm = of(dims, "Conv"), of(dims, "BatchNorm")
        b = 4 * width if bottleneck else width
        self.conv1 = Conv(a, width, 1 if bottleneck else 3, 1 if bottleneck else stride, 0 if bottleneck else 1, bias=False)
        self.bn1 = Norm(width)
        self.conv2 = Conv(width, width, 3, stride if bottleneck else 1, 1, bias=False)
        self.bn2 = Norm(width)
        if bottleneck:
            self.conv3, self.bn3 = Conv(width, b, 1, bias=False), Norm(b)
        if stride != 1 or a != b:
            self.downsample = nn.Sequential(Conv(a, b, 1, stride, bias=False), Norm(b))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if hasattr(self, "conv3"):
            y = self.bn3(self.conv3(F.relu(y)))
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet(nn.Module):
    def __init__(self, in_channels, blocks, width, classes, dims=2, block="basic", stem="3x3"):
        super().__init__()
        bottleneck, large = block == "bottleneck", stem == "7x7"
        self.conv1 = of(dims, "Conv")(in_channels, width, *((7, 2, 3) if large else (3, 1, 1)), bias=False)
        self.bn1 = of(dims, "BatchNorm")(width)
        self.pool = of(dims, "MaxPool")(3, 2, 1) if large else nn.Identity()
        channels = width
        for k, count in enumerate(blocks):
            layer = []
            for j in range(count):
                layer.append(Block(channels, width << k, 2 if k > 0 and j == 0 else 1, dims, bottleneck))
                channels = (width << k) * (4 if bottleneck else 1)
            setattr(self, f"layer{k + 1}", nn.Sequential(*layer))
        self.layers, self.fc = len(blocks), nn.Linear(channels, classes)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for k in range(self.layers):
            x = getattr(self, f"layer{k + 1}")(x)
        return self.fc(x.flatten(2).mean(2))


class ResBlock(nn.Module):
    def __init__(self, a, b, dims, groups, dropout=0.0, resize=None):
        super().__init__()
        Conv = of(dims, "Conv")
        self.in_layers = nn.Sequential(nn.GroupNorm(groups, a), nn.SiLU(), Conv(a, b, 3, padding=1))
        self.out_layers = nn.Sequential(nn.GroupNorm(groups, b), nn.SiLU(), nn.Dropout(dropout), Conv(b, b, 3, padding=1))
        self.skip_connection = Conv(a, b, 1) if a != b else nn.Identity()
        self.resize = resize or nn.Identity()

    def forward(self, x):
        h = self.in_layers[2](self.resize(self.in_layers[:2](x)))
        return self.skip_connection(self.resize(x)) + self.out_layers(h)


class Attention(nn.Module):
    def __init__(self, channels, heads, groups):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(groups, channels)
        self.qkv, self.proj_out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        n, c = x.shape[:2]
        qkv = self.qkv(self.norm(x).reshape(n, c, -1)).reshape(n, self.heads, 3, c // self.heads, -1)
        q, k, v = qkv.transpose(3, 4).unbind(2)
        h = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(n, c, -1)
        return x + self.proj_out(h).reshape(x.shape)


class Down(nn.Module):
    def __init__(self, channels, dims):
        super().__init__()
        self.op = of(dims, "Conv")(channels, channels, 3, 2, 1)

    def forward(self, x):
        return self.op(x)


class Up(nn.Module):
    def __init__(self, channels, dims):
        super().__init__()
        self.conv = of(dims, "Conv")(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2))


class UNet(nn.Module):
    def __init__(self, in_channels, out_channels, model_channels, num_res_blocks, channel_mult=(1, 2, 4, 8), dims=2,
                 attention_resolutions=(), middle_attention=True, num_heads=1, norm_groups=32, resblock_updown=False, dropout=0.0):
        super().__init__()
        def block(a, b, resize=None): return ResBlock(a, b, dims, norm_groups, dropout, resize)
        def attention(c): return Attention(c, num_heads, norm_groups)
        def down(c): return block(c, c, of(dims, "AvgPool")(2)) if resblock_updown else Down(c, dims)
        def up(c): return block(c, c, nn.Upsample(scale_factor=2)) if resblock_updown else Up(c, dims)
        def attended(level, c): return [attention(c)] if 1 << level in attention_resolutions else []
        widths = [int(m * model_channels) for m in channel_mult]
        c = widths[0]
        inputs, skips, outputs = [[of(dims, "Conv")(in_channels, c, 3, padding=1)]], [c], []
        for level, width in enumerate(widths):
            for _ in range(num_res_blocks):
                inputs.append([block(c, width)] + attended(level, width))
                c = width
                skips.append(c)
            if level + 1 < len(widths):
                inputs.append([down(c)])
                skips.append(c)
        self.middle_block = nn.Sequential(block(c, c), *([attention(c)] if middle_attention else []), block(c, c))
        for level, width in reversed(list(enumerate(widths))):
            for i in range(num_res_blocks + 1):
                outputs.append([block(c + skips.pop(), width)] + attended(level, width))
                c = width
            if level > 0:
                outputs[-1].append(up(c))
        self.input_blocks = nn.ModuleList(nn.Sequential(*layers) for layers in inputs)
        self.output_blocks = nn.ModuleList(nn.Sequential(*layers) for layers in outputs)
        self.out = nn.Sequential(nn.GroupNorm(norm_groups, c), nn.SiLU(), of(dims, "Conv")(c, out_channels, 3, padding=1))

    def forward(self, x):
        skips = []
        for block in self.input_blocks:
            x = block(x)
            skips.append(x)
        x = self.middle_block(x)
        for block in self.output_blocks:
            x = block(torch.cat([x, skips.pop()], 1))
        return self.out(x)
