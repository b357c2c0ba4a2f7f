#!/usr/bin/env python3
"""make_pictures.py FOLDER COUNT [SEED]: COUNT JPEG and PNG files of ten classes, as Pillow writes them: 200 to 500 pixels, each hundredth
1500 to 3000; qualities, subsamplings, progressive, grey, palette, CMYK, EXIF 1 to 8. Each thousandth is broken: truncated, empty, a text.
Prints how many are broken."""
import os
import random
import sys

import numpy
from PIL import Image

folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
draw, numbers = random.Random(seed), numpy.random.default_rng(seed)
broken = 0
for i in range(count):
    label = i % 10
    size = (1500, 3000) if i % 100 == 99 else (200, 500)
    width, height = draw.randint(*size), draw.randint(*size)
    # Waves whose direction is the class, and a little noise.
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.float32)
    angle, period = label * numpy.pi / 10, draw.uniform(20, 60)
    wave = numpy.sin((x * numpy.cos(angle) + y * numpy.sin(angle)) * 2 * numpy.pi / period)
    colours = numpy.array([draw.uniform(40, 120) for _ in range(3)], numpy.float32)
    pixels = 128 + wave[..., None] * colours + numbers.normal(0, 8, (height, width, 1)).astype(numpy.float32)
    image = Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
    kind = draw.choice(["rgb"] * 6 + ["grey", "palette", "cmyk"])
    image = image.convert({"rgb": "RGB", "grey": "L", "palette": "P", "cmyk": "CMYK"}[kind])
    is_png = kind == "palette" or (kind != "cmyk" and draw.random() < 0.2)
    path = f"{folder}/wave{label}/{i:06}." + ("png" if is_png else draw.choice(["jpg", "JPEG"]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if is_png:
        image.save(path, "PNG", compress_level=1)
    else:
        exif = Image.Exif()
        if draw.random() < 0.3:
            exif[0x0112] = draw.randint(1, 8)
        image.save(path, "JPEG", quality=draw.randint(40, 98), progressive=draw.random() < 0.3, exif=exif.tobytes(),
                   **({} if kind == "grey" else {"subsampling": draw.choice([0, 1, 2])}))
    if i % 1000 == 500:
        broken += 1
        data = [open(path, "rb").read()[:500], b"", b"no picture at all"][broken % 3]
        with open(path, "wb") as file:
            file.write(data)
print(broken)
