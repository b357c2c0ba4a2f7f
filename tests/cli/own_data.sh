#!/usr/bin/env bash
# Data of a program's own, in an order of its own, train a built-in model with every verb: the same bits at any number of ranks. Samples of
# weight 0 hold no numbers, so that a step which drew one would end the run.
# Environment: OWN, the program of own_data.cpp.
source "$(dirname "$0")/../support/cli.sh"
stock=$LOCKSTEP LOCKSTEP=$OWN
awk 'BEGIN { for (i = 0; i < 300; i++) print (i % 3 == 0) ? "0 1 nan" : "1 " i / 300 " " 1 - i / 150 }' >lines.txt
awk 'BEGIN { for (i = 0; i < 50; i++) print "1 " i / 50 " " 1 - i / 25 }' >held.txt
cat >run.ini <<'INI'
[model]
name = mlp
sizes = 1 8 1
[task]
name = regression
[data]
format = lines
train = lines.txt
eval = held.txt
[train]
steps = 60
global_batch = 24
shards = 3
[optimizer]
lr = 0.02
[checkpoint]
every = 20
keep = 3
keep_best = eval_r2
INI
for count in 1 3; do
  ranks "$count" train run.ini --run "run-$count" >log 2>&1 || fail "on $count ranks: $(tail -n 3 log)"
done
expect_same run-1/checkpoints/latest run-3/checkpoints/latest
rm run-3/checkpoints/step-00000006*.h5
ranks 2 train run.ini --run run-3 >log 2>&1 || fail "resumed: $(tail -n 3 log)"
has_line 'going on after step 40' <log || fail "it was not resumed: $(cat log)"
expect_same run-1/checkpoints/latest run-3/checkpoints/latest
ranks 2 eval run-1/checkpoints/latest --json >out.log 2>log || fail "eval: $(cat log)"
/usr/bin/python3 -c 'import json, sys; assert json.load(open("out.log"))["r2"] > 0.9' || fail "it has not learned: $(cat out.log)"
ranks 2 predict run-1/checkpoints/latest --data held.txt --out out.h5 >log 2>&1 || fail "predict: $(cat log)"

refused 2 'data.format: .*"line" is not one of: auto, arrays, images, text, pictures, lines, slope; did you mean lines' \
  ranks 2 train run.ini --run none --set data.format=line

# A kind with options, and normalised: the checkpoint knows both.
sed '/^train = lines/d; /^eval = /d; s/^format = lines/format = slope\nnormalize = x y\neval_fraction = 0.1\n[slope]\nslope = -3/' run.ini >slope.ini
for count in 1 2; do
  ranks "$count" train slope.ini --run "slope-$count" --set train.eval_samples=4 >log 2>&1 || fail "slope on $count ranks: $(tail -n 3 log)"
done
expect_same slope-1/checkpoints/latest slope-2/checkpoints/latest
has_line '^slope = -3$' <slope-1/config.ini || fail "config.ini: $(cat slope-1/config.ini)"
ranks 1 eval slope-1/checkpoints/latest --json >out.log 2>log || fail "eval: $(cat log)"
/usr/bin/python3 -c '
import h5py, json, sys
assert json.load(open("out.log"))["r2"] > 0.95
with h5py.File("slope-1/checkpoints/latest") as f:
    mean = f["data/y/mean"][0]
assert -6.2 < mean < -5.5, mean' || fail "the line is not learned: $(cat out.log)"
sed 's/^slope = /slop = /' slope.ini >wrong.ini
refused 2 'wrong.ini:[0-9]+: slope.slop: unknown key; did you mean slope.slope' ranks 1 train wrong.ini --run none
refused 3 'lines.txt: sample [0-9]+ of field y holds nan: the field cannot be normalised' ranks 2 train run.ini --run none --set data.normalize=y

# A tokenizer of the program's own: checkpoints keep its text, and generate makes it again.
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
for name, letters in ("letters.h5", "abcd"), ("other.h5", "abce"):
    with h5py.File(name, "w") as file:
        file["tokens"] = np.tile(np.arange(4, dtype="uint16"), 400)
        file["tokens"].attrs.update(vocabulary=4, tokenizer="letters", tokenizer_text=letters)
PY
cat >gpt.ini <<'INI'
[model]
name = gpt
layers = 1
heads = 1
channels = 16
context = 16
vocab = 6
[data]
train = letters.h5
[train]
steps = 60
global_batch = 8
shards = 2
[optimizer]
lr = 0.02
INI
ranks 2 train gpt.ini --run gpt >log 2>&1 || fail "a tokenizer: $(cat log)"
write=(generate gpt/checkpoints/latest --prompt ab --tokens 6 --temperature 0)
[ "$(ranks 2 "${write[@]}" 2>log)" = abcdabcd ] || fail "generate: $("$OWN" "${write[@]}" 2>&1)"
ranks 1 convert gpt/checkpoints/latest copy.h5 >log 2>&1 || fail "convert: $(cat log)"
[ "$("$OWN" generate copy.h5 --prompt ab --tokens 2 --temperature 0 2>log)" = abcd ] || fail "generate after convert: $(cat log)"
refused 2 "'x' is not one of abcd" "$OWN" generate gpt/checkpoints/latest --prompt x
refused 2 'unknown tokenizer "letters"; this program has bytes' "$stock" "${write[@]}"
refused 3 'other.h5: its tokens are of the tokenizer "letters [0-9a-f]*" .4 tokens., but those of .* are of "letters' \
  "$OWN" eval gpt/checkpoints/latest --data other.h5
finish
