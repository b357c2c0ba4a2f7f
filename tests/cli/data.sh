#!/usr/bin/env bash
# data.fields, data.normalize and mixtures in the trainer: any HDF5 file of rows, the same bits at any number of ranks, a normalisation
# that the first start finds, the checkpoint keeps and eval uses; and what is wrong with a file (3) or a configuration (2).
source "$(dirname "$0")/../support/cli.sh"

/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np

def write(path, rows, shift, seed, attributes=False):
    random = np.random.default_rng(seed)
    x = random.normal(5, 3, (rows, 12)) * np.arange(1, 13) + shift
    with h5py.File(path, "w") as f:
        density = f.create_dataset("fields/density", data=x)
        if attributes:
            density.attrs["mean"] = np.arange(12.0)
            density.attrs["std"] = np.full(12, 2.0)
        f["fields/kind"] = (x.sum(1) > np.median(x.sum(1))).astype(np.int16)
        f["fields/short"] = np.zeros(rows - 1)
        f["names"] = "a text"

write("a.h5", 300, 100, 1)
write("b.h5", 90, 100, 2)
write("c.h5", 50, 300, 3)
write("attributes.h5", 60, 0, 4, True)
with h5py.File("plain.h5", "w") as f:  # no images: y is not of integers
    f["x"] = np.ones((30, 12), np.float32)
    f["y"] = np.ones(30, np.float32)
PY
cat >run.ini <<'INI'
[model]
name = mlp
sizes = 12 8 2
[data]
train = a.h5*0.7 b.h5*0.3
eval_fraction = 0.2
fields = x:/fields/density y:/fields/kind
normalize = x
[train]
steps = 12
global_batch = 24
shards = 3
eval_every = 6
[ema]
sigma_rel = 0.05 0.1
[checkpoint]
every = 3
keep = 9
INI

# The numbers of a run's /data/x, a line each.
numbers() {
  /usr/bin/python3 - "$1" <<'PY'
import h5py, sys
with h5py.File(sys.argv[1]) as f:
    for name in "mean", "deviation":
        print(name, *(repr(float(v)) for v in f["data/x/" + name][:]))
PY
}

# The same bits at any number of ranks, and after a stop.
for count in 1 2 3; do
  ranks "$count" train run.ini --run "run-$count" >log 2>&1 || fail "$count ranks: $(tail -n 3 log)"
done
expect_same run-1/checkpoints/latest run-2/checkpoints/latest
expect_same run-1/checkpoints/latest run-3/checkpoints/latest
grep eval_loss run-1/metrics.jsonl | sed 's/"time":"[^"]*"//' >one
grep eval_loss run-3/metrics.jsonl | sed 's/"time":"[^"]*"//' >three
cmp one three || fail "evaluations differ between 1 and 3 ranks"
ranks 2 train run.ini --run stopped --set train.steps=6 >log 2>&1 || fail "half: $(tail -n 3 log)"
ranks 3 train run.ini --run stopped >log 2>&1 || fail "the other half: $(tail -n 3 log)"
expect_same run-1/checkpoints/latest stopped/checkpoints/latest

# The numbers are those of the training samples, as NumPy finds them.
ranks 2 train run.ini --run whole --set data.train="a.h5 b.h5" --set data.eval_fraction=0 --set data.eval=c.h5 >log 2>&1 ||
  fail "whole: $(tail -n 3 log)"
/usr/bin/python3 - <<'PY' || fail "mean and deviation are not NumPy's"
import h5py, numpy as np
x = np.concatenate([h5py.File(p)["fields/density"][:] for p in ("a.h5", "b.h5")])
with h5py.File("whole/checkpoints/latest") as f:
    np.testing.assert_allclose(f["data/x/mean"][:], x.mean(0), rtol=1e-13)
    np.testing.assert_allclose(f["data/x/deviation"][:], x.std(0), rtol=1e-12)
PY
ranks 1 train run.ini --run attributes --set data.train=attributes.h5 >log 2>&1 || fail "attributes: $(tail -n 3 log)"
numbers attributes/checkpoints/latest | has_line "^mean 0.0 1.0 2.0 .* 11.0$" || fail "the file's own mean is not used"
numbers attributes/checkpoints/latest | has_line "^deviation 2.0 2.0 2.0" || fail "the file's own deviation is not used"

# Evaluation uses them, also of EMA weights made after training; other names of the fields are given by --fields.
"$LOCKSTEP" eval run-1/checkpoints/latest --data c.h5 --json >before.json || fail "eval --data"
"$LOCKSTEP" ema run-1 --sigma-rel 0.07 --out ema.h5 >log 2>&1 || fail "ema: $(cat log)"
[ "$(numbers ema.h5)" = "$(numbers run-1/checkpoints/latest)" ] || fail "ema.h5 lacks the normalisation"
"$LOCKSTEP" eval ema.h5 --data c.h5 >log 2>&1 || fail "eval of ema.h5: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "renaming"
import h5py
with h5py.File("c.h5") as old, h5py.File("renamed.h5", "w") as new:
    new["d"], new["k"] = old["fields/density"][:], old["fields/kind"][:]
PY
"$LOCKSTEP" eval run-1/checkpoints/latest --data renamed.h5 --fields "x:d y:k" --json >after.json || fail "eval --fields"
cmp before.json after.json || fail "the same samples under other names evaluate to $(cat after.json)"

# A resume keeps the run's numbers even if the file has changed.
numbers run-1/checkpoints/latest >numbers.then
/usr/bin/python3 -c '
import h5py
with h5py.File("a.h5", "a") as f: f["fields/density"][...] *= 3'
ranks 2 train run.ini --run run-1 --set train.steps=15 >log 2>&1 || fail "resume: $(tail -n 3 log)"
numbers run-1/checkpoints/latest | cmp numbers.then - || fail "a resume has changed the normalisation"

# no_run CODE TEXT ARGUMENTS...
no_run() {
  refused "$1" "$2" ranks 2 train run.ini --run none "${@:3}"
}
no_run 3 "a.h5: /fields/flow is missing; the file has fields, names" --set data.fields="x:/fields/flow"
no_run 3 "a.h5: /fields/density has 300 rows and /fields/short has 299" --set data.fields="x:/fields/density y:/fields/short"
no_run 3 "has no field '?x" --set data.fields="density:/fields/density y:/fields/kind" --set data.normalize=
no_run 2 "data.normalize: a.h5 has no field \"z\"; it has x, y" --set data.normalize="x z"
no_run 2 "data.normalize: names x twice" --set data.normalize="x x"
no_run 2 "data.fields: ':/x' names no field" --set data.fields=":/x"
no_run 2 "data.fields.*is a key of arrays, but data.format is images; remove it" --set data.format=images
no_run 2 "data.format: .*picture" --set data.format=picture --set data.fields= --set data.normalize=
no_run 2 "data.train: a.h5\*0: the weight of a file is a number above 0" --set data.train="a.h5*0"
no_run 3 "data.train: a.h5\*x: No such file" --set data.train="a.h5*x"
no_run 3 "attributes.h5: samples have|is missing|float32 \[\]" --set data.train="a.h5*1 plain.h5*1" --set data.fields="x:/fields/density"

# Numbers that are not finite. In held-out data: where they are is said before the run begins.
/usr/bin/python3 - <<'PY' || fail "numbers that are not finite"
import h5py, numpy as np
for name, row, bad in ("hole", 41, np.nan), ("peak", 77, np.inf), ("whole", 0, 1):
    x = np.random.default_rng(5).normal(size=(120, 12)).astype("f4")
    x[row, 3] = bad
    with h5py.File(name + ".h5", "w") as f:
        f["x"], f["y"] = x, (x[:, 0] > 0).astype("i4")
PY
plain=(--set data.train=whole.h5 --set data.fields= --set data.format=arrays --set data.eval_fraction=0)
for count in 1 3; do
  refused 3 '^lockstep: (rank [01]: )?hole.h5: row 41 of /x has values in channel 3 that are not finite as float32 or once normalised by mean' \
    ranks "$count" train run.ini --run none "${plain[@]}" --set data.eval=hole.h5
  rm -rf shown
  ranks "$count" train run.ini --run shown "${plain[@]}" --set data.normalize= --set data.eval=hole.h5 >log 2>&1 || fail "held-out: $(cat log)"
  has_line 'warning: held-out data: hole.h5: row 41 of field x holds nan' <log || fail "a hole in held-out data: $(cat log)"
done
ranks 1 train run.ini --run clean "${plain[@]}" --set data.normalize= --set data.eval=whole.h5 >log 2>&1 || fail "clean: $(cat log)"
has_line 'held-out' <log && fail "a warning of nothing: $(cat log)"
# In training data: the mean of what is normalised, or the loss of the step that reads it.
no_run 3 'hole.h5: row 41 of field x holds nan: the field cannot be normalised' "${plain[@]}" --set data.train=hole.h5
for count in 1 3; do
  rm -rf begun
  ends 4 'step [0-9]+: the loss is nan; peak.h5: row 77 of field x holds inf, in a sample of step [0-9]+: correct' \
    ranks "$count" train run.ini --run begun "${plain[@]}" --set data.normalize= --set data.train=peak.h5
done
ends 4 'step ([0-9]+): .* is not finite; peak.h5: row 77 of field x holds inf, in a sample of step \1: correct' \
  ranks 2 train run.ini --run saved "${plain[@]}" --set data.normalize= --set data.train=peak.h5 --set checkpoint.every=1

for setting in data.fields="x:/fields/density" data.normalize= data.format=arrays; do
  refused 2 "${setting%%=*}: the run has" ranks 2 train run.ini --run run-2 --set train.steps=15 --set "$setting"
done
# data.shuffle = false: the first step takes the first rows of the file, whatever the others are.
/usr/bin/python3 - <<'PY' || fail "files in order"
import h5py
with h5py.File("c.h5") as old:
    for name, factor in (("order.h5", 1), ("changed.h5", 5)):
        with h5py.File(name, "w") as f:
            x, f["fields/kind"] = old["fields/density"][:], old["fields/kind"][:]
            x[24:] *= factor
            f["fields/density"] = x
PY
for name in order changed; do
  for shuffle in true false; do
    ranks 2 train run.ini --run "$name-$shuffle" --set data.train="$name.h5" --set data.eval_fraction=0 --set data.normalize= \
      --set train.steps=1 --set train.eval_every=0 --set data.shuffle="$shuffle" >log 2>&1 || fail "$name: $(tail -n 3 log)"
  done
done
expect_same order-false/checkpoints/latest changed-false/checkpoints/latest
refused 2 'data.shuffle: the run has' ranks 2 train run.ini --run order-true --set data.train=order.h5 --set data.eval_fraction=0 \
  --set data.normalize= --set train.steps=2 --set train.eval_every=0 --set data.shuffle=false
"$LOCKSTEP" diff order-true/checkpoints/latest changed-true/checkpoints/latest >log 2>&1 && fail "shuffled rows are the same"
no_run 2 'data.shuffle = false: takes samples in the order of the data' --set data.shuffle=false
# A file of more than data.memory (its elements take no space on disk) is read while training. Cut by another program, it would give
# zeros.
/usr/bin/python3 - <<'PY' || fail "a large file"
import h5py, numpy as np
with h5py.File("large.h5", "w") as f:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    h5py.h5d.create(f.id, b"x", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((34000, 1, 256, 256)), properties)
    f["y"] = np.arange(34000) % 10
PY
printf '%s\n' '[model]' 'name = mlp' 'sizes = 65536 2 10' '[data]' 'train = large.h5' 'memory = 1GB' '[train]' "steps = $endless_steps" \
  'global_batch = 2' 'shards = 2' '[log]' 'every = 1' >large.ini
# shellcheck disable=SC2086  # mpirun's flags are several words
timeout "$patience_s" $LOCKSTEP_MPIRUN -n 2 "$LOCKSTEP" train large.ini --run large >out.log 2>err.log </dev/null &
run=$!
until_says "step [0-9]*/$endless_steps" err.log "$run"
truncate -s 1000000000 large.h5
wait "$run"
code=$?
[ "$code" -eq 3 ] || fail "a file that is cut while it is read: exit $code: $(tail -n 2 err.log)"
one_error "a file that is cut while it is read" 'large.h5: the file changed while the run reads it'
rm large.h5
finish
