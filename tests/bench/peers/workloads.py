"""The standard workloads of `lockstep bench step` in PyTorch, and their training step: what ddp.py and gpu.py time and check.

Models are tests/golden/generate.py's, parameter for parameter, unet.py's, and residual networks for large images. What PyTorch has as a
faster way to the same numbers is used: fused attention, fused optimizers, ReLUs in place, the loss in the compiled function.
"""
import ctypes
import pathlib
import sys
import types
from typing import Callable, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    import h5py
except ImportError:  # a GPU's machine may lack it: only checks and generate.py's own files need it
    h5py = sys.modules["h5py"] = types.ModuleType("h5py")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "golden"))
import generate
import unet


def keep_freed_memory():
    """glibc gives large blocks back when they are freed, so that each step has the page faults of the first one. It need not; nor do the
    jemalloc and tcmalloc that PyTorch's tuning guide recommends for CPUs."""
    trim_threshold, mmap_max = -1, -4  # of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(trim_threshold, -1)
    mallopt(mmap_max, 0)


class FusedAttention(nn.Module):
    """generate.Attention where all heads attend causally, by PyTorch's own kernel."""

    def __init__(self, heads, causal=True):
        super().__init__()
        assert causal
        self.heads = heads

    def forward(self, q, k, v):
        b, t, c = q.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)


if hasattr(F, "scaled_dot_product_attention"):
    generate.Attention = FusedAttention


class BasicBlock(generate.BasicBlock):
    """The same in place, as torchvision's."""

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        y += self.downsample(x) if hasattr(self, "downsample") else x
        return F.relu(y, inplace=True)


generate.BasicBlock = BasicBlock


class Bottleneck(nn.Module):
    def __init__(self, i, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        if stride != 1 or i != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(i, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True)))
        y += self.downsample(x) if hasattr(self, "downsample") else x
        return F.relu(y, inplace=True)


class LargeImageResNet(generate.ResNet):
    """generate.ResNet with the stem for large images; resnet50 has bottlenecks."""

    def __init__(self, blocks, bottleneck=False):
        super().__init__(3, [] if bottleneck else blocks, 64, 1000)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        if bottleneck:
            i = 64
            for k, n in enumerate(blocks):
                stage = [Bottleneck(i if j == 0 else 256 << k, 64 << k, 2 if k > 0 and j == 0 else 1) for j in range(n)]
                setattr(self, f"layer{k + 1}", nn.Sequential(*stage))
                i = 256 << k
            self.stages, self.fc = len(blocks), nn.Linear(i, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for k in range(self.stages):
            x = getattr(self, f"layer{k + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Classification(nn.Module):
    """The loss of a batch, with its model: one module, so that both are compiled together."""

    def __init__(self, model, device):
        super().__init__()
        self.model = model

    def draw(self, x, y):
        return ()

    def forward(self, x, y):
        logits = self.model(x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), y.reshape(-1))


ALPHAS_CUMPROD = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)  # of the linear schedule of 1,000 steps


class Diffusion(nn.Module):
    """The same for the squared error of an estimate of images' noise."""

    def __init__(self, model, device):
        super().__init__()
        self.model = model
        # No buffer, which DistributedDataParallel would send at each step.
        self.tables = torch.stack([ALPHAS_CUMPROD.sqrt(), (1 - ALPHAS_CUMPROD).sqrt()]).float().to(device)

    def draw(self, x):
        return torch.randn_like(x), torch.randint(len(ALPHAS_CUMPROD), (len(x),), device=x.device)

    def forward(self, x, noise, t):
        of_image, of_noise = self.tables[:, t].reshape(2, -1, 1, 1, 1)
        return F.mse_loss(self.model(of_image * x + of_noise * noise, t.float()).float(), noise)


def fused(kind, groups, **options):
    try:
        return kind(groups, **options, fused=True)
    except (TypeError, RuntimeError):  # older PyTorch: not at all, or on GPUs only
        return kind(groups, **options)


def adamw(lr, weight_decay=0.1):
    return lambda params: fused(torch.optim.AdamW, [{"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
                                                    {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}], lr=lr)


def sgd(lr, momentum=0.0):
    return lambda params: fused(torch.optim.SGD, params, lr=lr, momentum=momentum)


class Workload(NamedTuple):
    samples: int  # a rank
    model: Callable
    optimizer: Callable  # of a list of parameters
    batch: Callable  # of so many samples
    objective: Callable = Classification


def text(vocab, context):
    return lambda n: (torch.randint(vocab, (n, context)), torch.randint(vocab, (n, context)))


def images(size, classes=None):
    return lambda n: (torch.randn(n, 3, size, size),) + (() if classes is None else (torch.randint(classes, (n,)),))


WORKLOADS = {
    "gpt-cpu": Workload(8, lambda: generate.Gpt(vocab=256, context=128, layers=4, heads=4, channels=256), adamw(1e-3), text(256, 128)),
    "resnet-cpu": Workload(32, lambda: generate.ResNet(in_channels=3, blocks=[2, 2, 2], width=32, classes=10), sgd(0.01, 0.9),
                           images(32, 10)),
    "mlp-wide": Workload(32, lambda: generate.Mlp([1024, 4096, 4096, 1024]), sgd(0.01),
                         lambda n: (torch.randn(n, 1024), torch.randint(1024, (n,)))),
    "unet-cpu": Workload(8, lambda: unet.UNet(image_size=32, in_channels=3, model_channels=64, out_channels=3, num_res_blocks=2,
                                              attention_resolutions=[2], channel_mult=[1, 2, 2], num_heads=4, use_scale_shift_norm=True),
                         adamw(1e-4, 0.0), images(32), Diffusion),
    "gpt-gpu": Workload(16, lambda: generate.Gpt(vocab=50304, context=1024, layers=12, heads=12, channels=768), adamw(6e-4),
                        text(50304, 1024)),
    "resnet-gpu": Workload(128, lambda: LargeImageResNet([2, 2, 2, 2]), sgd(0.1, 0.9), images(224, 1000)),
    "resnet50-gpu": Workload(128, lambda: LargeImageResNet([3, 4, 6, 3], bottleneck=True), sgd(0.1, 0.9), images(224, 1000)),
    # the networks of jobs/diffusion-cifar.ini and of improved-diffusion's recipe for ImageNet at 64 x 64
    "unet-gpu": Workload(128, lambda: unet.UNet(image_size=32, in_channels=3, model_channels=128, out_channels=3, num_res_blocks=3,
                                                attention_resolutions=[2, 4], channel_mult=[1, 2, 2, 2], num_heads=4,
                                                use_scale_shift_norm=True, dropout=0.3), adamw(1e-4, 0.0), images(32), Diffusion),
    "unet64-gpu": Workload(64, lambda: unet.UNet(image_size=64, in_channels=3, model_channels=128, out_channels=3, num_res_blocks=3,
                                                 attention_resolutions=[4, 8], channel_mult=[1, 2, 3, 4], num_heads=4,
                                                 use_scale_shift_norm=True), adamw(1e-4, 0.0), images(64), Diffusion),
}


class Trainer:
    """The steps of a workload; images are channels last. mode: of torch.compile; None: eager. loss_outside: the model alone is compiled.
    wrap: what several ranks make of the module of model and loss."""

    def __init__(self, name, device="cpu", precision="fp32", mode=None, loss_outside=False, wrap=lambda module: module):
        self.workload = workload = WORKLOADS[name]
        self.device, self.bf16 = device, precision == "bf16"
        torch.manual_seed(1)
        self.model = workload.model().to(device, memory_format=torch.channels_last)
        self.optimizer = workload.optimizer(list(self.model.parameters()))
        self.objective = workload.objective(self.model, device)
        self.loss = wrap(self.objective)
        if mode and loss_outside:
            self.objective.model = torch.compile(self.model, mode=mode)
        elif mode:
            self.loss = torch.compile(self.loss, mode=mode)
        self.batch = ()

    def make_batch(self, seed):
        torch.manual_seed(seed)
        self.batch = [self.placed(field) for field in self.workload.batch(self.workload.samples)]

    def placed(self, field):
        return field.to(self.device, memory_format=torch.channels_last if field.ndim == 4 else torch.contiguous_format)

    def step(self, drawn=None):
        """drawn: the noise and times of a diffusion; None: they are drawn, outside of the compiled function."""
        drawn = self.objective.draw(*self.batch) if drawn is None else drawn
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(*self.batch, *drawn)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def workload_of(path):
    with h5py.File(path, "r") as file:
        return file["workload"][()].decode()


def check(trainer, path):
    """Raises AssertionError unless the steps of a file of peer_case, without dropout, have its losses and leave its parameters."""
    for part in trainer.model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    with h5py.File(path, "r") as file:
        params = dict(trainer.model.named_parameters())
        assert params.keys() == file["param"].keys(), f"other parameters: {sorted(params.keys() ^ file['param'].keys())}"
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(torch.from_numpy(file[f"param/{name}"][()]))
        trainer.batch = [trainer.placed(torch.from_numpy(file[field][()])) for field in ("x", "y") if field in file]
        losses = file["loss"][()]
        for step, wanted in enumerate(file["squares"]):
            drawn = [trainer.placed(torch.from_numpy(file[field][step])) for field in ("noise", "t") if field in file]
            loss, squares = float(trainer.step(drawn)), sum(float(p.detach().double().square().sum()) for p in params.values())
            # Of the first loss: two images are soon learned by heart, and what is left of the loss magnifies rounding.
            assert abs(loss - losses[step]) <= 1e-4 * losses[0], f"step {step}: the loss is {loss:.8g} instead of {losses[step]:.8g}"
            assert abs(squares / wanted - 1) <= 1e-6, f"step {step}: the parameters' squares are {squares:.10g} instead of {wanted:.10g}"
        print(f"{workload_of(path)}: the same losses: {', '.join(f'{loss:.6f}' for loss in losses)}")
