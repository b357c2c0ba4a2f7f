#!/usr/bin/env bash
# A sweep on a workstation, killed, and continued by an array job with the list that it left: the array finishes what is unfinished,
# and a run that train.patience ends is done, not requeued. `lockstep sweep` then finds nothing left to do and names the best.
# Environment: LOCKSTEP_TEST_SWEEP, the number of runs (4).
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "$0")/jobs.sh"
start_cluster 1
digits digits.h5
small_mlp 'steps = 4000' 'global_batch = 16' 'shards = 2' 'eval_every = 100' >run.ini
printf '%s\n' '[optimizer]' 'name = sgd' 'schedule = constant' '[checkpoint]' 'every = 200' >>run.ini
sed -i 's/^train = digits.h5/&\neval_fraction = 0.3/' run.ini
printf '%s\n' 'optimizer.lr=0.01' 'optimizer.lr=0.05 train.seed=3' 'train.patience=2 optimizer.lr=1' "'ema.rates=0.9 0.99' optimizer.lr=0.02" >sweep.txt
runs=${LOCKSTEP_TEST_SWEEP:-4}
for ((k = 5; k <= runs; ++k)); do echo "optimizer.lr=0.0$k train.seed=$k"; done >>sweep.txt

"$LOCKSTEP" sweep run.ini --list sweep.txt --out sweep >sweep.out 2>sweep.err </dev/null &
sweep=$!
until_there sweep/2/checkpoints/latest "$sweep"
kill -KILL "$sweep"
wait "$sweep" 2>/dev/null
[ ! -e sweep/3 ] || fail "it was not killed in the middle: $(cat sweep.err)"
first=$(stat -c %y sweep/1/checkpoints/step-000004000.h5)

array=$(sbatch --parsable --array="1-$runs" --output=array-%a.log "$templates/array.sbatch" run.ini sweep/list sweep)
for ((task = 1; task <= runs; ++task)); do ends "array-$task" "${array}_$task" COMPLETED 0 0; done
[ "$first" = "$(stat -c %y sweep/1/checkpoints/step-000004000.h5)" ] || fail "the finished run was repeated"
"$LOCKSTEP" status sweep/3 | grep -Eq 'ended .* 0 .*ended after step [0-9]+: 2 evaluations \(train.patience\) did not improve eval_loss' ||
  fail "patience: $("$LOCKSTEP" status sweep/3)"
"$LOCKSTEP" sweep run.ini --list sweep.txt --out sweep >sweep.out 2>sweep.err </dev/null || fail "afterwards: exit $?: $(tail -n 3 sweep.err)"
grep -q "$runs of $runs runs had ended before" sweep.err || fail "afterwards: $(cat sweep.err)"
best=$("$LOCKSTEP" status sweep --sort eval_loss | sed -n '2s/ .*//p')
{ [ -n "$best" ] && grep -q "^best: $best: eval_loss" sweep.out; } || fail "the best is '$best': $(cat sweep.out)"
for k in 2 4; do
  mapfile -t settings < <(xargs -n 1 printf '%s\n' <<<"$(sed -n "${k}p" sweep.txt)")
  train_to_end "alone-$k" 1 "${settings[@]}"
  expect_same "alone-$k/checkpoints/latest" "sweep/$k/checkpoints/latest"
done
finish
