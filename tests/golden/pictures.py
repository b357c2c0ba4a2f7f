#!/usr/bin/env python3
"""Write reference cases of pictures: what Pillow decodes, and what torchvision makes of pixels.

Usage: pictures.py OUTDIR [--seed N]      (needs pillow, torch, torchvision, numpy, h5py, and cjpeg of libjpeg-turbo)

One file comes out, pictures.h5; every group in it is one case, described wholly by its JSON attribute "case".

decode/NAME      case={"upright": [height, width]}      file (bytes)
                 rgb [H, W, 3]: ImageOps.exif_transpose(image).convert("RGB"); stored: the same without exif_transpose, where it differs
                 half, quarter, eighth: as stored, of JPEG, after draft() to that size
refuse/NAME      case={"says": a part of our message}      file: Pillow raises an error
resize/NAME      case={"part": [top, left, height, width], "size": [height, width], "window": [top, left, height, width]}
                 in, out: v2.functional.resized_crop(antialias=True), of which the window
colour/NAME      case={"brightness": f, "contrast": f, "saturation": f, "hue": f}      in, out: each other than 1 (hue: 0) is one step of v2
framing/sizes    case={"sizes": [[height, width, size, new height, new width, top, left], ...]}: v2.Resize(round(size * 8 / 7)), CenterCrop(size)
Pixels are uint8. Grey of 16 bits is not compared: Pillow makes all from 255 on white.
"""
import argparse
import io
import json
import pathlib
import struct
import subprocess
import zlib

import h5py
import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

Image.MAX_IMAGE_PIXELS = None


def pixels(rng, height, width, channels=3):
    """Waves, an edge and noise: no two places alike."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([127 + 90 * np.sin(x / (5 + 2 * c) + y / (9 + c)) for c in range(channels)], -1)
    waves[height // 3:height // 2, width // 4:width // 2] = rng.integers(0, 255, channels)
    return np.clip(waves + rng.normal(0, 6, waves.shape), 0, 255).astype(np.uint8)


def jpeg(array, **options):
    stream = io.BytesIO()
    image = Image.frombytes({1: "L", 3: "RGB", 4: "CMYK"}[array.shape[2]], array.shape[1::-1], array.tobytes())
    image.save(stream, "JPEG", **{"quality": 70, **options})
    return stream.getvalue()


def cjpeg(array, *arguments):
    ppm = b"P6 %d %d 255\n" % (array.shape[1], array.shape[0]) + array.tobytes()
    return subprocess.run(["cjpeg", "-quality", "70", *arguments], input=ppm, capture_output=True, check=True).stdout


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def rows(values, depth):
    """Each with its filter byte, 0."""
    text = b""
    for row in values.reshape(values.shape[0], -1):
        bits = "".join(format(v, f"0{depth}b") for v in row)
        bits += "0" * (-len(bits) % 8)
        text += b"\0" + bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
    return text


def png(rng, height, width, colour, depth, interlaced, before=b"", after=b""):
    values = rng.integers(0, 2 ** depth, (height, width, {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]))
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if interlaced else [(0, 0, 1, 1)]
    data = b"".join(rows(values[y::down, x::right], depth) for x, y, right, down in passes if values[y::down, x::right].size)
    if colour == 3:
        before += chunk(b"PLTE", rng.integers(0, 256, 3 * 2 ** depth, dtype=np.uint8).tobytes()) + chunk(b"tRNS", bytes([0, 128]))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(data)) + after + chunk(b"IEND", b"")


def exif(orientation, order=">"):
    return (b"MM" if order == ">" else b"II") + struct.pack(order + "HIHHHIHxxI", 42, 8, 1, 0x112, 3, 1, orientation, 0)


def files(rng):
    """NAME, bytes."""
    image = lambda channels=3: pixels(rng, 37, 45, channels)
    yield "jpeg_444", jpeg(image(), subsampling="4:4:4")
    yield "jpeg_422", jpeg(image(), subsampling="4:2:2")
    yield "jpeg_420", jpeg(image(), subsampling="4:2:0")
    for sampling in ("1x2", "4x1", "2x2,1x1,2x1"):
        yield "jpeg_" + sampling, cjpeg(image(), "-sample", sampling)
    yield "jpeg_progressive", jpeg(image(), progressive=True)
    yield "jpeg_restarts", cjpeg(image(), "-restart", "1")
    yield "jpeg_arithmetic", cjpeg(image(), "-arithmetic")
    yield "jpeg_grey", jpeg(image(1))
    yield "jpeg_grey_progressive", jpeg(image(1), progressive=True)
    yield "jpeg_rgb", jpeg(image(), keep_rgb=True)
    cmyk = jpeg(image(4))
    adobe = cmyk.index(b"Adobe")
    yield "jpeg_cmyk", cmyk
    yield "jpeg_ycck", cmyk[:adobe + 11] + b"\2" + cmyk[adobe + 12:]
    yield "jpeg_one_pixel", jpeg(pixels(rng, 1, 1))
    for orientation in range(1, 9):
        yield f"jpeg_exif_{orientation}", jpeg(pixels(rng, 19, 26), exif=b"Exif\0\0" + exif(orientation, "<>"[orientation % 2]))
    yield "jpeg_exif_9", jpeg(pixels(rng, 9, 16), exif=b"Exif\0\0" + exif(9))
    yield "jpeg_xmp", jpeg(pixels(rng, 9, 16), xmp=b'<x:xmpmeta><r tiff:Orientation="6"/></x:xmpmeta>')
    for colour, depths in ((0, (1, 2, 4, 8)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)), (6, (8, 16))):
        for depth in depths:
            kind = {0: "grey", 2: "rgb", 3: "palette", 4: "grey_alpha", 6: "rgb_alpha"}[colour]
            for interlaced in (False, True):
                yield f"png_{kind}_{depth}{'_interlaced' if interlaced else ''}", png(rng, 7, 11, colour, depth, interlaced)
    yield "png_gamma", png(rng, 7, 11, 2, 8, False, chunk(b"gAMA", struct.pack(">I", 100000)))
    yield "png_short_palette", short_palette(rng)
    yield "png_transparent_grey", png(rng, 7, 11, 0, 2, False, chunk(b"tRNS", struct.pack(">H", 1)))
    yield "png_transparent_rgb", png(rng, 7, 11, 2, 8, False, chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3)))
    yield "png_exif_6", png(rng, 7, 11, 2, 8, False, chunk(b"eXIf", exif(6)))
    yield "png_exif_after_pixels", png(rng, 7, 11, 2, 8, True, b"", chunk(b"eXIf", exif(5)))


def short_palette(rng):
    """Pixels of colours that the palette has not: black."""
    whole = png(rng, 7, 11, 3, 4, False)
    at = whole.index(b"PLTE") - 4
    end = at + 12 + 48
    return whole[:at] + chunk(b"PLTE", whole[at + 8:at + 8 + 15]) + whole[end:]


def refused(rng):
    """NAME, bytes, a part of our message."""
    whole = {"jpeg": jpeg(pixels(rng, 37, 45)), "progressive": jpeg(pixels(rng, 37, 45), progressive=True), "png": png(rng, 37, 45, 2, 8, False)}
    for kind, data in whole.items():
        for cut in (3, len(data) // 3, len(data) - 40):
            yield f"{kind}_first_{cut}_bytes", data[:cut], "is truncated" if cut > 3 or kind != "png" else "neither JPEG nor PNG"
    yield "png_changed_pixel", whole["png"][:200] + b"\0\1\2\3" + whole["png"][204:], "libpng cannot read it"
    data = jpeg(pixels(rng, 8, 8))
    frame, scan = data.index(b"\xff\xc0\x00\x11"), data.index(b"\xff\xda\x00\x0c")
    two = data[:frame + 2] + b"\x00\x0e" + data[frame + 4:frame + 9] + b"\x02" + data[frame + 10:frame + 16] + data[frame + 19:scan + 2]
    yield "jpeg_two_colours", two + b"\x00\x0a\x02" + data[scan + 5:scan + 9] + data[scan + 11:], "has 2 colour components"


def rgb(image):
    return np.array(image.convert("RGB"))


def tensor(array):
    return torch.from_numpy(array).permute(2, 0, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    with h5py.File(arguments.outdir / "pictures.h5", "w", libver=("v110", "v110")) as out:
        def add(name, case, **arrays):
            group = out.create_group(name)
            group.attrs["case"] = json.dumps(case)
            for key, array in arrays.items():
                array = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else np.ascontiguousarray(array)
                group.create_dataset(key, data=array, **({"compression": "gzip", "compression_opts": 9} if array.size > 400 else {}))

        for name, data in files(rng):
            stored = Image.open(io.BytesIO(data))
            upright = rgb(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
            arrays = {"rgb": upright}
            if (arrays["rgb"].shape != rgb(stored).shape) or (arrays["rgb"] != rgb(stored)).any():
                arrays["stored"] = rgb(stored)
            if name in ("jpeg_420", "jpeg_422", "jpeg_grey", "jpeg_progressive"):
                for key, reduction in (("half", 2), ("quarter", 4), ("eighth", 8)):
                    reduced = Image.open(io.BytesIO(data))
                    size = tuple(-(-extent // reduction) for extent in reduced.size)
                    reduced.draft(None, tuple(extent // reduction for extent in reduced.size))
                    assert reduced.size == size, (name, reduced.size, size)
                    arrays[key] = rgb(reduced)
            add(f"decode/{name}", {"upright": upright.shape[:2]}, file=data, **arrays)
        for name, data, says in refused(rng):
            try:
                Image.open(io.BytesIO(data)).load()
                raise SystemExit(f"Pillow takes {name}")
            except (OSError, SyntaxError):
                add(f"refuse/{name}", {"says": says}, file=data)

        for number in range(12):
            height, width = (int(v) for v in rng.integers(8, 60, 2))
            image = pixels(rng, height, width) if number % 2 else rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            part = [int(rng.integers(0, height // 2)), int(rng.integers(0, width // 2))]
            part += [int(rng.integers(1, height - part[0] + 1)), int(rng.integers(1, width - part[1] + 1))]
            size = [int(v) for v in rng.integers(1, 40, 2)]
            window = [size[0] // 4, size[1] // 3, size[0] - size[0] // 2, size[1] - size[1] // 2]
            made = v2.functional.resized_crop(tensor(image), *part, size, antialias=True).permute(1, 2, 0).numpy()
            made = made[window[0]:window[0] + window[2], window[1]:window[1] + window[3]]
            add(f"resize/{number}", {"part": part, "size": size, "window": window}, **{"in": image, "out": made})

        steps = {"brightness": v2.functional.adjust_brightness, "contrast": v2.functional.adjust_contrast,
                 "saturation": v2.functional.adjust_saturation, "hue": v2.functional.adjust_hue}
        for name, values in {"brightness": (0, 0.4, 1.7), "contrast": (0, 0.4, 1.7), "saturation": (0, 0.4, 1.7), "hue": (-0.5, -0.1, 0.07)}.items():
            for value in values:
                image = rng.integers(0, 256, (12, 17, 3), dtype=np.uint8)
                image[:4] = image[:4, :, :1]  # grey has no hue
                case = {"brightness": 1, "contrast": 1, "saturation": 1, "hue": 0, name: value}
                add(f"colour/{name}_{value}", case, **{"in": image, "out": steps[name](tensor(image), value).permute(1, 2, 0).numpy()})

        sizes = []
        for height, width, size in ((375, 500, 224), (500, 333, 224), (64, 64, 56), (301, 1000, 224), (37, 53, 32), (91, 90, 33)):
            places = torch.arange(height * width, dtype=torch.float32).reshape(1, height, width)  # nearest: the crop says where it is
            whole = v2.functional.resize(places, round(size * 8 / 7), v2.InterpolationMode.NEAREST)
            crop = v2.functional.center_crop(whole, size)
            windows = whole.unfold(1, size, 1).unfold(2, size, 1)[0]
            at = (windows == crop[0]).all(-1).all(-1).nonzero()
            sizes.append([height, width, size, whole.shape[1], whole.shape[2], *at[0].tolist()])
        add("framing/sizes", {"sizes": sizes})


main()
