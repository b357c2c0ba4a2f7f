"""Writes the files of torch.save that tests/checkpoint/pytorch.cpp reads: python3 pytorch_files.py FOLDER, with PyTorch.

Those in pytorch_files/ are of PyTorch 2.15. Row-major, the elements of every tensor are 1, 2, 3 ..., unless it says otherwise.
"""
import collections
import sys

import torch


def counting(shape, dtype=torch.float32):
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)


def tensors():
    """Every type, and every way in which a tensor lies in its storage."""
    named = collections.OrderedDict()
    for dtype in "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 uint16".split():
        named[f"types.{dtype}"] = counting((2, 3), getattr(torch, dtype))
    named["types.bool"] = torch.tensor([True, True, True])  # 1, 1, 1
    named["types.float8"] = torch.zeros(2, dtype=torch.float8_e4m3fn)
    named["scalar"] = counting(())
    named["empty"] = torch.zeros(0, 7)
    named["parameter"] = torch.nn.Parameter(counting((3,)))
    named["transposed"] = counting((2, 3)).t().contiguous().t()
    long = torch.zeros(20)
    long[3:7], long[8::2] = counting((4,)), counting((6,))
    named["part"], named["every_second"] = long[3:7], long[8::2]
    named["permuted"] = counting((2, 3, 4)).permute(2, 0, 1).contiguous().permute(1, 2, 0)
    named["expanded"] = counting((3,)).expand(2, 3)  # 1, 2, 3, 1, 2, 3
    named["tied"] = named["types.float32"]
    return named


def training():
    """What training scripts save: mappings in a mapping, and much that is not a tensor."""
    model = torch.nn.Linear(3, 2)
    model.weight.data, model.bias.data = counting((2, 3)), counting((2,))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    model.weight.data, model.bias.data = counting((2, 3)), counting((2,))
    ema = {name: value + 1 for name, value in model.state_dict().items()}  # 2, 3, 4 ...
    wrapped = collections.OrderedDict(("module." + name, value) for name, value in model.state_dict().items())
    return {"epoch": 3, "best": 0.5, "big": 10**30, "name": "linear", "size": torch.Size([2, 3]), "nothing": None, "flags": (True, [False]),
            "device": torch.device("cpu"), "dtype": torch.float16, "counts": collections.Counter(a=1), "loss": torch.tensor(0.25),
            "model": wrapped, "averages": {"0.9": ema}, "optimizer": optimizer.state_dict()}


folder = sys.argv[1]
torch.manual_seed(1)
torch.save(tensors(), f"{folder}/tensors.pt")
torch.save(training(), f"{folder}/training.pt")
small = {"weight": counting((2, 3)), "bias": counting((2,))}
for protocol in (3, 4, 5):
    torch.save(small, f"{folder}/protocol_{protocol}.pt", pickle_protocol=protocol)
torch.save(small, f"{folder}/old.pt", _use_new_zipfile_serialization=False)
torch.serialization.set_crc32_options(False)
torch.save(small, f"{folder}/no_checksums.pt")
