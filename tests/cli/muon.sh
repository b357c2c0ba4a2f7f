#!/usr/bin/env bash
# optimizer.name = muon: a gpt that learns text ends in the same bits at any number of ranks, with the optimizer sharded or whole, and so
# does a run that went on with other ranks; and what it cannot take is said.
source "$(dirname "$0")/../support/cli.sh"

words text.h5
small_gpt 'eval_fraction = 0.1' >run.ini
cat >>run.ini <<'INI'
[train]
steps = 12
global_batch = 12
shards = 12
seed = 7
[optimizer]
name = muon
lr = 5e-3
weight_decay = 0.1
clip = 0.5
schedule = constant
[ema]
rates = 0.9
[ddp]
bucket_mb = 0.02
first_bucket_mb = 0.005
[checkpoint]
every = 6
INI

train_to_end at-1 1 ddp.sharded_optimizer=false
train_to_end at-2 2 ddp.sharded_optimizer=false
train_to_end sharded-3 3 ddp.sharded_optimizer=true
train_to_end resumed 3 ddp.sharded_optimizer=true train.steps=6
train_to_end resumed 2 ddp.sharded_optimizer=false
grep -q "going on after step 6" log-resumed || fail "the run did not resume"
for run in at-2 sharded-3 resumed; do expect_same at-1/checkpoints/latest "$run/checkpoints/latest"; done

"$LOCKSTEP" inspect at-1/checkpoints/latest >inspect.log || fail "inspect: $(tail -n 1 inspect.log)"
has_line 'optimizer/momentum_buffer/transformer.h.0.attn.c_attn.weight' <inspect.log || fail "no momentum of a matrix"
has_line 'optimizer/exp_avg/transformer.wte.weight' <inspect.log || fail "no AdamW for the embedding"
! has_line 'optimizer/(momentum_buffer/transformer.wte|exp_avg/transformer.h.0.attn.c_attn.weight)' <inspect.log ||
  fail "a parameter has the state of both: $(cat inspect.log)"
for line in 'momentum = 0.95' 'nesterov = true' 'decay = matrices'; do
  grep -qx "$line" at-1/config.ini || fail "config.ini does not say $line"
done

# no_run CODE TEXT SECTION.KEY=VALUE...
no_run() {
  local settings=("${@:3}")
  refused "$1" "$2" ranks 1 train run.ini --run none "${settings[@]/#/--set=}"
}
no_run 2 "Muon: pattern '\*.bias' matches '.*', which is \[.*\]" 'optimizer.muon=*.bias'
no_run 2 "Muon: pattern 'nothing' matches no parameter" optimizer.muon=nothing
ranks 1 train run.ini --run none --dry-run --set optimizer.name=adamw --set 'optimizer.muon=*.weight' >log 2>&1 ||
  fail "a key of another optimizer is refused: $(tail -n 1 log)"
grep -q 'note: run.ini: optimizer.muon: of other optimizers than optimizer.name = adamw' log ||
  fail "a key of another optimizer is not noted: $(cat log)"
no_run 2 'neither an embedding nor an output head' 'train.frozen=transformer.h.*'
refused 2 'optimizer.muon: the run has' ranks 1 train run.ini --run at-1 --set 'optimizer.muon=*.c_fc.weight'
finish
