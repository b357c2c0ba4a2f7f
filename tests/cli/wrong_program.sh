#!/usr/bin/env bash
# Programs that use the library wrongly: on any number of ranks one line of error, the documented exit code, no hang, no run left behind.
# What the data lacks or has in a wrong shape is 3; what a program or a configuration asks for and is not there is 2; an exception that is
# none of ours is 5.
# Environment: WRONG_PROGRAM, the program of wrong_program.cpp.
source "$(dirname "$0")/../support/cli.sh"
LOCKSTEP=$WRONG_PROGRAM
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
random = np.random.default_rng(1)
with h5py.File("data.h5", "w") as file:
    for name, width in ("x", 4), ("z", 2), ("wide", 6), ("y", 1):
        file[name] = random.normal(size=(40, width)).astype("float32")
    file["label"] = random.integers(0, 3, size=(40, 1))
    file["level"] = random.normal(size=40).astype("float32")
with h5py.File("one.h5", "w") as file:
    for name, width in ("x", 4), ("z", 2), ("y", 1):
        file[name] = np.ones((1, width), "float32")
PY
cat >run.ini <<'INI'
[model]
name = sum
[task]
name = near
[data]
train = data.h5
fields = x z wide label level y
eval_fraction = 0.25
[train]
steps = 3
global_batch = 12
shards = 3
[fault]
hang_timeout_s = 20
INI

# expect WRONG CODE TEXT RANKS [TRAIN-ARGUMENTS...]: at each number of ranks in RANKS.
expect() {
  local count start
  for count in $4; do
    start=()
    [ "$count" -eq 1 ] || read -r -a start <<<"$LOCKSTEP_MPIRUN -n $count"
    refused "$2" "^lockstep: $3" env WRONG="$1" timeout 60 "${start[@]}" "$WRONG_PROGRAM" train run.ini --run none "${@:5}"
  done
}

WRONG='' ranks 3 train run.ini --run right >log 2>&1 || fail "nothing is wrong: $(cat log)"
one_sample=(--set data.train=one.h5 --set 'data.fields=x z y' --set data.eval_fraction=0 --set train.shards=1 --set train.global_batch=1)
WRONG='' ranks 1 train run.ini --run one "${one_sample[@]}" >log 2>&1 || fail "a data set of one sample: $(cat log)"

# The data.
expect field 3 "the data has no field 'speed'; it has x, z, wide, label, level, y" '1 2 3'
expect read_field 3 "data.h5: has no field 'speed', which is needed; it has x, z, wide, label, level, y" '1 2'
expect target_field 3 "the data has no field 'speed'" 1
expect width 3 'x: linear: an input of shape \[2, 6\] does not fit a weight of shape \[8, 4\]; a batch of the data has x float32' '1 2 3'
expect target_width 3 'mse: the input has shape \[2, 1\], the target \[2, 4\]; a batch of the data has x float32 \[2, 4\], .*, samples first' '1 2'
expect target_type 3 'cross_entropy: .*float32.*; a batch of the data has' '1 3'
expect '' 3 'data.h5: .*speed' '1 2' --set 'data.fields=x z speed y'
expect '' 3 'data.h5: field y is int64 \[1\], but task.name = regression learns numbers: floats' '1 2 3' --set task.name=regression \
  --set 'data.fields=x z y:label'
expect '' 3 'data.h5: field y is float32 \[1\], but task.name = classification learns integers' 1 --set task.name=classification
# Two samples are tried before there is a run, also where a shard has one and an evaluation has more.
misread='.*linear: .* \[2\] .*; a batch of the data has .* level float32 \[2\], .*, samples first; level holds scalars: store it as \[N, 1\]'
expect '' 3 "$misread" '1 2 3' --set model.name=misread
expect '' 3 "$misread" '1 3' --set model.name=misread --set train.global_batch=3
expect '' 3 "$misread" '1 2' --set model.name=misread --dry-run

# What the program and its configuration ask for.
expect '' 2 'the model has no trainable parameter' '1 2 3' --set model.name=constant
expect '' 2 '.*model.name: "som" is not one of: .*sum, constant, misread; did you mean sum' '1 2' --set model.name=som
expect constant_loss 2 'the loss depends on no trainable parameter' '1 2 3'
expect no_loss 2 'the task returned an empty Loss' '1 2 3'
expect forward 2 'the metrics of a task need the output of model\(tape, batch\)' 1
expect metric_twice 2 'the task names the metric error twice' '1 2 3'
expect metric_loss 2 'the task names the metric loss twice \(loss is always a metric\)' 1
expect metric_without_sums 2 'the metric other of the task has no sums' 1
expect metric_unknown 2 'task.name = near: evaluate\(\) adds to a metric eror, which metrics\(\) does not name; the metrics are loss, error; did you mean error\?' '1 2 3'
expect metric_sums 2 'task.name = near: metric error has 2 sums, but 3 were added' '1 3'

# Registrations.
expect model_twice 2 'the program registers a model: the name sum is registered twice' '1 2 3'
expect replaced_twice 2 'the program registers a model: the name mlp is registered twice' 1
expect task_twice 2 'the program registers a task: the name near is registered twice' 1
expect replaced_once 2 "ranks have different models, tasks, optimizers, data sets or tokenizers: '.*' on rank 0, but 'mlp, the program's' on rank 1;" 2
# A program's own wins over a built-in one of its name. Checkpoints say so.
own='model.name = mlp, task.name = regression'
WRONG=replaced ranks 2 train run.ini --run replaced --set model.name=mlp --set task.name=regression --set train.shards=2 >log 2>&1 ||
  fail "a model and a task in place of the built-in ones: $(cat log)"
[ "$(grep -c "note: $own: the program's own, not the built-in one" log)" -eq 1 ] || fail "what they replace is not said once: $(cat log)"
ranks 1 inspect replaced/checkpoints/latest >out.log || fail "inspect: $(cat out.log)"
has_line "/provenance own = $own" <out.log || fail "the checkpoint does not say so: $(cat out.log)"
ranks 1 inspect right/checkpoints/latest | grep 'provenance own' && fail "a checkpoint without replacements names some"
expect blank 2 'the program registers a model: the name "two words" is invalid: use letters' '1 2 3'
expect blank_once 2 'rank 1: the program registers a model: the name "a name" is invalid: use letters' 2
expect no_name 2 'the program registers a task: the name "" is invalid: use letters' 1
expect ranks 2 "ranks have different models, tasks, optimizers, data sets or tokenizers: '.*' on rank 0, but 'another' on rank 1;" 2
expect ranks 2 "ranks have different models, tasks, optimizers, data sets or tokenizers: '.*' on rank 0, but 'another' on rank 2;" 3

# Exceptions that are none of ours.
for place in constructor check metrics forward loss evaluate; do
  expect "${place}_throws" 5 'out of luck' '1 3'
  expect "${place}_throws_once" 5 'rank 1: out of luck' 2
  expect "${place}_throws_once" 5 'rank 2: out of luck' 3
done
expect throws_a_number 5 'an exception of unknown type' '1 2'
# In the first step of training there is a run, which a later start takes up.
WRONG=training_throws_once ends 5 '^lockstep: rank 2: out of luck' ranks 3 train run.ini --run begun
WRONG='' ranks 2 train run.ini --run begun >log 2>&1 || fail "begun: $(cat log)"
expect_same right/checkpoints/latest begun/checkpoints/latest
finish
