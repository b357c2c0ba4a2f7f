#!/usr/bin/env bash
# A checkpoint says what its weights mean (/data/...): mean, deviation, type, class names, units of each field. eval, predict and a
# start that goes on use that, wherever the training data are by now, and refuse data whose values mean something else.
source "$(dirname "$0")/../support/cli.sh"

/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np

def write(name, values=lambda x: x.astype(np.uint8), classes="cat\ndog", seed=1, units=None, **attributes):
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, 200)
    x = random.integers(0, 120, (200, 1, 8, 8)) + 100 * y[:, None, None, None]
    if classes == "dog\ncat": y = 1 - y
    with h5py.File(name, "w") as f:
        f["x"], f["y"] = values(x), y
        f["x"].attrs.update(attributes)
        if units: f["x"].attrs["units"] = units
        if classes: f["y"].attrs["classes"] = classes

write("train.h5", mean=[100.0], std=[60.0], units="counts")
write("same.h5", seed=2, mean=[90.0], std=[55.0])
write("none.h5", seed=2)
write("wide.h5", seed=2, values=lambda x: x.astype(np.float64))
write("floats.h5", seed=2, values=lambda x: (x / 255).astype(np.float32))
write("order.h5", seed=2, classes="dog\ncat")
write("units.h5", seed=2, units="electrons")
write("plain.h5", classes=None)
PY
cat >run.ini <<'INI'
[model]
name = mlp
sizes = 64 16 2
[data]
train = train.h5
[train]
steps = 60
global_batch = 20
INI
train_to_end run 2
mkdir elsewhere
cp run/checkpoints/latest elsewhere/c.h5
/usr/bin/python3 - <<'PY' || fail "what the checkpoint says"
import h5py
with h5py.File("elsewhere/c.h5") as f:
    x, y = f["data/x"], f["data/y"]
    assert (x["mean"][:] == [100]).all() and (x["deviation"][:] == [60]).all()
    assert x.attrs["dtype"] == b"uint8" and x.attrs["units"] == b"counts", dict(x.attrs)
    assert y.attrs["classes"] == b"cat\ndog" and y.attrs["dtype"] == b"int64", dict(y.attrs)
PY

# evaluated FILE [OPTION...]: what eval prints of c.h5, in another folder, without warnings.
evaluated() {
  (cd elsewhere && "$LOCKSTEP" eval c.h5 --data "../$1" "${@:2}" 2>../err.log) || fail "eval $*: $(cat err.log)"
}
right=$(evaluated none.h5)
for file in same.h5 wide.h5; do
  [ "$(evaluated "$file")" = "${right/none.h5/$file}" ] || fail "$file: $(evaluated "$file"), not $right"
done
evaluated same.h5 >/dev/null
grep -q "same.h5: normalised by mean and deviation 100 and 60, as the data that c.h5 learned from, not by 90 and 55" err.log ||
  fail "nothing says whose mean is used: $(cat err.log)"
/usr/bin/python3 - <<'PY' || fail "near.h5"
import h5py, shutil
shutil.copy("same.h5", "near.h5")
with h5py.File("near.h5", "a") as f:
    f["x"].attrs["mean"], f["x"].attrs["std"] = [100.0000001], [60.0]
PY
evaluated near.h5 >/dev/null
grep -q "normalised by mean and deviation 100 and 60, as .*, not by 100.0000001 and 60" err.log || fail "two equal texts of numbers: $(cat err.log)"
ranks 2 eval elsewhere/c.h5 --data same.h5 >log 2>&1 || fail "eval on 2 ranks: $(cat log)"
[ "$(grep -c "normalised by" log)" -eq 1 ] || fail "not one rank says whose mean is used: $(cat log)"
own=$(evaluated same.h5 --own-statistics)
[ ! -s err.log ] || fail "--own-statistics: $(cat err.log)"
[ "$own" != "${right/none.h5/same.h5}" ] || fail "--own-statistics changes nothing"
evaluated floats.h5 --own-statistics >/dev/null
for what in "floats.h5 /?x is float32 up to .*, but in .* it is uint8 up to" \
  'order.h5 class 0 of /?y is "dog", but in .* it is "cat"' \
  'units.h5 /?x has the units "electrons", but in .* it has "counts"'; do
  file=${what%% *} text="${what%% *}: ${what#* }"
  refused 3 "$text" ranks 2 eval elsewhere/c.h5 --data "$file"
  refused 3 "$text" ranks 1 predict elsewhere/c.h5 --data "$file" --out out.h5
  ends 3 "$text" ranks 2 train run.ini --run run --set train.steps=70 --set data.train="$file"
  for setting in data.train="train.h5 $file" data.train="train.h5*1 $file*1" data.eval="$file"; do
    refused 3 "$text" ranks 2 train run.ini --run new --set "$setting"
  done
done

# A start that goes on after its data were prepared anew: as the checkpoint says.
cp same.h5 train.h5
ranks 2 train run.ini --run run --set train.steps=70 >log 2>&1 || fail "going on: $(cat log)"
grep -q "train.h5: normalised by mean and deviation 100 and 60" log || fail "going on: $(cat log)"

# However the file is written: names as a list, bytes as floats of the same size or as a table, packed by netCDF.
/usr/bin/python3 - <<'PY'
import h5py, numpy as np
def change(name, source, change):
    with h5py.File(source) as f, h5py.File(name, "w") as g:
        for key in f:
            f.copy(key, g)
        change(g)
def values(f, x):
    attributes = dict(f["x"].attrs)
    del f["x"]
    f["x"] = x
    f["x"].attrs.update(attributes)
def labels(f, y):
    del f["y"]
    f["y"] = y
change("list.h5", "none.h5", lambda f: f["y"].attrs.__setitem__("classes", np.array([b"dog", b"cat"])))
change("strings.h5", "none.h5", lambda f: f["y"].attrs.__setitem__("classes", ["dog", "cat"]))
change("more.h5", "none.h5", lambda f: f["y"].attrs.__setitem__("classes", ["cat", "dog", "owl"]))
change("packed.h5", "none.h5", lambda f: f["x"].attrs.__setitem__("scale_factor", 0.01))
change("bool.h5", "none.h5", lambda f: labels(f, f["y"][:].astype(bool)))
change("dark.h5", "none.h5", lambda f: values(f, f["x"][:] // 40))
change("table.h5", "floats.h5", lambda f: values(f, f["x"][:].reshape(200, 64)))
def say(name, **attributes):
    change(name, "none.h5", lambda f: f["x"].attrs.update(attributes))
say("unit-list.h5", units=["counts"])
say("unit-array.h5", units=np.array([b"counts"]))
say("unit-number.h5", units=3.5)
say("unit-empty.h5", units=h5py.Empty("S4"))
say("units-list.h5", units=["m", "s"])
change("lines.h5", "none.h5", lambda f: f["y"].attrs.__setitem__("classes", ["cat", "hot\ndog", "owl"]))
change("other-line.h5", "none.h5", lambda f: f["y"].attrs.__setitem__("classes", ["cat", "hot\ndog", "elk"]))
def bytes_of_the_same_mean(f):
    values(f, (f["x"][:] / 255).astype(np.float32))
    f["x"].attrs.update(mean=[100.0], std=[60.0])
change("declared.h5", "none.h5", bytes_of_the_same_mean)
PY
for file in list.h5 strings.h5; do
  refused 3 'class 0 of y is "dog", but in .* it is "cat"' ranks 1 eval elsewhere/c.h5 --data "$file"
done
refused 3 'x has the packing "scale_factor 0.01", but in .* it has ""' ranks 1 eval elsewhere/c.h5 --data packed.h5
refused 3 "x is float32 up to .*, but in .* it is uint8 up to" ranks 1 eval elsewhere/c.h5 --data table.h5
refused 3 'units-list.h5: x has the units "m, s", but in .* it has "counts"' ranks 1 eval elsewhere/c.h5 --data units-list.h5
for file in more.h5 bool.h5 dark.h5 unit-list.h5 unit-array.h5 unit-number.h5 unit-empty.h5 declared.h5; do
  "$LOCKSTEP" eval elsewhere/c.h5 --data "$file" >log 2>&1 || fail "$file: $(cat log)"
done
train_to_end bool 1 data.train=bool.h5
train_to_end integers 1 data.train=none.h5
expect_same bool/checkpoints/latest integers/checkpoints/latest
refused 3 'class 0 of .* "dog", but in .* it is "cat"' ranks 1 train run.ini --run new --set data.train="plain.h5*1 none.h5*1 order.h5*1"

# A class name of two lines is one name in the checkpoint, too.
train_to_end lines 1 data.train=lines.h5 model.sizes="64 16 3"
"$LOCKSTEP" eval lines/checkpoints/latest --data lines.h5 >log 2>&1 || fail "a class name of two lines: $(cat log)"
refused 3 'class 2 of y is "elk", but in .* it is "owl"' ranks 1 eval lines/checkpoints/latest --data other-line.h5

# Data that say nothing are compared with nothing.
train_to_end plain 1 data.train=plain.h5
"$LOCKSTEP" eval plain/checkpoints/latest --data order.h5 >log 2>&1 || fail "data without class names: $(cat log)"

# Columns of a table have names.
/usr/bin/python3 - <<'PY'
import h5py, numpy as np
def table(name, names, swap=False):
    x = np.random.default_rng(3).normal(size=(60, 2)) * [1, 10]
    with h5py.File(name, "w") as f:
        f["x"], f["y"] = (x[:, ::-1] if swap else x).astype(np.float32), (x[:, 0] > 0).astype(np.int64)
        if names: f["x"].attrs["names"] = names
table("ab.h5", "a\nb")
table("list-ab.h5", ["a", "b"])
table("ba.h5", ["b", "a"], swap=True)
table("nameless.h5", "")
table("other-count.h5", "a\nb\nc")
PY
train_to_end ab 2 data.train=ab.h5 model.sizes="2 8 2"
text='ba.h5: element 1 of /?x is "b", but in .* it is "a": the same columns in the same order are needed'
refused 3 "$text" ranks 2 eval ab/checkpoints/latest --data ba.h5
refused 3 "$text" ranks 1 predict ab/checkpoints/latest --data ba.h5 --out out.h5
for setting in data.train="ab.h5 ba.h5" data.eval=ba.h5; do
  refused 3 "$text" ranks 2 train run.ini --run new --set data.train=ab.h5 --set model.sizes="2 8 2" --set "$setting"
done
for file in list-ab.h5 nameless.h5 other-count.h5; do
  "$LOCKSTEP" eval ab/checkpoints/latest --data "$file" >log 2>&1 || fail "$file: $(cat log)"
done
finish
