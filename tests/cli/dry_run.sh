#!/usr/bin/env bash
# train --dry-run: all of a start but its steps. It prints the configuration that the run then has, says what the start would do, writes
# nothing, and fails as the start would.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'global_batch = 24' 'epochs = 0.2' 'threads = 0' '[checkpoint]' 'every = 5' '[log]' 'every = 5' >run.ini

# files: every file and link, with its content and times.
files() {
  find . -mindepth 1 ! -name '*.log' ! -name 'printed*' ! -name before ! -name after -printf '%p %y %l %T@\n' | sort
}
# dry RANKS TEXT ARGUMENTS...: nothing changes, and the last line says TEXT.
dry() {
  local count=$1 text=$2
  shift 2
  files >before
  ranks "$count" train "$@" --dry-run >printed.ini 2>dry.log || fail "$*: $(tail -n 2 dry.log)"
  files >after
  cmp -s before after || fail "$*: something was written: $(diff before after)"
  tail -n 1 dry.log | grep -qF "dry run: nothing was written; a start would $text" || fail "$*: does not say '$text': $(cat dry.log)"
}

for count in 1 2; do
  dry "$count" "begin runs/run after step 0, and take 15 steps" run.ini
  grep -q 'memory of a rank, at least: .*: parameters .*, gradients ' dry.log || fail "no memory need"
  cp printed.ini "printed-$count.ini"
  ranks "$count" train run.ini --run "run-$count" >log.log 2>&1 || fail "train: $(tail -n 2 log.log)"
  cmp "printed-$count.ini" "run-$count/config.ini" || fail "the run has another configuration than was printed"
done
dry 1 "resume run-2 after step 15, and take 0 steps" printed-2.ini --run run-2
half=run-2/checkpoints/step-000000010.h5
dry 2 "fork $half into fork after step 10, and take 5 steps" run.ini --run fork --fork "$half" --set train.seed=3
grep -q 'fork: train.seed = 3 (was 1)' dry.log || fail "the difference is not said: $(cat dry.log)"
dry 2 "resume run-2 after step 15, and take 22 steps" run.ini --run run-2 --set train.epochs=0.49
grep -q 'changed: train.steps = 37 (was 15)' dry.log || fail "the change is not said: $(cat dry.log)"

# The recipe for CIFAR-10 is taken as it is, once its data are there; so is its linear variant.
/usr/bin/python3 -c '
import random
records = random.Random(0).randbytes(3073 * 160)
for part in (1, 2, 3, 4, 5, "test"):
    name = f"data_batch_{part}.bin" if part != "test" else "test_batch.bin"
    with open(name, "wb") as f:
        for i in range(160): f.write(bytes([i % 10]) + records[3073 * i + 1:3073 * (i + 1)])'
mkdir -p runs/data
for line in 'data_batch_{1,2,3,4,5}.bin --out runs/data/cifar.h5' 'test_batch.bin --statistics runs/data/cifar.h5 --out runs/data/cifar-test.h5'; do
  grep -qF "#   lockstep prepare cifar $line" "$LOCKSTEP_SOURCE_DIR/jobs/diffusion-cifar.ini" || fail "diffusion-cifar.ini does not say: $line"
  eval "\"\$LOCKSTEP\" prepare cifar $line" >log.log 2>&1 || fail "$line: $(tail -n 2 log.log)"
done
dry 1 "begin runs/diffusion-cifar after step 0, and take 500000 steps" "$LOCKSTEP_SOURCE_DIR/jobs/diffusion-cifar.ini"
dry 1 "begin runs/diffusion-cifar after step 0, and take 500000 steps" "$LOCKSTEP_SOURCE_DIR/jobs/diffusion-cifar.ini" \
  --set diffusion.schedule=linear
rm -r ./*.bin runs

# The configuration comes first, so that what the start would do is the last line of a terminal.
"$LOCKSTEP" train run.ini --dry-run >both.log 2>&1 || fail "both outputs: $(tail -n 2 both.log)"
if ! grep -qx '\[model\]' both.log || [[ $(tail -n 1 both.log) != *'dry run: nothing was written'* ]]; then
  fail "the end of a dry run: $(tail -n 1 both.log)"
fi
rm both.log

# A damaged checkpoint keeps its name, and no start is counted.
truncate -s 1000 run-2/checkpoints/step-000000015.h5
for _ in 1 2 3; do dry 1 "resume run-2 after step 10, and take 5 steps" run.ini --run run-2; done

# A directory that a live run holds.
endless=(run.ini --run held --set train.epochs=0 --set "train.steps=$endless_steps" --set checkpoint.every=0)
"$LOCKSTEP" train "${endless[@]}" >held.log 2>&1 &
holder=$!
until_there held/config.ini "$holder"
"$LOCKSTEP" train "${endless[@]}" --dry-run >/dev/null 2>dry.log ||
  fail "a held directory: $(tail -n 2 dry.log)"
grep -q "held: is held by pid $holder" dry.log || fail "who holds the directory is not said: $(cat dry.log)"
kill "$holder"
wait "$holder"

# no_dry_run CODE TEXT ARGUMENTS...: an error as that of the start.
no_dry_run() {
  refused "$1" "$2" ranks 1 train run.ini --dry-run "${@:3}"
  [ ! -s out.log ] || fail "${*:3}: printed a configuration"
}
no_dry_run 2 'run-1: holds a run of another configuration' --run run-1 --set train.seed=2
no_dry_run 2 'holds checkpoints already, and --resume never was given' --run run-1 --resume never
no_dry_run 3 'data.train: nowhere.h5' --run new --set data.train=nowhere.h5
no_dry_run 2 'do not divide' --run new --set train.shards=5
finish
