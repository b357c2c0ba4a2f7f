#!/usr/bin/env bash
# A folder of pictures, from its files to a tuned model: the same bits from the folder and from a packed file, at any number of ranks and
# after a kill; eval, predict and a resume by the run's own classes; and one line for what is wrong with a folder.
source "$(dirname "$0")/../support/cli.sh"

# PNG files of two colours and shapes; `files FOLDER CLASS COUNT SEED` makes them.
cat >pictures.py <<'PY'
import os, random, struct, sys, zlib

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

def png(path, width, height, pixel):
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

folder, label, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
draw = random.Random(seed)
os.makedirs(f"{folder}/{label}", exist_ok=True)
for i in range(count):
    bright, period = draw.randrange(120, 255), draw.randrange(4, 9)
    stripes = (lambda x, y: x) if label == "standing" else (lambda x, y: y)
    png(f"{folder}/{label}/{i}.png", draw.randrange(24, 48), draw.randrange(24, 48),
        lambda x, y: [bright * (stripes(x, y) // period % 2), 40, draw.randrange(60)])
PY
for seed in 1 2; do
  folder=$([ $seed = 1 ] && echo train || echo val)
  for label in lying standing; do
    python3 pictures.py "$folder" "$label" $((seed == 1 ? 40 : 12)) "$seed$([ $label = lying ] && echo 7)" || fail "making pictures"
  done
done

cat >run.ini <<'INI'
[model]
name = resnet
blocks = 1 1
width = 8
in_channels = 3
classes = 2
[data]
train = train
eval = val
size = 16
augment = random_resized_crop flip color_jitter=0.3 random_erasing=0.25 mixup=0.2 cutmix=1
[train]
steps = 24
global_batch = 12
shards = 6
eval_every = 12
[optimizer]
lr = 0.01
[checkpoint]
every = 6
keep = 9
INI

train_to_end one 1
train_to_end three 3
expect_same one/checkpoints/step-000000024.h5 three/checkpoints/step-000000024.h5
grep -q 'lying/0.png' one/pictures.txt || fail "no list of pictures in the run: $(head -3 one/pictures.txt)"

ranks 2 prepare images train --out packed.h5 >out.log 2>&1 || fail "prepare images: $(cat out.log)"
train_to_end packed 2 data.train=packed.h5
expect_same one/checkpoints/step-000000024.h5 packed/checkpoints/step-000000024.h5
ranks 1 prepare images train --out alone.h5 >out.log 2>&1 || fail "prepare images on one rank: $(cat out.log)"
cmp packed.h5 alone.h5 || fail "another file on one rank"
ranks 2 prepare images train --out parts.h5 --files 3 >out.log 2>&1 || fail "three files: $(cat out.log)"
has_line '^parts-\*-of-00003.h5: 80 pictures, 2 classes$' <out.log || fail "what was written: $(cat out.log)"
train_to_end parts 2 'data.train=parts-*.h5'
expect_same one/checkpoints/step-000000024.h5 parts/checkpoints/step-000000024.h5
ends 3 "parts-0000[1-3]-of-00003.h5: is of an earlier preparation in 3 files" "$LOCKSTEP" prepare images train --out parts.h5 --files 2

# A resume: killed after 12 steps, continued on another number of ranks.
train_to_end stopped 2 train.steps=12
train_to_end stopped 1 train.steps=24
expect_same one/checkpoints/step-000000024.h5 stopped/checkpoints/step-000000024.h5

# eval and predict number classes as the run did.
mkdir some && cp -r val/standing some/
"$LOCKSTEP" eval one/checkpoints/step-000000024.h5 --data some --json >eval.json 2>err.log || fail "eval of one class: $(cat err.log)"
mkdir -p unknown/cow && cp val/lying/0.png unknown/cow/
ends 3 "unknown.*cow.*lying, standing" "$LOCKSTEP" eval one/checkpoints/step-000000024.h5 --data unknown
mkdir flat && cp val/lying/*.png flat/
"$LOCKSTEP" predict one/checkpoints/step-000000024.h5 --data flat --out flat.h5 >out.log 2>err.log || fail "predict: $(cat err.log)"
# Predictions are named by their files and classes, however the folder is written and at any number of ranks.
for count in 1 2 3; do
  ranks "$count" predict one/checkpoints/step-000000024.h5 --data val/ --out "val-$count.csv" >log 2>&1 || fail "predict on $count ranks: $(tail -n 3 log)"
  cmp val-1.csv "val-$count.csv" || fail "predictions of pictures: other bytes on $count ranks"
done
"$LOCKSTEP" predict one/checkpoints/step-000000024.h5 --data ./val --out val.h5 >log 2>&1 || fail "predict: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "predictions of pictures: $(head -n 3 val-1.csv)"
import csv, h5py, pathlib
rows = list(csv.DictReader(open("val-1.csv", newline="")))
names = sorted(str(path.relative_to("val")) for path in pathlib.Path("val").rglob("*.png"))
assert [row["row"] for row in rows] == names, rows[:3]
assert list(rows[0]) == ["row", "label", "probability_lying", "probability_standing"], rows[0]
with h5py.File("val.h5") as f:
    assert list(f["row"].asstr()[:]) == names and list(f["classes"].asstr()[:]) == ["lying", "standing"]
    assert list(f["classes"].asstr()[:][f["label"][:]]) == [row["label"] for row in rows]
PY

# Raw images of some classes get the numbers of the training file. A link that leads nowhere is left out.
ln -s nowhere some/standing/gone.png
numbers=()
for folder in train some; do
  "$LOCKSTEP" prepare images $folder --out $folder-raw.h5 --encode raw --size 16 --skip-bad "${numbers[@]}" >out.log 2>&1 || fail "raw $folder: $(cat out.log)"
  numbers=(--statistics train-raw.h5)
done
grep -q "left out: some/standing/gone.png" out.log || fail "a link that leads nowhere: $(cat out.log)"
[ "$(h5dump -d /y some-raw.h5 | grep -c '(0): 1, 1, 1')" = 1 ] || fail "class numbers: $(h5dump -d /y some-raw.h5)"
ends 3 "unknown: has the class .cow., which train-raw.h5 does not know; it knows lying, standing" \
  "$LOCKSTEP" prepare images unknown --out cow.h5 --encode raw --size 16 --statistics train-raw.h5
rm some/standing/gone.png

# A CSV file that labels the pictures of both folders; some lack a line. Another folder needs none: it has
# sub-folders that are classes, or is predicted.
(cd val && find . -name '*.png' -printf '%P,%h\n' | sed 's|,\./|,|') >labels.csv
printf '%s\n' lying/20.png,lying standing/20.png,standing >>labels.csv
train_to_end labelled 2 data.labels=labels.csv train.steps=2
mkdir -p other/standing && cp val/standing/0.png other/standing/other.png
for folder in some other; do
  "$LOCKSTEP" eval labelled/checkpoints/latest --data $folder --json >eval.json 2>err.log || fail "eval with labels: $(cat err.log)"
done
"$LOCKSTEP" predict labelled/checkpoints/latest --data flat --out flat2.h5 >out.log 2>err.log || fail "predict with labels: $(cat err.log)"
echo 'lying/nowhere.png,lying' >>labels.csv
refused 3 "labels.csv:[0-9]*: the folders have no picture .lying/nowhere.png" "$LOCKSTEP" train run.ini --run bad --set data.labels=labels.csv

# The jobs have torchvision's networks: as many parameters as its resnet50 and resnet18 have.
for job in 'imagenet-resnet50 25557032' 'finetune-images 11689512'; do
  "$LOCKSTEP" train "$LOCKSTEP_SOURCE_DIR/jobs/${job% *}.ini" --run job --dry-run --set data.train=train --set data.eval=val --set train.init= \
    --set model.classes=1000 --set data.size=64 --set train.global_batch=8 --set train.precision=fp32 >out.log 2>&1 || fail "$job: $(tail -n 2 out.log)"
  has_line "resnet \\(${job#* } parameters" <out.log || fail "$job: $(cat out.log)"
done

# Bad input: one line, exit 3 (or 2 for a key).
mkdir set && cp -r train val set/
refused 3 "data.train = set/train and data.eval = set/val" "$LOCKSTEP" train run.ini --run bad --set data.train=set
refused 3 "flat/0.png.*data.labels" "$LOCKSTEP" train run.ini --run bad --set data.train=flat
refused 2 "data.augment" "$LOCKSTEP" train run.ini --run bad --set data.augment=rotate
ln -s ../train train/loop
refused 3 "train/loop.*leads back" "$LOCKSTEP" train run.ini --run bad
rm train/loop
cp train/lying/0.png whole.png
head -c 300 whole.png >train/lying/0.png
ends 3 "train/lying/0.png" ranks 2 train run.ini --run broken --set data.augment=
"$LOCKSTEP" train run.ini --run skipped --set data.skip_bad=true --set train.steps=2 >out.log 2>err.log || fail "skip_bad: $(cat err.log)"
grep -q "left out: train/lying/0.png" out.log err.log || fail "skip_bad does not name the picture: $(cat out.log err.log)"
cp whole.png train/lying/0.png
cp whole.png train/lying/new.png
"$LOCKSTEP" train run.ini --run one --set train.steps=25 >out.log 2>err.log || fail "a resume with a new picture: $(cat err.log)"
grep -q "1 is new (.train/lying/new.png" out.log err.log || fail "the resume does not name the new picture: $(cat out.log err.log)"
cp train/lying/1.png val/lying/0.png
"$LOCKSTEP" train run.ini --run one --set train.steps=26 >out.log 2>err.log || fail "a resume with another picture: $(cat err.log)"
grep -q "1 is of another size or class (.val/lying/0.png" out.log err.log || fail "the resume does not name the changed picture: $(cat out.log err.log)"
finish
