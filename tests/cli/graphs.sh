#!/usr/bin/env bash
# Graphs of different sizes, by share/example/graph.cpp: it learns, has the same bits at 1, 2 and 3 ranks, killed and resumed, and follows
# PyTorch's trajectory; files with offsets, predictions of rows, data.max_rows, and what is refused, the same on all ranks.
# Environment: GRAPH, this program.
source "$(dirname "$0")/../support/cli.sh"
LOCKSTEP=$GRAPH
cp "$LOCKSTEP_SOURCE_DIR/share/example/graph.ini" .

short=(--set train.steps=150 --set train.eval_every=50 --set checkpoint.every=25 --set checkpoint.keep=1000 --set springs.samples=300)
for count in 1 2 3; do
  ranks "$count" train graph.ini --run "at-$count" "${short[@]}" >log 2>&1 || fail "on $count ranks: $(tail -n 3 log)"
  expect_same at-1/checkpoints/latest "at-$count/checkpoints/latest"
done
has_line 'step 150  eval loss .* rmse 0\.[012]' <log || fail "it does not learn: $(tail -n 3 log)"
kill_when parts/checkpoints/step-000000050.h5 2 train graph.ini --run parts "${short[@]}" --set train.steps="$endless_steps"
for step in parts/checkpoints/step-*.h5; do
  [[ $(basename "$step") < step-000000150.h5 ]] || rm "$step"
done
ranks 3 train graph.ini --run parts "${short[@]}" >log 2>&1 || fail "on 3 ranks: $(tail -n 3 log)"
has_line 'going on after step' <log || fail "it was not resumed: $(head -n 5 log)"
expect_same at-1/checkpoints/latest parts/checkpoints/latest

# Shards of one sample, some of them without a spring.
for count in 1 3; do
  ranks "$count" train graph.ini --run "single-$count" "${short[@]}" --set train.steps=30 --set train.global_batch=12 --set train.shards=12 \
    >log 2>&1 || fail "shards of one sample on $count ranks: $(tail -n 3 log)"
  expect_same single-1/checkpoints/latest "single-$count/checkpoints/latest"
done

# A file of graphs, written by h5py.
/usr/bin/python3 "$LOCKSTEP_SOURCE_DIR/tests/golden/graphs.py" --make graphs.h5 --samples 60 --seed 3 || fail "make"
cat >file.ini <<'INI'
[model]
name = particles
[task]
name = regression
[data]
train = graphs.h5
fields = particles from to y
eval_fraction = 0.2
[train]
steps = 20
global_batch = 12
shards = 3
[optimizer]
lr = 1e-3
INI
for count in 1 3; do
  ranks "$count" train file.ini --run "file-$count" --set data.normalize=particles >log 2>&1 || fail "file, $count ranks: $(tail -n 3 log)"
  expect_same file-1/checkpoints/latest "file-$count/checkpoints/latest"
  ranks "$count" eval file-1/checkpoints/latest --data graphs.h5 --json >"eval-$count.json" 2>log || fail "eval: $(cat log)"
  cmp eval-1.json "eval-$count.json" || fail "eval on $count ranks"
  ranks "$count" predict file-1/checkpoints/latest --data graphs.h5 --out "out-$count.h5" >log 2>&1 || fail "predict: $(cat log)"
  cmp out-1.h5 "out-$count.h5" || fail "predict on $count ranks"
done
/usr/bin/python3 - <<'PY' || fail "the outputs are not those of the rows"
import h5py, json, numpy as np
with h5py.File("out-1.h5") as out, h5py.File("graphs.h5") as data:
    assert out["row"].shape == (60,) and out["output"].shape == data["y"].shape
    assert (out["output_offsets"][:] == data["particles_offsets"][:]).all()
    rmse = np.sqrt(np.mean((out["output"][:].astype(float) - data["y"][:]) ** 2))
    assert abs(rmse - json.load(open("eval-1.json"))["rmse"]) < 1e-5 * rmse, rmse
PY
/usr/bin/python3 -c '
import h5py
with h5py.File("graphs.h5") as f, h5py.File("inputs.h5", "w") as to:
    for name in f:
        if not name.startswith("y"): f.copy(name, to)'
ranks 2 predict file-1/checkpoints/latest --data inputs.h5 --out inputs-out.h5 >log 2>&1 || fail "predict without targets: $(cat log)"
h5diff out-1.h5 inputs-out.h5 output || fail "predictions depend on the targets"

train_on_disk=(--set data.normalize=particles --set data.memory=0 --set data.threads=3)
ranks 2 train file.ini --run disk "${train_on_disk[@]}" >log 2>&1 || fail "from disk: $(tail -n 3 log)"
expect_same file-1/checkpoints/latest disk/checkpoints/latest

# refused_on_ranks CODE TEXT ARGUMENT...: 2 ranks end with CODE and one line of error that says TEXT.
refused_on_ranks() {
  local code=$1 text=$2 status=0
  shift 2
  ranks 2 "$@" >out.log 2>err.log </dev/null || status=$?
  [ "$status" -eq "$code" ] || fail "$*: code $status: $(cat err.log)"
  grep '^graph: ' err.log | grep -qF -- "$text" || fail "$*: $(cat err.log)"
  [ "$(grep -c '^graph: ' err.log)" -eq 1 ] || fail "$*: not one line: $(cat err.log)"
}
refused_on_ranks 2 "--out: the output has the rows of particles" predict file-1/checkpoints/latest --data graphs.h5 --out out.csv
refused_on_ranks 3 'data.max_rows = 80: the 4 samples of shard' train file.ini --run many --set data.max_rows=80
refused_on_ranks 3 'data.max_rows = 5: graphs.h5: sample' train file.ini --run none --set data.max_rows=5
refused_on_ranks 2 'train.micro_batches = 2' train file.ini --run none --set train.micro_batches=2
ranks 1 train file.ini --run none --dry-run >log 2>&1 || fail "dry run: $(cat log)"
has_line 'batches of inputs .* of samples with [0-9.]* rows of particles.*data.max_rows' <log || fail "dry run: $(cat log)"
ranks 1 train file.ini --run none --dry-run --set data.max_rows=5000 >log 2>&1 || fail "dry run: $(cat log)"
has_line 'batches of inputs .* of data.max_rows rows a shard' <log || fail "dry run: $(cat log)"
ranks 2 bench data file.ini --steps 3 --json >out.log 2>log || fail "bench data: $(cat log)"
damage() {
  cp graphs.h5 bad.h5
  /usr/bin/python3 -c "import h5py
with h5py.File('bad.h5', 'a') as f: $1"
}
damage 'f["particles_offsets"][7] = 0'
refused_on_ranks 3 'bad.h5: /particles_offsets falls from' train file.ini --run none --set data.train=bad.h5
damage 'f["from"][5] = 12'
refused_on_ranks 3 'field from holds 12, but its particles has' train file.ini --run none --set data.train=bad.h5
damage 'f["to"].attrs["index_of"] = "nodes"'
refused_on_ranks 3 'bad.h5: /to has the attribute index_of for /nodes' train file.ini --run none --set data.train=bad.h5
damage 'del f["to"].attrs["index_of"]'
refused_on_ranks 3 'bad.h5: to has the attribute index_of = "", but in .*latest it has "particles"' eval file-1/checkpoints/latest --data bad.h5
ranks 2 train file.ini --run plain --set data.train=bad.h5 --set train.steps=1 >log 2>&1 || fail "without index_of: $(tail -n 3 log)"
refused_on_ranks 3 'graphs.h5: to has the attribute index_of = "particles", but in .*latest it has ""' eval plain/checkpoints/latest --data graphs.h5
damage 'f["particles_index"] = f["particles_offsets"][1:]'
refused_on_ranks 3 'bad.h5: batches have the field particles_index' train file.ini --run none --set data.train=bad.h5 \
  --set 'data.fields=particles from to y particles_index'
[ ! -e none ] || fail "a refused start left a run"

# 20 steps from the same weights, beside PyTorch (tests/golden/graphs.py).
golden=$LOCKSTEP_SOURCE_DIR/tests/golden
ranks 1 train "$golden/graphs.ini" --run golden --set data.train="$golden/graphs.h5" --set train.init="$golden/graphs_weights.h5" >log 2>&1 ||
  fail "golden: $(tail -n 3 log)"
/usr/bin/python3 - "$golden/graphs.h5" <<'PY' || fail "not PyTorch's trajectory"
import h5py, json, numpy as np, sys
with h5py.File(sys.argv[1]) as f:
    wanted = f.attrs["losses"]
found = [line["loss"] for line in map(json.loads, open("golden/metrics.jsonl")) if "loss" in line]
assert len(found) == 20, found
difference = np.abs(np.array(found) / wanted - 1).max()
print("largest relative difference of a loss", difference)
assert difference < 1e-4
PY
