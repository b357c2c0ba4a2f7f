#!/usr/bin/env bash
# same_bits.sh MODEL [quick]: the same configuration ends in the same bits at 1 to 8 ranks (5 never lines up with sub-trees), however
# gradients travel, in fp32 and in bf16, and so does a run that was killed and went on with another number of ranks.
# quick: 1 to 3 ranks, one kill, and what eval says of the end; without it, everything else, most of it of the mlp, which takes least.
source "$(dirname "$0")/../support/cli.sh"

model=$1 amount=${2:-full}
digits digits.h5
case $model in
  mlp) printf '[model]\nname = mlp\nsizes = 64 48 10\ndropout = 0.2\n[data]\ntrain = digits.h5\n' >run.ini ;;
  resnet)
    printf '[model]\nname = resnet\nblocks = 1 1\nwidth = 32\nin_channels = 1\nclasses = 10\n' >run.ini
    printf '[data]\ntrain = digits.h5\naugment = crop flip\n' >>run.ini
    ;;
  vit)
    printf '[model]\nname = vit\nimage_size = 8\npatch = 2\nlayers = 2\nheads = 2\nchannels = 32\n' >run.ini
    printf 'mlp_channels = 64\nin_channels = 1\nclasses = 10\ndropout = 0.1\n[data]\ntrain = digits.h5\n' >>run.ini
    ;;
  gpt)
    words text.h5
    printf '[model]\nname = gpt\nlayers = 2\nheads = 2\nchannels = 32\ncontext = 32\nvocab = 256\ndropout = 0.1\n' >run.ini
    printf '[data]\ntrain = text.h5\n' >>run.ini
    ;;
esac
cat >>run.ini <<'INI'
eval_fraction = 0.1
[train]
steps = 12
global_batch = 48
shards = 24
seed = 7
eval_every = 6
[optimizer]
lr = 2e-3
weight_decay = 0.1
clip = 0.5
schedule = constant
warmup_steps = 4
[ema]
rates = 0.9 0.99
[ddp]
bucket_mb = 0.02
first_bucket_mb = 0.005
[checkpoint]
every = 3
keep = 100000
INI

# like REFERENCE [SECTION.KEY=VALUE...]: each line of standard input, NAME RANKS SETTING..., is a run that ends in the bits of REFERENCE.
like() {
  local reference=$1 name count settings
  shift
  while read -r name count settings; do
    # shellcheck disable=SC2086  # settings are words
    train_to_end "$name" "$count" "$@" $settings
    expect_same "$reference/checkpoints/latest" "$name/checkpoints/latest"
  done
}

# killed BEFORE AFTER SHARDED-BEFORE SHARDED-AFTER: a run on so many ranks is killed with SIGKILL (every process of the job) as soon as a
# checkpoint is there, then resumed. The number of steps may change on a resume (the schedule here does not depend on it), so the run has
# no end of its own. Who holds which part of the optimizer's state is no part of the run: it may change, too.
killed() {
  local run=killed-$1
  kill_when "$run/checkpoints/step-000000006.h5" "$1" train run.ini --run "$run" --set "train.steps=$endless_steps" \
    --set "ddp.sharded_optimizer=$3"
  # It may have run beyond the steps of the others: go on from one of its first checkpoints.
  find "$run/checkpoints" -name 'step-*.h5' | sort | tail -n +3 | xargs -r rm -f
  train_to_end "$run" "$2" "ddp.sharded_optimizer=$4"
  grep -q "going on after step" "log-$run" || fail "$run did not resume"
  expect_same at-1/checkpoints/latest "$run/checkpoints/latest"
}

train_to_end at-1 1
if [ "$amount" = quick ]; then
  printf '%s\n' 'at-2 2' 'at-3 3' | like at-1
  killed 2 3 false false
  ranks 2 eval killed-2/checkpoints/latest --json >eval.json 2>err.log || fail "eval: $(cat err.log)"
  python3 - <<'PY' || fail "eval: $(cat eval.json)"
import json
found = json.load(open("eval.json"))
logged = [line for line in map(json.loads, open("at-1/metrics.jsonl")) if "eval_loss" in line][-1]
assert found["step"] == logged["step"] == 12 and found["samples"] == 180, found
assert found["accuracy"] == logged["eval_accuracy"] and found["loss"] == logged["eval_loss"], logged
PY
  finish
  exit
fi

like at-1 <<'VARIANTS'
apart-3 3 ddp.mode=per_parameter
sharded-4 4 ddp.sharded_optimizer=true
flat-5 5 ddp.sharded_optimizer=true ddp.mode=flat
at-8 8
VARIANTS
[ "$model" = mlp ] || killed 2 3 true false  # the mlp's is in the quick tests
[ "$model" != resnet ] || killed 5 1 false true
if [ "$model" = mlp ]; then
  like at-1 <<'VARIANTS'
at-4 4
at-5 5
flat-2 2 ddp.mode=flat
sharded-2 2 ddp.sharded_optimizer=true
VARIANTS
  killed 1 4 false true
fi

# Pieces of a shard are added in order, so their number is part of the bits.
train_to_end pieces-1 1 train.micro_batches=2
like pieces-1 train.micro_batches=2 <<'VARIANTS'
pieces-flat-2 2 ddp.mode=flat
pieces-sharded-3 3 ddp.sharded_optimizer=true
VARIANTS
[ "$model" != mlp ] || printf '%s\n' 'pieces-3 3' 'pieces-flat-4 4 ddp.mode=flat' | like pieces-1 train.micro_batches=2

# In bf16 the bits are others, and as much the same at any number of ranks and across a resume.
half=(train.precision=bf16 train.bf16_fallback=convert)
train_to_end half-1 1 "${half[@]}"
! "$LOCKSTEP" diff at-1/checkpoints/latest half-1/checkpoints/latest >/dev/null || fail "bf16 has the bits of fp32"
train_to_end half-resumed 3 "${half[@]}" train.steps=6
printf '%s\n' 'half-sharded-2 2 ddp.sharded_optimizer=true' 'half-resumed 2' | like half-1 "${half[@]}"
grep -q "going on after step 6" log-half-resumed || fail "bf16 did not resume"
[ "$model" = mlp ] || { finish; exit; }

printf '%s\n' 'half-2 2' 'half-4 4' | like half-1 "${half[@]}"
! ranks 1 train run.ini --run half-1 >log 2>&1 </dev/null || fail "a bf16 run went on in fp32"
grep -q "train.precision: the run has 'bf16', the configuration has 'fp32'" log || fail "another precision on a resume: $(cat log)"

# A new run from a file's weights remembers the file: killed before its first checkpoint it starts from them again.
ranks 1 train run.ini --run from-file --resume at-1/checkpoints/latest >log 2>&1 || fail "--resume FILE: $(tail -n 3 log)"
rm -rf from-file/checkpoints/*
ranks 2 train run.ini --run from-file >log 2>&1 || fail "started again: $(tail -n 3 log)"
grep -q "a new run from the weights of at-1" log || fail "started again, it forgot the file: $(cat log)"
finish
