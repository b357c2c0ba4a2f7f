#!/usr/bin/env bash
# same_bits.sh MODEL: the same configuration at 1 to 8 ranks ends in the same bits (5 never lines up with sub-trees), however
# gradients travel, and so does a run that was killed and went on with another number of ranks.
source "$(dirname "$0")/../support/cli.sh"

model=$1
digits digits.h5
case $model in
  mlp) printf '[model]\nname = mlp\nsizes = 64 48 10\ndropout = 0.2\n[data]\ntrain = digits.h5\n' >run.ini ;;
  resnet)
    printf '[model]\nname = resnet\nblocks = 1 1\nwidth = 32\nin_channels = 1\nclasses = 10\n' >run.ini
    printf '[data]\ntrain = digits.h5\naugment = crop flip\n' >>run.ini
    ;;
  gpt)
    "$LOCKSTEP" prepare text "$LOCKSTEP_SOURCE_DIR/LICENSE" "$LOCKSTEP_SOURCE_DIR/INSTALL" --out text.h5 >/dev/null ||
      fail "prepare text"
    printf '[model]\nname = gpt\nlayers = 2\nheads = 2\nchannels = 32\ncontext = 32\nvocab = 256\ndropout = 0.1\n' >run.ini
    printf '[data]\ntrain = text.h5\n' >>run.ini
    ;;
esac
cat >>run.ini <<'INI'
eval_fraction = 0.2
[train]
steps = 24
global_batch = 48
shards = 24
seed = 7
eval_every = 8
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
keep = 100
INI

# at NAME RANKS [SECTION.KEY=VALUE...]: trains to the end.
at() {
  local name=$1 count=$2
  shift 2
  ranks "$count" train run.ini --run "$name" "${@/#/--set=}" >"log-$name" 2>&1 </dev/null || fail "$name: $(tail -n 3 "log-$name")"
}

at at-1 1
while read -r name count settings; do
  # shellcheck disable=SC2086  # settings are words
  at "$name" "$count" $settings
  expect_same at-1/checkpoints/latest "$name/checkpoints/latest"
done <<'VARIANTS'
at-2 2
at-3 3
at-4 4
at-5 5
at-8 8
flat-2 2 ddp.mode=flat
apart-3 3 ddp.mode=per_parameter
sharded-2 2 ddp.sharded_optimizer=true
sharded-5 5 ddp.sharded_optimizer=true ddp.mode=flat
VARIANTS

# Pieces of a shard are added in order, so their number is part of the bits.
at pieces-1 1 train.micro_batches=2
while read -r name count settings; do
  # shellcheck disable=SC2086
  at "$name" "$count" train.micro_batches=2 $settings
  expect_same pieces-1/checkpoints/latest "$name/checkpoints/latest"
done <<'VARIANTS'
pieces-3 3
pieces-flat-4 4 ddp.mode=flat
pieces-sharded-3 3 ddp.sharded_optimizer=true
VARIANTS

# The number of steps may change on a resume (the schedule here does not depend on it), so a run far longer than the others is
# there to be killed: with SIGKILL as soon as a checkpoint is there (every process of the job), then resumed.
# Who holds which part of the optimizer's state is no part of the run: it may change, too.
for pair in "2 3 true false" "5 1 false false" "1 4 false true"; do
  read -r before after sharded_before sharded_after <<<"$pair"
  run=killed-$model-$before
  setsid bash -c "exec $LOCKSTEP_MPIRUN -n $before '$LOCKSTEP' train run.ini --run $run --set train.steps=$endless_steps \
    --set ddp.sharded_optimizer=$sharded_before" >"log-$run" 2>&1 &
  launcher=$!
  until [ -e "$run/checkpoints/step-000000006.h5" ] || ! kill -0 "$launcher" 2>/dev/null; do sleep 0.02; done
  pkill -KILL -f -- "--run $run " || fail "$run was not running: $(tail -n 3 "log-$run")"
  wait "$launcher" 2>/dev/null
  # It may have run beyond the 24 steps of the others: go on from one of its first checkpoints.
  find "$run/checkpoints" -name 'step-*.h5' | sort | tail -n +4 | xargs -r rm -f
  ranks "$after" train run.ini --run "$run" --set "ddp.sharded_optimizer=$sharded_after" >"log-$run-resumed" 2>&1 ||
    fail "$run on $after ranks: $(tail -n 3 "log-$run-resumed")"
  grep -q "going on after step" "log-$run-resumed" || fail "$run did not resume"
  expect_same at-1/checkpoints/latest "$run/checkpoints/latest"
done

# In bf16 the bits are others, and as much the same at any number of ranks and across a resume.
half=(train.precision=bf16 train.bf16_fallback=convert)
at half-1 1 "${half[@]}"
! "$LOCKSTEP" diff at-1/checkpoints/latest half-1/checkpoints/latest >/dev/null || fail "bf16 has the bits of fp32"
at half-2 2 "${half[@]}"
at half-4 4 "${half[@]}"
at half-sharded-2 2 "${half[@]}" ddp.sharded_optimizer=true
at half-resumed 3 "${half[@]}" train.steps=9
at half-resumed 2 "${half[@]}"
grep -q "going on after step 9" log-half-resumed || fail "bf16 did not resume"
for run in half-2 half-4 half-sharded-2 half-resumed; do
  expect_same half-1/checkpoints/latest "$run/checkpoints/latest"
done
! ranks 1 train run.ini --run half-1 >log 2>&1 </dev/null || fail "a bf16 run went on in fp32"
grep -q "train.precision: the run has 'bf16', asked for 'fp32'" log || fail "another precision on a resume: $(cat log)"

# A new run from a file's weights remembers the file: killed before its first checkpoint it starts from them again.
ranks 1 train run.ini --run from-file --resume at-1/checkpoints/latest >log 2>&1 || fail "--resume FILE: $(tail -n 3 log)"
rm -rf from-file/checkpoints/*
ranks 2 train run.ini --run from-file >log 2>&1 || fail "started again: $(tail -n 3 log)"
grep -q "a new run from the weights of at-1" log || fail "started again, it forgot the file: $(cat log)"
finish
