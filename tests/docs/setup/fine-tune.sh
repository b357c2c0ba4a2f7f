# Pictures of five classes, and a stand-in for torchvision's weights: a ResNet-18 for 1000 classes after one step.
python3 - <<'PYTHON'
import csv, gzip, os, struct, zlib
part = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
lines = [line for line in csv.reader(gzip.open("share/data/digits.csv.gz", "rt")) if int(line[-1]) < 5]
for number, (*values, digit) in enumerate(lines[:100]):
    pixels = b"".join(b"\0" + bytes(15 * int(value) for value in values[row:row + 8]) for row in range(0, 64, 8))
    folder = f"pictures/train/{digit}" if number < 64 else f"pictures/val/{digit}" if number < 84 else "new"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{number}.png", "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIB", 8, 8, 8) + bytes(4)) + part(b"IDAT", zlib.compress(pixels)) + part(b"IEND", b""))
PYTHON
lockstep train jobs/finetune-images.ini --run begin --set train.init= --set model.classes=1000 --set data.size=32 --set train.epochs=0.1
lockstep convert begin/checkpoints/latest resnet18.pt
mv resnet18.pt resnet18-f37072fd.pth
