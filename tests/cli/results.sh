#!/usr/bin/env bash
# Results that people use: tables and labels of predictions, the same at any number of ranks and after a kill; accuracy by class and
# metrics in the units of the file; the raw output of a network.
source "$(dirname "$0")/../support/cli.sh"

/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
draw = np.random.default_rng(1)
label = draw.integers(0, 3, 600)
x = (label[:, None] + draw.normal(0, 0.6, (600, 4))).astype("f4")
def classes(name, x, y):
    with h5py.File(name, "w") as f:
        f["x"], f["y"] = x, y
        f["y"].attrs["classes"] = 'red\nred, "dark"\ngreen'
classes("kinds.h5", x, label)
with h5py.File("nameless.h5", "w") as f:
    f["x"], f["y"] = x, label
with h5py.File("many.h5", "w") as f:
    f["x"] = np.tile(x, (2000, 1))
with h5py.File("prices.h5", "w") as f:
    f["x"] = x
    f["y"] = (1e5 + 2e4 * x.sum(1, keepdims=True) + draw.normal(0, 1e3, (600, 1))).astype("f4")
    f["y"].attrs["units"], f["y"].attrs["names"] = "EUR", "price"
with h5py.File("pairs.h5", "w") as f:
    f["x"], f["y"] = x, np.stack([1e3 * x[:, 0], x[:, 1]], 1)
with h5py.File("wide.h5", "w") as f:
    f["x"], f["y"] = x, label * 500
with h5py.File("yes.h5", "w") as f:
    f["x"], f["y"] = x, (label[:, None] > 0).astype("i8")
PY

# config SIZES FILE TASK NORMALIZE >FILE.ini
config() {
  printf '%s\n' '[model]' 'name = mlp' "sizes = $1" '[task]' "name = $3" '[data]' "train = $2.h5" 'eval_fraction = 0.25' "normalize = $4" \
    '[train]' 'steps = 60' 'eval_every = 30' 'global_batch = 32' 'shards = 2' '[optimizer]' 'lr = 0.02' >"$2.ini"
  "$LOCKSTEP" train "$2.ini" --run "$2" >log 2>&1 || fail "training $2: $(tail -n 3 log)"
}
config '4 16 3' kinds classification x
config '4 16 3' nameless classification x
config '4 16 1' prices regression 'x y'
config '4 16 2' pairs regression 'x y'
config '4 16 1' yes binary x
config '4 1001' wide classification x

# --- tables -------------------------------------------------------------------------------------------------------------
predict() {  # RANKS RUN OUT
  ranks "$1" predict "$2/checkpoints/latest" --data "$2.h5" --out "$3" >log 2>&1 || fail "$2 on $1 ranks: $(tail -n 3 log)"
}
for run in kinds nameless prices pairs yes; do
  for count in 1 2 3; do
    predict "$count" "$run" "$run-$count.csv"
    predict "$count" "$run" "$run-$count.h5"
    [ -z "$(find . -name "*.part*" -o -name ".*.tmp")" ] || fail "left: $(find . -name "*.part*" -o -name ".*.tmp")"
    for kind in csv h5; do cmp "$run-1.$kind" "$run-$count.$kind" || fail "$run.$kind: other bytes on $count ranks"; done
  done
done
mkdir -p elsewhere
"$LOCKSTEP" predict kinds/checkpoints/latest --data kinds.h5 --out elsewhere/kinds.h5 >log 2>&1 || fail "elsewhere: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "what is predicted"
import csv, h5py, numpy as np, os
def table(name): return list(csv.reader(open(name, newline="")))
softmax = lambda z: np.exp(z - z.max(1, keepdims=True)) / np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True)
names = ["red", 'red, "dark"', "green"]
for run, classes in ("kinds", names), ("nameless", ["0", "1", "2"]):
    with h5py.File(run + "-1.h5") as f:
        assert sorted(f) == sorted(["output", "row", "label", "probability"] + ["classes"] * (run == "kinds")), list(f)
        output, label, probability = f["output"][:].astype(float), f["label"][:], f["probability"][:]
        assert run == "nameless" or list(f["classes"].asstr()[:]) == classes
        assert (f["row"][:] == np.arange(600)).all() and f["label"].dtype == np.int64 and f["probability"].dtype == np.float32
        assert (label == output.argmax(1)).all()
        np.testing.assert_allclose(probability, softmax(output), atol=1e-6)
        assert f.attrs["step"] == 60 and f.attrs["weights"] == b"model"
        assert f.attrs["checkpoint"].decode() == run + "/checkpoints/step-000000060.h5", f.attrs["checkpoint"]
    rows = table(run + "-1.csv")
    assert rows[0] == ["row", "label"] + ["probability_" + name for name in (classes if run == "kinds" else "012")], rows[0]
    assert [row[0] for row in rows[1:]] == [str(i) for i in range(600)] and [row[1] for row in rows[1:]] == [classes[k] for k in label]
    assert (np.array([row[2:] for row in rows[1:]], np.float32) == probability).all(), "digits of a number are lost"
with h5py.File("elsewhere/kinds.h5") as f:
    assert os.path.samefile(os.path.join("elsewhere", f.attrs["checkpoint"].decode()), "kinds/checkpoints/latest")
with h5py.File("prices-1.h5") as f, h5py.File("prices.h5") as data:
    assert sorted(f) == ["names", "output", "row"] and f["names"].asstr()[0] == "price" and f["output"].attrs["units"] == b"EUR"
    assert np.abs(f["output"][:] - data["y"][:]).mean() < 2e4, "not in the units of the file"
    rows = table("prices-1.csv")
    assert rows[0] == ["row", "price"] and (np.array(rows[1:])[:, 1:].astype(np.float32) == f["output"][:]).all()
assert table("pairs-1.csv")[0] == ["row", "output_0", "output_1"]
with h5py.File("yes-1.h5") as f:
    assert f["label"].shape == f["probability"].shape == (600,)
    assert (f["label"][:] == (f["output"][:, 0] > 0)).all()
    np.testing.assert_allclose(f["probability"][:], 1 / (1 + np.exp(-f["output"][:, 0].astype(float))), atol=1e-6)
assert table("yes-1.csv")[0] == ["row", "label", "probability"]
PY

# --- names that another kind of file or folder has -----------------------------------------------------------------------
for out in p.xlsx p.csv.gz p.parquet; do
  refused 2 "--out $out: predictions are written as .csv" ranks 2 predict kinds/checkpoints/latest --data kinds.h5 --out $out
done
refused 3 "such as kinds/checkpoints/latest" ranks 1 predict kinds/checkpoints/ --data kinds.h5 --out no.csv
refused 3 "such as kinds/checkpoints/latest" ranks 1 predict kinds --data kinds.h5 --out no.csv
: >1.png
refused 3 "1.png: is one picture; give its folder" ranks 1 predict kinds/checkpoints/latest --data 1.png --out no.csv

# --- whole or absent: a kill at any time, and another number of ranks ---------------------------------------------------
cp kinds.ini many.ini
"$LOCKSTEP" predict kinds/checkpoints/latest --data many.h5 --out whole.csv >log 2>&1 || fail "many: $(cat log)"
for how in KILL:137 USR2:75; do
  "$LOCKSTEP" predict kinds/checkpoints/latest --data many.h5 --out part.csv >log 2>&1 &
  job=$!
  until_there part.csv.part "$job"
  kill -"${how%%:*}" "$job"
  wait "$job" 2>/dev/null
  got=$?
  [ "$got" -eq "${how##*:}" ] || fail "SIG${how%%:*}: exit $got: $(cat log)"
  if [ -e part.csv ] || [ ! -e part.csv.part ]; then fail "SIG${how%%:*}: not part.csv.part alone is left"; fi
  ranks 2 predict kinds/checkpoints/latest --data many.h5 --out part.csv >log 2>&1 || fail "continued: $(cat log)"
  cmp whole.csv part.csv || fail "SIG${how%%:*}: other bytes than without a stop"
  rm part.csv
done
# The rename is the last thing that can fail: a table that appears meanwhile is not replaced, and nothing is computed again.
"$LOCKSTEP" predict kinds/checkpoints/latest --data many.h5 --out part.csv >out.log 2>err.log &
job=$!
until_there part.csv.part "$job"
echo "another's" >part.csv
wait "$job"
[ $? -eq 2 ] || fail "a table that appears meanwhile: $(cat err.log)"
[ "$(cat part.csv)" = "another's" ] || fail "a table that appears meanwhile was replaced"
"$LOCKSTEP" predict kinds/checkpoints/latest --data many.h5 --out part.csv --force >log 2>&1 || fail "--force: $(cat log)"
grep -q "continues after 1200000 of 1200000 samples" log || fail "--force began again: $(cat log)"
cmp whole.csv part.csv || fail "--force: other bytes"

# --- accuracy by class --------------------------------------------------------------------------------------------------
for count in 1 3; do
  ranks "$count" eval kinds/checkpoints/latest --per-class --json >"classes-$count.json" 2>err.log || fail "--per-class: $(cat err.log)"
  ranks "$count" eval yes/checkpoints/latest --data yes.h5 --per-class --json >"yes-$count.json" 2>err.log || fail "binary: $(cat err.log)"
done
"$LOCKSTEP" eval kinds/checkpoints/latest --data kinds.h5 --per-class --json >all.json || fail "all samples"
"$LOCKSTEP" eval kinds/checkpoints/latest --json >plain.json || fail "eval"
"$LOCKSTEP" eval kinds/checkpoints/latest --data kinds.h5 --per-class >all.txt || fail "as text"
/usr/bin/python3 - <<'PY' || fail "accuracy by class: $(cat all.txt)"
import h5py, json, numpy as np
one, three, plain, found, yes = (json.load(open(name + ".json")) for name in ("classes-1", "classes-3", "plain", "all", "yes-1"))
assert one == three and yes == json.load(open("yes-3.json"))
assert {k: v for k, v in one.items() if k in plain} == plain and "confusion" not in plain
label, predicted = h5py.File("kinds.h5")["y"][:], h5py.File("kinds-1.h5")["label"][:]
matrix = np.zeros((3, 3), int)
np.add.at(matrix, (label, predicted), 1)
assert found["confusion"] == matrix.tolist() and found["classes"] == ["red", 'red, "dark"', "green"]
assert found["samples_by_class"] == matrix.sum(1).tolist()
np.testing.assert_allclose(found["accuracy_by_class"], matrix.diagonal() / matrix.sum(1))
label, predicted = h5py.File("yes.h5")["y"][:, 0], h5py.File("yes-1.h5")["label"][:]
assert yes["confusion"] == [[int(((label == a) & (predicted == b)).sum()) for b in (0, 1)] for a in (0, 1)] and yes["classes"] == ["0", "1"]
text = open("all.txt").read().splitlines()
assert [line.split()[-3:] for line in text[2:]] == [[str(n) for n in row] for row in matrix], text
PY
"$LOCKSTEP" eval wide/checkpoints/latest --data wide.h5 --per-class --json >wide.json || fail "1001 classes"
"$LOCKSTEP" predict wide/checkpoints/latest --data wide.h5 --out wide-1.h5 >log 2>&1 || fail "1001 classes: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "accuracy by class of 1001 classes"
import h5py, json, numpy as np
found, label, predicted = json.load(open("wide.json")), h5py.File("wide.h5")["y"][:], h5py.File("wide-1.h5")["label"][:]
assert "confusion" not in found and len(found["classes"]) == 1001
assert found["samples_by_class"] == np.bincount(label, minlength=1001).tolist()
assert found["accuracy_by_class"][500] == (predicted[label == 500] == 500).mean() and found["accuracy_by_class"][1] is None
PY
"$LOCKSTEP" report wide wide.json --out wide.html >log 2>&1 || fail "report of 1001 classes: $(cat log)"
refused 2 "--per-class: the model of the checkpoint tells no classes apart" ranks 2 eval prices/checkpoints/latest --per-class
"$LOCKSTEP" train kinds.ini --run per-class --set task.per_class=true >log 2>&1 || fail "per_class: $(tail -n 3 log)"
"$LOCKSTEP" eval per-class/checkpoints/latest | has_line 'red +[0-9]+ +[01]\.' || fail "task.per_class = true shows nothing"

# --- metrics in the units of the file -----------------------------------------------------------------------------------
for run in prices pairs; do "$LOCKSTEP" eval $run/checkpoints/latest --data $run.h5 --json >$run.json || fail "eval $run"; done
/usr/bin/python3 - <<'PY' || fail "metrics in units: $(cat prices.json)"
import h5py, json, numpy as np
found, pairs = json.load(open("prices.json")), json.load(open("pairs.json"))
error = h5py.File("prices-1.h5")["output"][:].astype(float) - h5py.File("prices.h5")["y"][:]
np.testing.assert_allclose(found["rmse_in_units"], np.sqrt((error**2).mean()), rtol=1e-3)
np.testing.assert_allclose(found["mae_in_units"], np.abs(error).mean(), rtol=1e-3)
deviation = h5py.File("prices/checkpoints/latest")["data/y/deviation"][0]
np.testing.assert_allclose(found["rmse"] * deviation, found["rmse_in_units"])
assert "rmse_in_units" not in pairs and "mae" in pairs, "of targets with different units"
assert any("eval_rmse_in_units" in line for line in map(json.loads, open("prices/metrics.jsonl")))
PY
has_line 'eval loss .* rmse_in_units [0-9]' <<<"$("$LOCKSTEP" train prices.ini --run again 2>&1)" || fail "the log of a run has no metrics in units"

# --- outputs that are not finite, and names that are not printable -----------------------------------------------------------
/usr/bin/python3 - <<'PY' || fail "weights"
import h5py, numpy as np
x, w = np.ones((100, 4), "f4"), np.zeros((16, 4), "f4")
x[70:72] = 1e20
w[:, 0] = 1
with h5py.File("large.h5", "w") as f:
    f["model/net.0.weight"], f["model/net.0.bias"] = w, np.zeros(16, "f4")
    f["model/net.2.weight"], f["model/net.2.bias"] = np.stack([np.full(16, v, "f4") for v in (1e20, -1e20, 0)]), np.zeros(3, "f4")
with h5py.File("overflow.h5", "w") as f:
    f["x"], f["y"] = x, np.zeros(100, "i8")
PY
sed '/^normalize/d' kinds.ini >large.ini
"$LOCKSTEP" convert large.h5 large-model.h5 --config large.ini >log 2>&1 || fail "convert: $(cat log)"
for count in 1 3; do
  for out in overflow-$count.CSV overflow-$count.h5; do
    ranks "$count" predict large-model.h5 --data overflow.h5 --out "$out" >log 2>&1 || fail "not finite on $count ranks: $(cat log)"
    has_line "warning: $out: 2 of 100 samples have outputs that are not finite, the first is number 70; .* label is -1" <log || fail "$out: $(cat log)"
  done
done
{ cmp overflow-1.CSV overflow-3.CSV && cmp overflow-1.h5 overflow-3.h5; } || fail "not finite: other bytes on 3 ranks"
{ has_line '^70,,nan,nan,nan$' <overflow-1.CSV && has_line '^69,0,1,0,0$' <overflow-1.CSV; } || fail "not finite: $(sed -n 70,72p overflow-1.CSV)"
"$LOCKSTEP" eval large-model.h5 --data overflow.h5 --per-class >log 2>&1 || fail "eval --per-class: $(cat log)"
{ has_line 'warning: 2 samples have outputs that are not finite' <log && has_line '^0 +100 +0.9800 +98 ' <log; } || fail "eval --per-class: $(cat log)"
"$LOCKSTEP" predict large-model.h5 --data overflow.h5 --out $'red\e[31m.csv' >out.log 2>log || fail "predict: $(cat log)"
grep -qF 'red\x1b[31m.csv: outputs of model' out.log || fail "a name is printed raw: $(cat -v out.log)"

# --- what the network computes ------------------------------------------------------------------------------------------
"$LOCKSTEP" predict prices/checkpoints/latest --data prices.h5 --output network --out network.h5 >log 2>&1 || fail "network: $(cat log)"
"$LOCKSTEP" predict kinds/checkpoints/latest --data kinds.h5 --output network --out network.csv >log 2>&1 || fail "network: $(cat log)"
/usr/bin/python3 - <<'PY' || fail "--output network"
import csv, h5py, numpy as np
with h5py.File("network.h5") as f, h5py.File("prices-1.h5") as own, h5py.File("prices/checkpoints/latest") as saved:
    assert sorted(f) == ["output", "row"] and not f["output"].attrs
    mean, deviation = saved["data/y/mean"][0], saved["data/y/deviation"][0]
    np.testing.assert_allclose(f["output"][:].astype(float) * deviation + mean, own["output"][:], rtol=1e-5)
rows = list(csv.reader(open("network.csv", newline="")))
assert rows[0] == ["row", "output_0", "output_1", "output_2"]
assert (np.array(rows[1:])[:, 1:].astype(np.float32) == h5py.File("kinds-1.h5")["output"][:]).all()
PY

# --- the page of a run --------------------------------------------------------------------------------------------------
"$LOCKSTEP" report kinds all.json --out page.html >log 2>&1 || fail "report: $(cat log)"
"$LOCKSTEP" report all.json --out alone.html >log 2>&1 || fail "report of an evaluation: $(cat log)"
for page in page alone; do
  grep -q '"columns":\["class","samples","accuracy","as red","as red, \\"dark\\"","as green"\]' $page.html || fail "$page.html has no confusion matrix"
done
echo '{"weights":"model","step":1,"samples":1,"classes":["a"],"confusion":[[1,2]]}' >torn.json
refused 3 "torn.json: is not a result" ranks 1 report torn.json --out other.html
finish
