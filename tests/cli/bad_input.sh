#!/usr/bin/env bash
# Bad input: one clear line, the documented exit code, the same on every rank, no hang, nothing half-written.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 6' 'global_batch = 24' 'shards = 4' >good.ini
cat >>good.ini <<'INI'
[checkpoint]
every = 2
[log]
every = 2
INI

as_user=()  # in front of the program: whom it runs as

# expect CODE TEXT RANKS ARGUMENTS...: in bounded time.
expect() {
  local start=()
  [ "$3" -eq 1 ] || read -r -a start <<<"$LOCKSTEP_MPIRUN -n $3"
  refused "$1" "$2" timeout 120 "${as_user[@]}" "${start[@]}" "$LOCKSTEP" "${@:4}"
}

train_expect() {
  for count in 1 2; do expect "$1" "$2" "$count" train good.ini --run fresh "${@:3}"; done
}

# The command line and the configuration.
expect 2 "did you mean train" 1 trian good.ini
expect 2 "did you mean --set" 1 train good.ini --sett a.b=c
expect 2 "train: unknown option --ru; did you mean --run" 2 train good.ini --ru elsewhere
as_user=(env SLURM_STEP_NUM_TASKS=2)
expect 2 "srun started 2 tasks, and each of them is the only rank of its world" 1 train good.ini --run alone
as_user=()
expect 2 "train: the configuration file is missing; see lockstep train --help" 1 train
expect 2 "bench: the name of a benchmark is missing" 1 bench
expect 2 "bench allreduce: --bytes -4: must be a multiple of 4 " 2 bench allreduce --bytes -4
expect 2 "--bytes 6: must be a multiple of 4" 1 bench allreduce --bytes 4 6
expect 2 "invalid value of option '--bytes'; see lockstep bench allreduce --help" 1 bench allreduce --bytes many
# Words that Boost's texts have places for: they once made a text without end.
expect 2 "invalid value of option '--tokens'" 1 generate none.h5 --tokens %value%
printf '%%invalid_line%%\n' >placeholder.ini
expect 2 "not an INI file of .section. and key = value lines" 1 train placeholder.ini --run placeholder
expect 2 "--bucket-mb 0: must be above 0 and at most " 2 bench overlap --bucket-mb 1 0
expect 2 "--steps 0: must be at least 1; see lockstep bench step --help" 1 bench step --steps 0
expect 2 "bench step: --shards applies to workloads only; with --config, use --set" 1 bench step --config good.ini --shards 2
expect 2 "8 samples of gpt-cpu cannot be divided into 3 equal parts" 2 bench step --shards 3
expect 2 "--micro-batches 0: a shard of gpt-cpu has 8 samples; see lockstep bench step --help" 1 bench step --micro-batches 0
expect 2 "--micro-batches 5: a shard of gpt-cpu has 4 samples" 1 bench step --micro-batches 5 --shards 2
expect 2 "--steps 9223372036854775807: must be at most" 1 bench step --steps 9223372036854775807
expect 2 "--graph true: CUDA graphs need a GPU" 1 bench step --graph true --device cpu
expect 2 "--set train.steps=3: a workload has keys of model, diffusion and optimizer, and ddp.shards_at_once, only" 1 bench step --set train.steps=3
expect 2 "--graph sometimes: must be auto, true or false" 1 bench step --graph sometimes
expect 2 "prepare: the format is missing: csv, idx, cifar, images, text or tokens" 1 prepare
expect 2 "prepare: the input files are missing" 1 prepare csv --out made.h5
expect 2 "nowhere.ini: cannot open: No such file or directory; .*check the path" 2 train nowhere.ini
train_expect 2 'train.steps: "many" is not a whole number in \[0, ' --set train.steps=many
train_expect 2 'optimizer.name: "adam" is not one of: adamw, sgd, muon, lion; did you mean adamw\?' --set optimizer.name=adam
train_expect 2 "train.steps is not|write it as SECTION.KEY=VALUE" --set train.steps
train_expect 2 "model.name: .cnn. is not one of: mlp, resnet, gpt, llama, unet, vit, encoder, rnn, cosmoflow" --set model.name=cnn
grep -qw avx512_bf16 /proc/cpuinfo ||
  train_expect 2 "precision bf16 would be slower than fp32: .*this processor .* has neither AVX512-BF16 nor AMX" --set train.precision=bf16
[ -e /dev/nvidia0 ] || train_expect 2 "device cuda: " --set train.device=cuda
train_expect 2 "train.micro_batches = 7: a shard has 6 samples" --set train.micro_batches=7
expect 2 "5 ranks are more than the 4 shards" 5 train good.ini --run fresh
train_expect 2 "matches no|matches none|pattern" --set "train.frozen=nothing.*"
train_expect 2 "shape \[2147483647, 2147483647\] has more elements than any machine holds" --set "model.sizes=64 2147483647 2147483647 10"
train_expect 2 "this run needs at least [0-9.]+ GiB on .*: parameters .*, gradients .*, optimizer .*, EMA .*, batches of inputs .*\), which has [0-9.]+ [MG]iB left" --set "model.sizes=64 100000000 1000 10"
train_expect 2 "this run needs at least .* batches of inputs [0-9.]+ GiB" --set train.global_batch=1000000000 --set train.shards=4
train_expect 2 "train.epochs = 3 and train.steps = 6 are both given; give one of them" --set train.epochs=3 --set train.steps=6
train_expect 2 "--resume a.h5 and --set train.init=b.h5 name different files" --resume a.h5 --set train.init=b.h5
# A directory that cannot be made, whatever the file system says about it.
expect 2 "/proc/none: cannot create the directory" 2 train good.ini --run /proc/none
expect 2 "/sys/none: cannot create the directory" 2 train good.ini --run /sys/none
# All that is wrong in a file is one line, with the lines of the file.
sed -e 's/^steps/stepps/' -e 's/^every = 2/every = often/' good.ini >bad.ini
expect 2 '3 mistakes: \(1\) bad.ini:7: train.stepps: unknown key; did you mean train.steps\? \(2\) bad.ini:11: checkpoint.every: "often" .* \(3\) bad.ini:13: log.every' \
  2 train bad.ini --run fresh

# Data.
train_expect 3 "data.train: missing.h5: No such file; lockstep prepare makes" --set data.train=missing.h5
train_expect 3 "data.eval: missing.h5: No such file; lockstep prepare makes" --set data.eval=missing.h5 --set data.eval_fraction=0
cp good.ini notdata.h5
train_expect 3 "notdata.h5.*(not an? HDF5|HDF5)" --set data.train=notdata.h5
/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
with h5py.File("no_x.h5", "w") as f: f["z"] = np.zeros(3)
with h5py.File("label.h5", "w") as f:
    f["x"] = np.zeros((40, 1, 8, 8), np.uint8); f["y"] = np.r_[np.zeros(39, np.int64), 11]
with h5py.File("wide.h5", "w") as f:
    f["x"] = np.zeros((40, 1, 9, 9), np.uint8); f["y"] = np.zeros(40, np.int64)
with h5py.File("nan.h5", "w") as f:
    f["x"] = np.full((40, 1, 8, 8), np.nan, np.float32); f["y"] = np.zeros(40, np.int64)
PY
train_expect 3 "no_x.h5: /x is missing: this is not a data file" --set data.train=no_x.h5
"$LOCKSTEP" prepare text good.ini --out text.h5 >/dev/null || fail "prepare text"
train_expect 3 "text.h5: /x is missing: this is a text data file, but images are needed" --set data.train=text.h5
expect 3 "none.json: cannot open" 2 prepare text good.ini --tokenizer none.json --out t.h5
expect 3 "good.ini: is no JSON" 2 prepare text good.ini --tokenizer good.ini --out t.h5
expect 3 "good.ini:1: is no JSON" 2 prepare text good.ini --field text --out t.h5
expect 2 "takes --tokenizer or --train-tokenizer, not both" 1 prepare text good.ini --tokenizer bytes --train-tokenizer 300 --out t.h5
expect 2 "--train-tokenizer 256: must be from 257 to" 2 prepare text good.ini --train-tokenizer 256 --out t.h5
expect 2 "bytes: has no token that ends a document" 1 prepare text good.ini --end-of-document x --out t.h5
expect 2 "prepare tokens: --tokenizer is missing" 1 prepare tokens good.ini --dtype uint16 --out t.h5
expect 2 "has no header of llm.c" 1 prepare tokens good.ini --tokenizer bytes --out t.h5
printf 'ab' >pair.bin
expect 3 "pair.bin: token 0 is 25185, which is not in the vocabulary of 256" 1 prepare tokens pair.bin --tokenizer bytes --dtype uint16 --out t.h5
expect 2 "^lockstep: nowhere/a.h5: cannot write: there is no directory nowhere" 1 prepare text good.ini --out nowhere/a.h5
expect 2 "is a directory" 1 prepare text good.ini --out .
train_expect 3 "label.h5.*39.*11" --set data.train=label.h5
train_expect 3 "label.h5: row 39 of /y is 11, but the model has 10 classes \(0 to 9\)" --set data.train=label.h5 --set data.format=arrays
train_expect 3 "81|9, 9" --set data.train=wide.h5
mkdir nan-1 nan-2 huge  # of a run that has begun there is a directory
for count in 1 2; do
  expect 4 "step 1: the loss is nan; nan.h5: row [0-9]+ of field x holds nan, in a sample of step 1: correct" "$count" train good.ini --run "nan-$count" --set data.train=nan.h5
  [ -z "$(ls "nan-$count/checkpoints" 2>/dev/null)" ] || fail "a run whose loss is not finite left a checkpoint"
done

# Weights that a step makes infinite are neither evaluated nor saved; and what failed to start leaves no run behind.
expect 4 "step 1: .* is not finite" 2 train good.ini --run huge --set optimizer.lr=1e38 --set train.steps=1
[ -z "$(ls huge/checkpoints 2>/dev/null)" ] || fail "weights that are not finite were saved"
expect 3 "nope.h5" 2 train good.ini --run twice/deep --set train.init=nope.h5
expect 3 "digits.h5: is a data file of images, not weights" 2 train good.ini --run twice --set train.init=digits.h5
ranks 2 train good.ini --run twice >log 2>&1 || fail "the corrected start: $(grep lockstep: log)"

# Checkpoints.
ranks 2 train good.ini --run run >log 2>&1 || fail "training: $(tail -n 3 log)"
cp run/checkpoints/step-000000006.h5 whole.h5
for bytes in 0 100 4000 20000; do
  head -c "$bytes" whole.h5 >cut.h5
  for count in 1 2; do
    expect 3 "cut.h5" "$count" eval cut.h5 --data digits.h5
    expect 3 "cut.h5" "$count" train good.ini --run fresh --resume cut.h5
  done
  "$LOCKSTEP" verify cut.h5 >/dev/null 2>&1
  [ $? -eq 3 ] || fail "verify of $bytes bytes of a checkpoint did not exit with 3"
done
sed 's/64 32 10/64 33 10/' good.ini >other.ini
for count in 1 2; do
  expect 3 "whole.h5.*net.0.weight.*\[32, 64\].*\[33, 64\]|whole.h5.*net.0.weight" "$count" train other.ini --run fresh --resume whole.h5
  expect 2 "(model.sizes: the run has '64 32 10', the configuration has '64 33 10')" "$count" train other.ini --run run
done
ranks 2 train good.ini --run run --set train.steps=4 >log 2>&1 || fail "fewer steps than are done: $(tail -n 3 log)"
[ "$(grep -c "nothing to do: 6 steps done already, train.steps = 4" log)" -eq 1 ] || fail "fewer steps than are done is not said: $(cat log)"
expect 3 "gone.h5" 2 inspect gone.h5
expect 3 "^lockstep: run: is a directory; a checkpoint is a file, such as run/checkpoints/latest" 1 eval run --data digits.h5
for words in "eval --data digits.h5" verify inspect; do  # short and long output
  # shellcheck disable=SC2086
  "$LOCKSTEP" $words whole.h5 --json >/dev/full 2>err.log
  [ $? -eq 3 ] || fail "$words to a full disk did not exit with 3"
  grep -q "^lockstep: standard output: cannot write: No space left" err.log || fail "$words to a full disk: $(cat err.log)"
done
expect 2 "gone.h5" 1 diff gone.h5 whole.h5
expect 3 "has no weights 'ema/0.5', but model$" 2 eval whole.h5 --data digits.h5 --weights ema/0.5
expect 3 "whole.h5: /x is missing: this is a checkpoint" 1 eval whole.h5 --data whole.h5
mkdir elsewhere && cd elsewhere || exit 1
expect 3 "digits.h5.*give --data FILE, or use the directory in which the run started" 1 eval ../whole.h5
ranks 2 eval ../whole.h5 --data ../digits.h5 >out.log 2>err.log || fail "eval --data elsewhere: $(cat err.log)"
[ ! -s err.log ] || fail "eval --data elsewhere: $(cat err.log)"
cd ..

# Surroundings.
mkdir readonly && chmod a-w readonly
if [ "$(id -u)" -eq 0 ]; then  # whom permissions do not stop
  as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups env "HOME=$scratch")
  chmod a+rx "$scratch"
fi
if "${as_user[@]}" "$LOCKSTEP" --version >/dev/null 2>&1; then
  expect 2 "^lockstep: rank 0: readonly/run: cannot create the directory: Permission denied" 2 train good.ini --run readonly/run
  expect 2 "^lockstep: readonly/a.h5: cannot write" 1 prepare text good.ini --out readonly/a.h5
  mkdir readonly/whole && chmod a-w readonly/whole
  expect 2 "^lockstep: rank 0: readonly/whole/checkpoints: cannot create the directory: Permission denied" 2 train good.ini --run readonly/whole
  [ -z "$(ls readonly/whole)" ] || fail "something was written into a directory that is not writable"
  # shellcheck disable=SC2016  # for the other bash
  as_user+=(bash -c 'ulimit -u 40 && exec "$0" "$@"')
  expect 5 'only [0-9]+ of 64 threads can start: .*; raise the limit on processes .*, or lower train.threads' 1 train good.ini --run few --set train.threads=64 --dry-run
else
  echo "not checked: a run directory that is not writable (other users cannot start $LOCKSTEP)"
fi
as_user=()
touch plainfile
expect 2 "plainfile" 2 train good.ini --run plainfile/run
finish
