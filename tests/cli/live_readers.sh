#!/usr/bin/env bash
# live_readers.sh READINGS: every verb that reads a run reads RUN/checkpoints/latest, and RUN/ema, so often beside a run that saves
# without a pause, moves its links, and prunes what they led to; none may fail.
source "$(dirname "$0")/../support/cli.sh"
readings=${LOCKSTEP_TEST_READINGS:-$1}

words text.h5
cat >run.ini <<INI
[model]
name = gpt
layers = 1
heads = 1
channels = 16
context = 16
vocab = 256
[data]
train = text.h5
eval_fraction = 0.02
[train]
steps = $endless_steps
global_batch = 4
shards = 2
[ema]
rates = 0.9
sigma_rel = 0.05 0.10
[checkpoint]
every = 4
keep = 2
[log]
every = 1000
INI
"$LOCKSTEP" train run.ini --run live >log-live 2>&1 </dev/null &
run=$!
trap 'kill $run 2>/dev/null; wait $run; rm -rf "$scratch"' EXIT
for _ in $(seq 300); do
  [ "$(find live/ema -name 'step-*.h5' 2>/dev/null | wc -l)" -ge 8 ] && break
  sleep 0.1
done
[ -e live/checkpoints/latest ] || fail "the run saves nothing: $(tail -n 3 log-live)"
sed 's/^steps.*/steps = 1/; s/^every = 4/every = 0/' run.ini >from.ini

saves_before=$(readlink live/checkpoints/latest)
total=0 bad=0
# read_by WHAT COMMAND...: so many readings.
read_by() {
  local what=$1 failed=0 code
  shift
  for number in $(seq "$readings"); do
    "$@" >out.log 2>err.log && continue
    code=$?
    failed=$((failed + 1))
    fail "$what, reading $number: exit $code: $(grep -h lockstep out.log err.log | head -n 3)"
  done
  total=$((total + readings)) bad=$((bad + failed))
  echo "$what: $failed of $readings failed"
}
# on_ranks ARGUMENTS...: every fifth reading on two.
on_ranks() {
  ranks "$((number % 5 == 0 ? 2 : 1))" "$@"
}
latest=live/checkpoints/latest
# Two readings of a link that moves are of two files: they differ, which is no trouble.
compare() {
  "$LOCKSTEP" diff $latest $latest
  [ $? -le 1 ]
}
convert() {
  on_ranks convert $latest "out.$1" --force
}
average() {
  on_ranks ema live --sigma-rel 0.07 --out average.h5 --force
}
start() {
  rm -rf from
  on_ranks train from.ini --run from --resume $latest
}
read_by verify on_ranks verify $latest
read_by inspect "$LOCKSTEP" inspect $latest --json
read_by diff compare
read_by eval on_ranks eval $latest --json
read_by generate "$LOCKSTEP" generate $latest --prompt a --tokens 4
read_by "convert to .h5" convert h5
read_by "convert to .safetensors" convert safetensors
read_by "convert --config" "$LOCKSTEP" convert $latest fitted.h5 --config run.ini --force
read_by ema average
read_by "train --resume" start

[ "$(readlink live/checkpoints/latest)" != "$saves_before" ] || fail "the run saved nothing meanwhile"
kill -0 $run 2>/dev/null || fail "the run ended: $(tail -n 3 log-live)"
steps() { sed -E 's/step-0*([0-9]+)\.h5/\1/' <<<"$1"; }
saves=$((($(steps "$(readlink live/checkpoints/latest)") - $(steps "$saves_before")) / 4))
echo "figures: $bad of $total readings beside $saves saves failed"
finish
