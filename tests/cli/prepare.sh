#!/usr/bin/env bash
# Data files: the file that h5py writes in docs/data.md trains, as do files of other programs; tables of all kinds become data files, and
# an error in one is named by file, line and column.
source "$(dirname "$0")/../support/cli.sh"

# trains DATA [SETTING...]: two steps of a small network.
trains() {
  local data=$1
  shift
  rm -rf run
  small_mlp 'steps = 2' 'global_batch = 8' 'shards = 2' >mlp.ini
  "$LOCKSTEP" train mlp.ini --run run --set "data.train=$data" "$@" >log 2>&1 || fail "training on $data: $(tail -n 2 log)"
}

mkdir run

# The first Python lines of docs/data.md make a file that trains.
# shellcheck disable=SC2016  # backquotes of Markdown
sed -n '/^```python$/,/^```$/p' "$LOCKSTEP_SOURCE_DIR/docs/data.md" | awk '/^```python$/ { block = ""; next }
  /^```$/ { if (block ~ /my-images.h5/) printf "%s", block; next } { block = block $0 "\n" }' >page.py
[ -s page.py ] || fail "docs/data.md has no lines of Python that write my-images.h5"
[ "$(wc -l <page.py)" -le 10 ] || fail "docs/data.md: the lines of Python are $(wc -l <page.py)"
/usr/bin/python3 page.py || fail "the lines of Python in docs/data.md"
trains my-images.h5 --set "model.sizes=3072 16 10"

# So do the lines of the manual, once there is something to write.
sed -n '/^In Python/,/^\.fi/p' "$LOCKSTEP_SOURCE_DIR/share/man/lockstep.1.in" | sed '1,/^\.nf/d; /^\.fi/d; s/\\-/-/g' >man.py
cp "$LOCKSTEP_SOURCE_DIR/share/data/words.txt" book.txt
[ "$(grep -c . man.py)" -ge 9 ] || fail "the manual has these lines of Python only: $(cat man.py)"
rm -rf my-images.h5 my-text.h5 run
{
  echo 'import numpy as np; images = np.arange(40 * 64, dtype=np.uint8).reshape(40, 1, 8, 8); labels = np.arange(40) % 10'
  echo 'tokens = np.frombuffer(open("book.txt", "rb").read(), np.uint8).astype(np.uint16)'
  cat man.py
} >both.py
/usr/bin/python3 both.py || fail "the lines of Python of the manual"
trains my-images.h5
rm -rf run
"$LOCKSTEP" train "$LOCKSTEP_SOURCE_DIR/jobs/gpt-text.ini" --run run --set data.train=my-text.h5 --set model.channels=32 \
  --set model.layers=1 --set model.context=32 --set train.steps=2 --set train.eval_every=0 >log 2>&1 ||
  fail "training on my-text.h5 of the manual: $(tail -n 2 log)"

# Types, chunks, tables.
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
x = np.arange(40 * 64).reshape(40, 1, 8, 8) % 251
y = np.arange(40) % 10
def put(name, x, y, **options):
    with h5py.File(name, "w") as f:
        f.create_dataset("x", data=x, **options); f.create_dataset("y", data=y)
put("plain.h5", x.astype(np.float32), y)
put("labels.h5", x.astype(np.float32), y.astype(np.int32))
put("bytes.h5", x.astype(np.float32), y.astype(np.uint8))
put("double.h5", x.astype(np.float64), y)
put("half.h5", x.astype(np.float16), y)
put("words.h5", x.astype(np.int16), y)
put("big.h5", x.astype(">f8"), y.astype(">i4"))
put("gzip.h5", x.astype(np.float32), y, chunks=(7, 1, 8, 8), compression="gzip")
put("table.h5", x.astype(np.float64).reshape(40, 64), y)
put("infinite.h5", np.where(x == 250, 1e300, x), y)
put("beyond.h5", x.astype(np.float32), y.astype(np.uint64) + (1 << 63))
put("mean.h5", x.astype(np.uint8), y)
with h5py.File("mean.h5", "a") as f:
    f["x"].attrs["mean"] = [1e308]; f["x"].attrs["std"] = [1.0]
put("colour.h5", np.zeros((20, 3, 8, 8), np.uint8), np.zeros(20, np.int64))
for name, source in ("virtual.h5", "plain.h5"), ("missing.h5", "gone.h5"):
    layout = h5py.VirtualLayout((40, 1, 8, 8), np.float32)
    layout[:] = h5py.VirtualSource(source, "x", (40, 1, 8, 8))
    with h5py.File(name, "w") as f:
        f.create_virtual_dataset("x", layout, fillvalue=0); f["y"] = y
# So large that what is stored of it matters, in a compressed file and through a virtual dataset.
with h5py.File("zeros.h5", "w") as f:
    f.create_dataset("x", data=np.zeros((4000, 1, 64, 64), np.uint8), chunks=(1000, 1, 64, 64), compression="gzip")
    f["y"] = np.arange(4000) % 10
layout = h5py.VirtualLayout((4000, 1, 64, 64), np.uint8)
layout[:] = h5py.VirtualSource("zeros.h5", "x", (4000, 1, 64, 64))
with h5py.File("large.h5", "w") as f:
    f.create_virtual_dataset("x", layout); f["y"] = np.arange(4000) % 10
PY
trains plain.h5
cp run/checkpoints/latest plain-checkpoint.h5
for name in labels bytes double half words big gzip table virtual; do
  settings=()
  [ "$name" != table ] || settings=(--set "model.sizes=64 32 10")
  trains "$name.h5" "${settings[@]}"
  expect_same plain-checkpoint.h5 run/checkpoints/latest
done
for name in zeros large; do trains "$name.h5" --set "model.sizes=4096 4 10"; done
rm -rf run
mkdir run  # a run whose data turns out to be bad is there already
refused 3 "infinite.h5: row [0-9]+ of /x has values in channel 0 that are not finite" timeout 120 "$LOCKSTEP" train mlp.ini --run run --set data.train=infinite.h5 \
  --set train.global_batch=40
rm -rf run
refused 3 "beyond.h5: label 0 of /y is 9223372036854775807 or more" timeout 120 "$LOCKSTEP" train mlp.ini --run run --set data.train=beyond.h5
refused 3 "missing.h5: /x is virtual, and one of its sources cannot be read: gone.h5: cannot open: No such file" \
  timeout 120 "$LOCKSTEP" train mlp.ini --run run --set data.train=missing.h5
refused 3 "mean.h5: /x: mean 1e\+308 of channel 0 cannot normalise" timeout 120 "$LOCKSTEP" train mlp.ini --run run --set data.train=mean.h5
refused 3 "colour.h5: samples of x are \[3, 8, 8\], but those of plain.h5 are \[1, 8, 8\]" \
  timeout 120 "$LOCKSTEP" train mlp.ini --run run --set data.train=plain.h5 --set data.eval=colour.h5
trains plain.h5
refused 3 "colour.h5: field x has 3 channels, but run/checkpoints/latest learned from samples of 1" \
  timeout 120 "$LOCKSTEP" eval run/checkpoints/latest --data colour.h5

# Chunks that were never written are refused, and the command that the error names writes them.
/usr/bin/python3 -c '
import h5py, numpy as np
with h5py.File("holes.h5", "w") as f:
    f.create_dataset("x", (40, 1, 8, 8), "f4", chunks=(10, 1, 8, 8))[:20] = 1; f["y"] = np.arange(40) % 10'
rm -rf run
refused 3 "holes.h5: /x has 4 chunks, of which 2 were never written: .*h5repack -f GZIP=1 OLD.h5 NEW.h5" \
  timeout 120 "$LOCKSTEP" train mlp.ini --run run --set data.train=holes.h5
if command -v h5repack >log; then
  h5repack -f GZIP=1 holes.h5 filled.h5 || fail "h5repack"
  trains filled.h5
fi

# Tables with headings, names, other separators and quotes.
cat >iris.csv <<'CSV'
"length";"width, cm";"species"
5.1;3.5;setosa
7.0;3.2;"versicolor"
6.3;3.3;virginica
CSV
"$LOCKSTEP" prepare csv iris.csv --out iris.h5 --label species >out.log 2>err.log || fail "prepare csv iris.csv: $(cat err.log)"
grep -qx "classes: 0 setosa, 1 versicolor, 2 virginica" out.log || fail "the classes are not told: $(cat out.log)"
grep -Eq "samples of 2 numbers \(float32\), 3 classes" out.log || fail "a table: $(cat out.log)"
grep -q "iris.csv:1 is a heading" err.log || fail "the heading is not told: $(cat err.log)"
tr ';' '\t' <iris.csv >iris.tsv
"$LOCKSTEP" prepare csv iris.tsv --separator tab --label 3 --out tabs.h5 >out.log 2>&1 || fail "prepare csv --separator: $(cat out.log)"
cmp -s iris.h5 tabs.h5 || fail "tabs make another file than semicolons"
refused 2 "--separator x: must be comma, semicolon or tab" timeout 120 "$LOCKSTEP" prepare csv iris.csv --separator x --out no.h5
printf '5.0;3.0;virginica\n' >held-out.csv
"$LOCKSTEP" prepare csv held-out.csv --statistics iris.h5 --out held-out.h5 >out.log 2>&1 || fail "prepare --statistics: $(cat out.log)"
/usr/bin/python3 -c 'import h5py; assert list(h5py.File("held-out.h5")["y"]) == [2]' || fail "a name has another number in the held-out data"

# Memory does not grow with the input: 200 MB of CIFAR records, plain and compressed, within 64 MiB beside what the program takes anyway.
/usr/bin/python3 -c '
import random
record = bytes([3]) + random.Random(0).randbytes(3072)
open("cifar.bin", "wb").write(record * 65000)
open("one.bin", "wb").write(record)'
gzip -1 -k cifar.bin
peak() {
  /usr/bin/python3 -c '
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$LOCKSTEP" prepare cifar "$1" --out "$1.h5"
}
base=$(peak one.bin)
for file in cifar.bin cifar.bin.gz; do
  used=$(peak "$file")
  echo "$file: $used KiB, $base KiB for one image"
  [ "$((used - base))" -lt 65536 ] || fail "prepare cifar $file: $used KiB of memory, $base KiB for one image"
done
cmp -s cifar.bin.h5 cifar.bin.gz.h5 || fail "a compressed input makes another file"
finish
