#!/usr/bin/env bash
# lockstep convert: Python reads what it writes, value by value; what Python writes is loaded, GPT-2 with its own names and
# layouts too, and computes what NumPy computes; bad input and places that are taken end in one line.
source "$(dirname "$0")/../support/cli.sh"
cat >tensors.py <<'PY'
"""The .safetensors format in a dozen lines, and bfloat16 for NumPy."""
import json, struct
import h5py, numpy as np
types = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I64": np.int64, "BF16": np.uint16}

def read(path):
    data = open(path, "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = widen(values) if entry["dtype"] == "BF16" else values
    return tensors, metadata

def write(path, tensors):
    names = {np.dtype(type): name for name, type in types.items()}
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": names[values.dtype], "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values()))

def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)

def rounded(values):  # to bfloat16 and back: the nearer neighbour, the even one at a tie
    bits = values.astype(np.float32).view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16)).astype(np.uint32).view(np.float32)

def group(path, name):
    with h5py.File(path) as file:
        return {key: value[()] for key, value in file[name].items()}

def same(a, b):
    assert a.keys() == b.keys(), (sorted(a), sorted(b))
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert a[name].tobytes() == b[name].tobytes(), name
PY
python=/usr/bin/python3
$python -c 'import h5py, numpy' || fail "h5py is needed for this test"

digits digits.h5
small_resnet 'eval_fraction = 0.2' >run.ini
cat >>run.ini <<'INI'
[train]
steps = 4
global_batch = 16
shards = 2
[ema]
rates = 0.9
INI
ranks 2 train run.ini --run run >log 2>&1 || fail "training: $(tail -n 3 log)"
checkpoint=run/checkpoints/latest

# There: h5py and struct + json see the same names, types and bits.
ranks 2 convert $checkpoint model.safetensors >out.log 2>err.log || fail "convert on 2 ranks: $(cat err.log)"
[ "$(wc -l <out.log)" -eq 1 ] || fail "convert on 2 ranks says: $(cat out.log)"
"$LOCKSTEP" convert $checkpoint ema.safetensors --weights ema/0.9 >/dev/null || fail "convert --weights ema/0.9"
"$LOCKSTEP" convert $checkpoint bf16.safetensors --dtype bf16 >/dev/null || fail "convert --dtype bf16"
"$LOCKSTEP" convert $checkpoint bf16.h5 --dtype bf16 >/dev/null || fail "convert --dtype bf16 to .h5"
$python - <<'PY' || fail "what Python reads"
import numpy as np, tensors as t
model, ema = t.group("run/checkpoints/latest", "model"), t.group("run/checkpoints/latest", "ema/0.9")
read, metadata = t.read("model.safetensors")
t.same(read, model)
assert metadata["format"] == "pt" and metadata["lockstep.step"] == "4" and "name = resnet" in metadata["lockstep.config"]
assert any(values.dtype == np.int64 for values in model.values()), "no num_batches_tracked"
t.same(t.read("ema.safetensors")[0], {**model, **ema})
assert any(not np.array_equal(ema[name], model[name]) for name in ema)
expected = {name: t.rounded(values) if values.dtype == np.float32 else values for name, values in model.items()}
t.same(t.read("bf16.safetensors")[0], expected)
t.same(t.group("bf16.h5", "model"), expected)  # h5py shows bfloat16 as float32
PY

# bfloat16 is numbers to HDF5's own tools.
if command -v h5dump >/dev/null; then
  h5dump -d /model/fc.bias bf16.h5 >dump.log || fail "h5dump"
  grep -q 'DATATYPE  "/bfloat16"' dump.log || fail "h5dump does not name the type: $(cat dump.log)"
  $python - <<'PY' || fail "h5dump's numbers: $(cat dump.log)"
import re, numpy as np, tensors as t
text = open("dump.log").read().split("DATA {")[1].split("}")[0]
shown = [float(number) for line in text.splitlines() if ":" in line for number in line.split(":")[1].split(",") if number.strip()]
assert np.allclose(shown, t.group("bf16.h5", "model")["fc.bias"], rtol=1e-5, atol=1e-30), shown
PY
  h5ls bf16.h5/model | has_line '^fc.bias +Dataset \{10\}' || fail "h5ls: $(h5ls bf16.h5/model)"
else
  echo "not checked: h5dump and h5ls (not installed)"
fi

# And back: a checkpoint that every verb reads, and that evaluates to the same figures.
"$LOCKSTEP" convert model.safetensors back.h5 >/dev/null || fail "convert back"
"$LOCKSTEP" convert $checkpoint direct.h5 >/dev/null || fail "convert .h5 to .h5"
expect_same back.h5 direct.h5
for file in back.h5 bf16.h5; do
  "$LOCKSTEP" verify $file >/dev/null || fail "verify $file"
  "$LOCKSTEP" inspect $file | has_line "fc.bias" || fail "inspect $file"
done
"$LOCKSTEP" inspect bf16.h5 | has_line bfloat16 || fail "inspect does not show bfloat16"
"$LOCKSTEP" convert model.safetensors fitted.h5 --config run.ini >/dev/null || fail "convert --config"
"$LOCKSTEP" inspect fitted.h5 >log
grep -q "^step 4, " log || fail "convert --config forgets the step: $(head -n 2 log)"

# A checkpoint says what its weights mean, and so does what it becomes: no training data are needed.
mkdir away
cp "$(readlink -f $checkpoint)" away/run.h5
"$LOCKSTEP" convert $checkpoint away/copy.h5 >/dev/null || fail "convert to away/"
"$LOCKSTEP" convert $checkpoint away/average.h5 --weights ema/0.9 --config run.ini >/dev/null || fail "convert --weights --config to away/"
for words in "copy.h5 model" "average.h5 ema/0.9"; do
  (cd away && "$LOCKSTEP" eval "${words%% *}" --data ../digits.h5 --json) >converted.json 2>log || fail "eval $words: $(cat log)"
  [ ! -s log ] || fail "eval of a converted ${words%% *}: $(cat log)"
  (cd away && "$LOCKSTEP" eval run.h5 --weights "${words#* }" --data ../digits.h5 --json) >whole.json || fail "eval run.h5"
  $python -c '
import json
a, b = (json.load(open(name + ".json")) for name in ("converted", "whole"))
assert a["loss"] == b["loss"] and a["accuracy"] == b["accuracy"], (a, b)' || fail "$words evaluates to something else"
done

# Where a checkpoint is needed, a .safetensors file is told apart.
for words in inspect eval generate verify "diff back.h5"; do
  # shellcheck disable=SC2086
  "$LOCKSTEP" $words model.safetensors >out.log 2>&1
  code=$?
  [ "$code" -eq 3 ] || { [ "$words" = "diff back.h5" ] && [ "$code" -eq 2 ]; } || fail "$words of a .safetensors file: exit $code"
  grep -q "model.safetensors: is a .safetensors file; convert it to a checkpoint: lockstep convert" out.log || fail "$words: $(cat out.log)"
done
for file in $checkpoint back.h5; do "$LOCKSTEP" eval "$file" --data digits.h5 --json >"eval-$(basename "$file").json" || fail "eval $file"; done
cmp -s eval-latest.json eval-back.h5.json || fail "back.h5 evaluates to $(cat eval-back.h5.json)"
"$LOCKSTEP" eval bf16.h5 --data digits.h5 --json >bf16.json || fail "eval bf16.h5"

# A run may start from any of them.
for file in model.safetensors back.h5 bf16.safetensors; do
  ranks 2 train run.ini --run "init-$file" --set train.init=$file --set train.steps=1 >log 2>&1 || fail "train.init=$file: $(tail -n 2 log)"
  grep -q "a new run from the weights of $file" log || fail "train.init=$file does not say so"
done
grep -q "digests" log && fail "a word on digests where nobody asked to verify: $(cat log)"
sed 's/^steps/init = nowhere.h5\nsteps/' run.ini >init.ini
ranks 2 train init.ini --run resumed --resume back.h5 --set train.steps=1 >log 2>&1 || fail "--resume with train.init: $(tail -n 2 log)"
[ "$(grep -c "the run starts from back.h5, not from train.init = nowhere.h5" log)" -eq 1 ] || fail "--resume says nothing of train.init: $(cat log)"
expect_same init-model.safetensors/checkpoints/latest init-back.h5/checkpoints/latest
grep -v '^width' run.ini | sed 's/^blocks.*/blocks = 1\nwidth = 8/; s/^classes.*/classes = 11/' >other.ini
"$LOCKSTEP" train other.ini --run strict --set train.init=model.safetensors >log 2>&1
[ $? -eq 3 ] || fail "a classifier of other classes took the weights: $(tail -n 2 log)"
grep -q "fc.weight is \[10, 8\] in the file, \[11, 8\] here, fc.bias is \[10\] in the file, \[11\] here" log || fail "strict: $(tail -n 2 log)"
"$LOCKSTEP" train other.ini --run partial --set train.init=model.safetensors --set train.steps=1 --set checkpoint.load=partial >log 2>&1 ||
  fail "checkpoint.load=partial: $(tail -n 2 log)"
grep -q "warning: model.safetensors: wrong shape: fc.weight is \[10, 8\]" log || fail "partial: $(cat log)"

# GPT-2 as Hugging Face stores it, against NumPy.
cat >gpt.ini <<'INI'
[model]
name = gpt
layers = 2
heads = 2
channels = 16
context = 12
vocab = 50
[data]
train = text.h5
[train]
steps = 1
global_batch = 2
shards = 1
INI
$python - <<'PY' || fail "making a GPT-2"
import h5py, numpy as np, tensors as t
rng = np.random.default_rng(5)
layers, heads, c, context, vocab = 2, 2, 16, 12, 50
normal = lambda *shape: rng.normal(0, 0.3, shape).astype(np.float32)
w = {"wte.weight": normal(vocab, c), "wpe.weight": normal(context, c)}
for i in range(layers):
    h = f"h.{i}."
    for name, rows, columns in [("attn.c_attn", c, 3 * c), ("attn.c_proj", c, c), ("mlp.c_fc", c, 4 * c), ("mlp.c_proj", 4 * c, c)]:
        w[h + name + ".weight"], w[h + name + ".bias"] = normal(rows, columns), normal(columns)
    for name in ("ln_1", "ln_2"):
        w[h + name + ".weight"], w[h + name + ".bias"] = 1 + normal(c), normal(c)
    w[h + "attn.bias"] = np.tril(np.ones((1, 1, context, context), np.float32))
w["ln_f.weight"], w["ln_f.bias"] = 1 + normal(c), normal(c)
t.write("gpt2.safetensors", w)
t.write("wide.safetensors", {"transformer." + name: values.astype(np.float64) for name, values in w.items()})
tokens = rng.integers(0, vocab, 4 * context + 1).astype(np.uint16)
with h5py.File("text.h5", "w") as file:
    file["tokens"] = tokens
    file["tokens"].attrs["vocabulary"] = vocab

def norm(x, name):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]
def conv1d(x, name): return x @ w[name + ".weight"] + w[name + ".bias"]
def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)
def block(x, h):
    q, k, v = (part.reshape(context, heads, c // heads).swapaxes(0, 1) for part in np.split(conv1d(norm(x, h + "ln_1"), h + "attn.c_attn"), 3, -1))
    scores = np.where(np.tril(np.ones((context, context), bool)), q @ k.swapaxes(1, 2) / np.sqrt(c // heads), -np.inf)
    x = x + conv1d((softmax(scores) @ v).swapaxes(0, 1).reshape(context, c), h + "attn.c_proj")
    y = conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")
    return x + conv1d(0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), h + "mlp.c_proj")
losses = []
w = {name: values.astype(np.float64) for name, values in w.items()}
for begin in range(0, 4 * context, context):
    x = w["wte.weight"][tokens[begin : begin + context]] + w["wpe.weight"]
    for i in range(layers): x = block(x, f"h.{i}.")
    p = softmax(norm(x, "ln_f") @ w["wte.weight"].T)
    losses.append(-np.log(p[np.arange(context), tokens[begin + 1 : begin + context + 1]]).mean())
open("numpy.txt", "w").write(repr(float(np.mean(losses))))
PY
"$LOCKSTEP" convert gpt2.safetensors gpt2.h5 --config gpt.ini >/dev/null 2>log || fail "GPT-2: $(cat log)"
grep -q "8 matrices stored \[in, out\] transposed; 2 masks ignored" log || fail "GPT-2 is read without a word: $(cat log)"
"$LOCKSTEP" eval gpt2.h5 --data text.h5 --json >gpt2.json || fail "eval gpt2.h5"
$python -c '
import json
ours, numpy = json.load(open("gpt2.json"))["loss"], float(open("numpy.txt").read())
print("GPT-2: loss", ours, "NumPy", numpy)
assert abs(ours - numpy) < 1e-5 * numpy, (ours, numpy)' || fail "GPT-2 computes something else"
"$LOCKSTEP" train gpt.ini --run gpt --set train.init=gpt2.safetensors >log 2>&1 || fail "train.init=gpt2.safetensors: $(tail -n 2 log)"

# And back: the same tensors under the same names, also of a run that began there, whatever is done in between.
"$LOCKSTEP" convert gpt2.h5 copy.h5 >/dev/null || fail "a copy of gpt2.h5"
"$LOCKSTEP" convert copy.h5 again.safetensors >/dev/null || fail "convert to Hugging Face's layout"
"$LOCKSTEP" train gpt.ini --run gpt --set train.init=gpt2.safetensors --set train.steps=2 >log 2>&1 || fail "extending the run: $(tail -n 2 log)"
"$LOCKSTEP" convert gpt/checkpoints/latest trained.safetensors >/dev/null || fail "convert of a trained GPT-2"
"$LOCKSTEP" convert gpt2.h5 own.safetensors --layout lockstep >/dev/null || fail "--layout lockstep"
"$LOCKSTEP" convert trained.safetensors trained.h5 --config gpt.ini >/dev/null || fail "convert of a trained GPT-2, back"
$python - <<'PY' || fail "Hugging Face's layout is not what it was"
import numpy as np, tensors as t
first, again, trained = (t.read(name + ".safetensors")[0] for name in ("gpt2", "again", "trained"))
t.same(first, again)
assert {name: values.shape for name, values in first.items()} == {name: values.shape for name, values in trained.items()}
assert not np.array_equal(first["wte.weight"], trained["wte.weight"]), "it was not trained"
own = t.read("own.safetensors")[0]
t.same(own, t.group("gpt2.h5", "model"))
assert np.array_equal(own["transformer.h.1.attn.c_proj.weight"], first["h.1.attn.c_proj.weight"].T)
t.same(t.group("trained.h5", "model"), t.group("gpt/checkpoints/latest", "model"))
PY

# A file of torch.save: read as PyTorch 2.15 wrote it, and written back with the same names, types and bits. PyTorch itself is not asked
# here; what zipfile and a pickle machine that knows tensors only find is.
made=$LOCKSTEP_SOURCE_DIR/tests/checkpoint/pytorch_files
cat >torch_files.py <<'PY'
"""Files of torch.save without PyTorch: read by Python's own zipfile and pickle."""
import pickle, zipfile
import numpy as np
types = {"FloatStorage": np.float32, "DoubleStorage": np.float64, "HalfStorage": np.float16, "LongStorage": np.int64, "ByteStorage": np.uint8}

def read(path):
    archive = zipfile.ZipFile(path)
    assert archive.testzip() is None, "a checksum is wrong"
    (root,) = {name.split("/")[0] for name in archive.namelist()}
    def rebuild(storage, offset, shape, strides, *_):
        return np.lib.stride_tricks.as_strided(storage[offset:], shape, [stride * storage.itemsize for stride in strides])
    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            return {"_rebuild_tensor_v2": rebuild, "OrderedDict": dict}.get(name) or types[name]
        def persistent_load(self, key):
            values = np.frombuffer(archive.read(f"{root}/data/{key[2]}"), key[1])
            assert key[0] == "storage" and key[3] == "cpu" and key[4] == values.size, key
            return values
    return Reader(archive.open(f"{root}/data.pkl")).load()

PY
"$LOCKSTEP" convert $checkpoint model.pt >/dev/null || fail "convert to .pt"
"$LOCKSTEP" convert $checkpoint ema.pt --weights ema/0.9 >/dev/null || fail "convert --weights ema/0.9 to .pt"
"$LOCKSTEP" convert model.pt from_pt.h5 >/dev/null || fail "convert of .pt"
expect_same from_pt.h5 back.h5
"$LOCKSTEP" inspect from_pt.h5 | has_line "^step 4, " || fail "a .pt forgets the step"
"$LOCKSTEP" eval model.pt >out.log 2>&1
[ $? -eq 3 ] || fail "eval of a .pt: $(cat out.log)"
grep -q "model.pt: is a file of torch.save; convert it to a checkpoint: lockstep convert model.pt OUT.h5 --config" out.log || fail "eval: $(cat out.log)"
ranks 2 train run.ini --run init-model.pt --set train.init=model.pt --set train.steps=1 >log 2>&1 || fail "train.init=model.pt: $(tail -n 2 log)"
expect_same init-model.pt/checkpoints/latest init-back.h5/checkpoints/latest
"$LOCKSTEP" convert "$made/training.pt" training.h5 >out.log 2>err.log || fail "convert of training.pt: $(cat err.log)"
grep -q 'training.pt: reads the tensors under "model"; --key selects those under "/", "averages/0.9"' err.log || fail "training.pt: $(cat err.log)"
"$LOCKSTEP" convert "$made/training.pt" average.h5 --key averages/0.9 >/dev/null 2>err.log || fail "convert --key: $(cat err.log)"
"$LOCKSTEP" convert training.h5 both.h5 --ema 0.9=average.h5 >out.log || fail "convert --ema"
grep -q "both.h5: 2 tensors, 8 elements, and ema/0.9" out.log || fail "convert --ema: $(cat out.log)"
"$LOCKSTEP" convert gpt2.h5 gpt2.pt >/dev/null || fail "convert of a GPT-2 to .pt"
$python - <<'PY' || fail "what Python finds in files of torch.save"
import numpy as np, tensors as t, torch_files as f
model, ema = t.group("run/checkpoints/latest", "model"), t.group("run/checkpoints/latest", "ema/0.9")
t.same(f.read("model.pt"), model)
t.same(f.read("ema.pt"), {**model, **ema})
t.same(f.read("gpt2.pt"), t.read("gpt2.safetensors")[0])  # with Hugging Face's names and matrices
w, b = np.arange(1, 7, dtype=np.float32).reshape(2, 3), np.arange(1, 3, dtype=np.float32)
t.same(t.group("training.h5", "model"), {"module.weight": w, "module.bias": b})
t.same(t.group("both.h5", "model"), {"module.weight": w, "module.bias": b})
t.same(t.group("both.h5", "ema/0.9"), {"module.weight": w + 1, "module.bias": b + 1})
PY

# config.json beside the weights says what they do not.
mkdir hub
cp gpt2.safetensors hub/model.safetensors
echo '{"model_type": "gpt2", "n_head": 2, "n_layer": 2, "n_embd": 16, "n_positions": 12, "vocab_size": 50}' >hub/config.json
"$LOCKSTEP" convert hub/model.safetensors hub.h5 --config gpt.ini >/dev/null 2>log || fail "a config.json that fits: $(cat log)"
sed -i 's/"n_head": 2/"n_head": 4/' hub/config.json
refused 2 'hub/config.json: n_head is "4", but model.heads is 2' \
  ranks 1 train gpt.ini --run hub-run --set train.init=hub/model.safetensors
"$LOCKSTEP" convert wide.safetensors wide.h5 --config gpt.ini --dtype float32 >/dev/null 2>log || fail "float64: $(cat log)"
expect_same wide.h5 gpt2.h5

sed 's/^heads.*/heads = 4/' gpt.ini >four.ini
for file in gpt2.h5 gpt2.pt own.safetensors trained.safetensors gpt/checkpoints/latest; do
  refused 2 "$file: its weights were trained with heads = 2, not 4 .model.name = gpt.: they fit" \
    ranks 2 train four.ini --run heads-run --set train.shards=2 --resume $file
done
"$LOCKSTEP" train gpt.ini --run dropout --set model.dropout=0.1 --set train.init=gpt2.h5 >log 2>&1 || fail "another dropout: $(tail -n 2 log)"
"$LOCKSTEP" train four.ini --run partly --set checkpoint.load=partial --set train.init=gpt2.h5 >log 2>&1 ||
  fail "checkpoint.load=partial with other heads: $(tail -n 2 log)"
grep -q "warning: gpt2.h5: its weights were trained with heads = 2, not 4" log || fail "partial, other heads: $(cat log)"

# not_made CODE TEXT ARGUMENTS...: one line, nothing written, in no folder.
not_made() {
  local before
  before=$(find . | sort)
  ends "$1" "$2" "$LOCKSTEP" convert "${@:3}"
  [ "$before" = "$(find . | sort)" ] || fail "convert ${*:3} left something behind: $(find .)"
}
not_made 2 "the input file and the output file are needed" model.safetensors
not_made 2 "back.h5: already exists; --force replaces it" model.safetensors back.h5
not_made 2 "is an input, which is never replaced" $checkpoint "$(readlink -f $checkpoint)" --force
not_made 2 "must be model, ema/RATE" back.h5 a.safetensors --weights optimizer
not_made 2 "hub/config.json: n_head is \"4\", but model.heads is 2" hub/model.safetensors a.h5 --config gpt.ini
not_made 2 '"keras" is not one of: lockstep, huggingface' back.h5 a.safetensors --layout keras
not_made 2 "layout applies to .safetensors and .pt files and to folders only, but a.h5 is a" gpt2.h5 a.h5 --layout huggingface
not_made 2 "gpt2.safetensors: its matrices have the layout of Hugging Face's GPT-2; give --config" gpt2.safetensors a.safetensors --layout lockstep
not_made 2 "must be float32 or bf16" back.h5 a.safetensors --dtype int8
not_made 3 "has no weights 'ema/0.5', but model, ema/0.9" $checkpoint a.safetensors --weights ema/0.5
not_made 2 "gpt2.h5: its weights were trained with heads = 2, not 4" gpt2.h5 a.h5 --config four.ini
printf 'GGUF\003\0\0\0and so on' >model.gguf
not_made 3 "model.gguf: is a GGUF file, which is not supported" model.gguf a.h5
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 548\n' >pointer.safetensors
not_made 3 "pointer.safetensors: is a pointer of Git LFS; git lfs pull" pointer.safetensors a.h5
not_made 3 "gone.h5" gone.h5 a.safetensors
not_made 3 "has no weights 'ema/0.9': a file of torch.save has one set" "$made/training.pt" a.h5 --weights ema/0.9
not_made 2 "back.h5: is not a file of torch.save, which a key needs" back.h5 a.h5 --key model
not_made 2 "ema 0.9: must be RATE=FILE" back.h5 a.h5 --ema 0.9
not_made 2 "ema: a.pt can hold one set of weights only; write a .h5 file" back.h5 a.pt --ema 0.9=back.h5
not_made 2 "the weights ema/0.9 exist already" back.h5 a.h5 --ema 0.9=back.h5 --ema 0.90=back.h5
not_made 3 "gpt2.h5: is not an average of the weights in back.h5: missing: conv1.weight" back.h5 a.h5 --ema 0.9=gpt2.h5
"$LOCKSTEP" convert model.safetensors back.h5 --force >/dev/null || fail "--force"
finish
