#!/usr/bin/env bash
# lockstep sweep: a grid of runs, each an ordinary one with the bits of `lockstep train`. Killed or stopped, and started again, it
# continues what is unfinished and repeats nothing; no process outlives it. A run that diverges is a row of the table. The best is
# named at the end, by `status --sort`, and it is the same.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 6000' 'global_batch = 24' 'shards = 3' 'eval_every = 2000' >run.ini
printf '%s\n' '[optimizer]' 'name = sgd' 'schedule = constant' '[checkpoint]' 'every = 1000' >>run.ini
sed -i 's/^train = digits.h5/&\neval_fraction = 0.3/' run.ini

# sweep NAME ARGUMENTS...: in the background, with what it says in NAME.out and NAME.err; $sweep is its process.
sweep() {
  set -m  # otherwise it ignores SIGINT, as bash has it
  "$LOCKSTEP" sweep run.ini --out "$1" "${@:2}" >"$1.out" 2>>"$1.err" </dev/null &
  sweep=$!
  set +m
}
# ends_with CODE NAME: waits for the sweep.
ends_with() {
  wait "$sweep" 2>/dev/null
  local code=$?
  [ "$code" -eq "$1" ] || fail "$2: exit $code, expected $1: $(tail -n 4 "$2.err")"
}
# alive NAME: the processes that hold or held a run of the sweep and still exist. nobody NAME: waits until there is none.
alive() {
  local pid
  cat "$1"/[0-9]*/lock 2>/dev/null | sed -n 's/^pid=//p' | while read -r pid; do
    ! grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/status" || echo "$pid"
  done
}
nobody() {
  local tenths
  for ((tenths = 0; tenths < 10 * patience_s; ++tenths)); do
    [ -n "$(alive "$1")" ] || return 0
    sleep 0.1
  done
  fail "$1: $(alive "$1") outlive the sweep"
}
done_runs() { grep -ls '"exit_code":0' "$1"/*/exit.json | wc -l; }
until_done() {  # until_done NAME RUNS: or the end of the sweep
  until [ "$(done_runs "$1")" -ge "$2" ] || ! kill -0 "$sweep" 2>/dev/null; do sleep 0.02; done
  [ "$(done_runs "$1")" -lt 19 ] || fail "$1: it has ended before it was stopped"
}

# --- 20 runs, killed by SIGKILL, stopped by SIGTERM and Ctrl-C, continued --------------------------------------------------
grid=(--over "optimizer.lr=0.001,0.003,0.01,0.03,0.1,0.3,0.6,1e30,0.06,0.006" --over "train.seed=1,2" --jobs 2)
sweep grid "${grid[@]}"
until_done grid 3
kill -KILL "$sweep"
ends_with 137 grid
nobody grid
finished=$(grep -ls '"exit_code":0' grid/*/exit.json)
before=$(xargs stat -c '%n %y' <<<"$finished")
sweep grid "${grid[@]}"
until_done grid 7
kill -TERM "$sweep"
ends_with 75 grid
[ -z "$(alive grid)" ] || fail "grid: runs outlive SIGTERM"
[ "$(grep -ls '"exit_code":76' grid/*/exit.json | wc -l)" -ge 1 ] || fail "grid: no run was stopped: $(cat grid/*/exit.json)"
! compgen -G 'grid/*/stop' >/dev/null || fail "grid: a request to stop is left"
refused 2 'holds another sweep: run 2 was optimizer.lr=0.001 train.seed=2, and is optimizer.lr=0.003' \
  "$LOCKSTEP" sweep run.ini --out grid --over optimizer.lr=0.001,0.003
sweep grid "${grid[@]}"
until_done grid 10
refused 2 'sweep.lock: another run holds this sweep: pid' "$LOCKSTEP" sweep run.ini --out grid "${grid[@]}"
kill -INT "$sweep"
ends_with 76 grid
listed=$(stat -c '%i %y' grid/list)
sweep grid "${grid[@]}"
ends_with 0 grid
[ "$listed" = "$(stat -c '%i %y' grid/list)" ] || fail "grid: an equal list was written again, which a task of Slurm may read"
[ "$before" = "$(xargs stat -c '%n %y' <<<"$finished")" ] || fail "grid: a finished run was repeated"
{ [ "$(done_runs grid)" -eq 18 ] && [ "$(grep -ls '"exit_code":4' grid/*/exit.json | wc -l)" -eq 2 ]; } || fail "grid: $(cat grid.out)"
for k in 1 9 12 13; do
  read -r -a settings <<<"$(sed -n "${k}p" grid/list)"
  train_to_end "alone-$k" 1 "${settings[@]}"
  expect_same "alone-$k/checkpoints/latest" "grid/$k/checkpoints/latest"
done
best=$(python3 - <<'PY'
import glob, json
best = {}
for k in range(1, 21):
    values = [line["eval_loss"] for line in map(json.loads, open(f"grid/{k}/metrics.jsonl")) if line.get("eval_loss") is not None]
    if values: best[k] = min(values)
print(min(best, key=best.get))
PY
)
grep -Eq "^best: grid/$best: eval_loss [0-9.]+  optimizer.lr=[0-9.]+ train.seed=[12]$" grid.out || fail "grid: the best is $best: $(tail -n 1 grid.out)"
[ "$(grep -c '^grid/' grid.out)" -eq 20 ] || fail "grid: $(cat grid.out)"
"$LOCKSTEP" status grid --sort eval_loss >status.out || fail "status --sort: exit $?"
[ "$(sed -n '2s/ .*//p' status.out)" = "grid/$best" ] || fail "status --sort: $(cat status.out)"
[ "$(tail -n 2 status.out | grep -Ec '^grid/1[56] +ended .* 4 ')" -eq 2 ] || fail "runs that diverged are last: $(cat status.out)"
"$LOCKSTEP" status grid --sort eval_accuracy --json | python3 -c '
import json, sys
rows = json.load(sys.stdin)
values = [row["eval_accuracy"] for row in rows if row["exit_code"] == 0]
assert values == sorted(values, reverse=True) and len(rows) == 20, values
assert rows[0]["loss"] and rows[0]["samples_per_second"] and rows[0]["left_s"] is None and "optimizer.lr=" in rows[0]["differs"], rows[0]
assert "checkpoint.every" not in rows[0]["differs"], rows[0]' || fail "status --sort --json"
[ "$("$LOCKSTEP" status grid --sort loss | sed -n 1p | grep -ow loss | wc -l)" -eq 1 ] || fail "status --sort loss: two columns of it"
grep -q "grid/report.html" grid.err || fail "grid: no page"
# first_of PAGE: the first row of its table of runs, with the names of the columns.
first_of() {
  python3 - "$1" <<'PY'
import json, re, sys
data = json.loads(re.search(r'id="data">(.*?)</script>', open(sys.argv[1]).read(), re.S)[1])
(table,) = [part["table"] for section in data["sections"] if section["title"] == "Runs" for part in section["parts"]]
print(*(f"{name}={cell}" for name, cell in zip(table["columns"], table["rows"][0])))
PY
}
first_of grid/report.html | grep -Eq "^run=$best \(best\) .* optimizer.lr=" || fail "the page names another one: $(first_of grid/report.html)"
refused 2 'no run has this metric' "$LOCKSTEP" status grid --sort eval_los
# Nothing is left to do. Common settings may change: then all runs continue.
sweep grid "${grid[@]}"
ends_with 0 grid
grep -q '20 of 20 runs had ended before' grid.err || fail "grid: $(tail -n 3 grid.err)"
sweep grid "${grid[@]}" --set train.steps=6010
ends_with 0 grid
[ "$(grep -l '"step":6010,' grid/*/exit.json | wc -l)" -eq 18 ] || fail "grid: not continued: $(tail -n 3 grid.err)"

# --- ranks by mpirun: a sweep that is killed takes them along ------------------------------------------------------------
ranked=(--over "optimizer.lr=0.03,0.1" --ranks 3 --jobs 2)
sweep ranked "${ranked[@]}" --set train.steps="$endless_steps"
for k in 1 2; do until_there ranked/$k/checkpoints/latest "$sweep"; done
ranks_then=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -o -- "--run ranked/[12]" | wc -l)
[ "$ranks_then" -ge 6 ] || fail "ranked: only $ranks_then processes"
kill -KILL "$sweep"
ends_with 137 ranked
for ((tenths = 0; tenths < 10 * patience_s; ++tenths)); do
  ! cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q -- '--run ranked/[12]' && break
  sleep 0.1
done
[ "$tenths" -lt $((10 * patience_s)) ] || fail "ranked: ranks outlive the sweep"
sweep ranked "${ranked[@]}" --set train.steps="$endless_steps"
for k in 1 2; do until_says "going on after step" ranked/$k.log "$sweep"; done
kill -TERM "$sweep"
ends_with 75 ranked
step=$(sed -nE 's/.*"step":([0-9]+),.*/\1/p' ranked/1/exit.json)
sweep ranked "${ranked[@]}" --set train.steps=$((step + 10))
ends_with 0 ranked
# A run whose process dies is started once more, and goes on.
sweep again --over optimizer.lr=0.03 --set data.train=nowhere.h5
ends_with 3 again
sweep again --over optimizer.lr=0.03 --set train.steps="$endless_steps"
until_there again/1/checkpoints/latest "$sweep"
kill -KILL "$(sed -n 's/^pid=//p' again/1/lock)"
until_says "going on after step" again/1.log "$sweep"
kill -TERM "$sweep"
ends_with 75 again
[ "$(grep -c 'again/1: begins' again.err)" -eq 3 ] || fail "again: $(cat again.err)"
grep 'again/1: exit code 137' again.err | grep -qv 'nowhere' || fail "again: the reason is that of an earlier start: $(cat again.err)"
# Under nohup a closed terminal does not stop it.
trap '' HUP
sweep nohup --over optimizer.lr=0.03 --set train.steps="$endless_steps"
trap - HUP
until_there nohup/1/checkpoints/latest "$sweep"
kill -HUP "$sweep"
kill -TERM "$sweep"
ends_with 75 nohup
! grep -q 'ends all runs' nohup.err || fail "nohup: SIGHUP has stopped it: $(cat nohup.err)"
# After an error of its own the runs save.
mkdir -p broken/2.log
sweep broken --over optimizer.lr=0.03,0.1 --jobs 2 --set train.steps="$endless_steps"
ends_with 3 broken
{ grep -q 'lockstep: broken/2.log: cannot create' broken.err && grep -q '"exit_code":76' broken/1/exit.json && [ -e broken/1/checkpoints/latest ]; } ||
  fail "broken: $(cat broken.err broken/1/exit.json)"
# A second signal ends them at once, without another checkpoint.
sweep twice --over optimizer.lr=0.03 --set train.steps="$endless_steps" --set checkpoint.every="$endless_steps"
until_there twice/1/metrics.jsonl "$sweep"
kill -STOP "$(sed -n 's/^pid=//p' twice/1/lock)"
kill -INT "$sweep"
until_there twice/1/stop "$sweep"
kill -INT "$sweep"
ends_with 76 twice
{ [ -z "$(alive twice)" ] && [ ! -e twice/1/checkpoints/latest ]; } || fail "twice: $(tail -n 2 twice.err)"

# --- a list, as jobs/array.sbatch reads it -------------------------------------------------------------------------------
printf '%s\r\n' '# a comment' '' "'ema.rates=0.9 0.99' optimizer.lr=0.001" '  optimizer.lr=0.2 data.train="digits.h5" ' >list.txt
sweep listed --list list.txt --set train.steps=20 --set checkpoint.keep_best=eval_accuracy
ends_with 0 listed
{ grep -q '^rates = 0.9 0.99$' listed/1/config.ini && grep -q '^lr = 0.2$' listed/2/config.ini; } || fail "listed: $(cat listed/*/config.ini)"
[ "$(cat listed/list)" = "'ema.rates=0.9 0.99' optimizer.lr=0.001 train.steps=20 checkpoint.keep_best=eval_accuracy
optimizer.lr=0.2 data.train=digits.h5 train.steps=20 checkpoint.keep_best=eval_accuracy" ] || fail "listed: $(cat listed/list)"
# A run whose configuration was removed begins again.
rm -r listed/1/config.ini
sweep listed --list list.txt --set train.steps=20 --set checkpoint.keep_best=eval_accuracy
ends_with 0 listed
grep -q '^rates = 0.9 0.99$' listed/1/config.ini || fail "listed: a removed configuration: $(tail -n 3 listed.err)"
# The best is the same one on the terminal, on the page and in TensorBoard.
grep -q '^best: listed/2: eval_accuracy ' listed.out || fail "listed: $(cat listed.out)"
grep -aq 'listed/2: eval_accuracy ' listed/tensorboard/events.out.tfevents.* || fail "listed: TensorBoard does not name the best"
first_of listed/report.html | grep -q '^run=2 (best) ' || fail "listed: the page names another one: $(first_of listed/report.html)"
echo "data.train='digits.h5" >open.txt
refused 2 'open.txt:1: a quote without its end' "$LOCKSTEP" sweep run.ini --list open.txt --out none
printf '# first\ntrain.seed=1\0\n' >null.txt
refused 2 'null.txt:2: .*null byte' "$LOCKSTEP" sweep run.ini --list null.txt --out none
: >empty.txt
refused 2 'no line of the list counts' "$LOCKSTEP" sweep run.ini --list empty.txt --out none
refused 3 'nowhere.txt' "$LOCKSTEP" sweep run.ini --list nowhere.txt --out none

# --- mistakes begin nothing; a run that fails is named, and the others run ------------------------------------------------
refused 2 'none/2, optimizer.lr=x: .*optimizer.lr' "$LOCKSTEP" sweep run.ini --over optimizer.lr=0.1,x --out none
refused 2 'optimizer.lt: unknown key; did you mean optimizer.lr' "$LOCKSTEP" sweep run.ini --over optimizer.lt=0.1 --out none
refused 2 'write it as SECTION.KEY=VALUE' "$LOCKSTEP" sweep run.ini --over optimizer.lr --out none
refused 2 'none/1, .*: train.seed is set twice' "$LOCKSTEP" sweep run.ini --over train.seed=1,2 --set train.seed=3 --out none
refused 2 'optimizer.lr is set twice' "$LOCKSTEP" sweep run.ini --over optimizer.lr=1 --over optimizer.lr=2 --out none
refused 2 'train.steps is set twice' "$LOCKSTEP" sweep run.ini --over optimizer.lr=1 --set train.steps=1 --set train.steps=2 --out none
refused 3 'grid: is not a run directory: .*lockstep status grid --sort METRIC' "$LOCKSTEP" report grid
refused 2 'give --over or --list' "$LOCKSTEP" sweep run.ini --out none
refused 2 '\-\-ranks and --jobs are at least 1' "$LOCKSTEP" sweep run.ini --over optimizer.lr=1 --jobs 0
refused 2 'is the directory of a run' "$LOCKSTEP" sweep run.ini --over optimizer.lr=1 --out grid/1
refused 2 'without mpirun' env OMPI_COMM_WORLD_RANK=0 "$LOCKSTEP" sweep run.ini --over optimizer.lr=1
sweep failing --over data.train=nowhere.h5,digits.h5 --set train.steps=20
ends_with 3 failing
{ grep -q 'failing/1: exit code 3: .*nowhere.h5' failing.err && [ "$(done_runs failing)" -eq 1 ]; } || fail "failing: $(cat failing.err)"
grep -Eq '^failing/1 +ended .* 3 .*nowhere.h5' failing.out || fail "failing: the refused run is no row: $(cat failing.out)"
grep -Eq 'failed, exit code 3: [^"]*nowhere.h5' failing/report.html || fail "failing: the refused run is no row of the page"

# --- none is the best without a value of a run that has not failed --------------------------------------------------------
sweep early --over optimizer.lr=1e30,0.1 --set train.steps="$endless_steps" --set log.every="$endless_steps" --set train.eval_every=0
until_there early/2/checkpoints/latest "$sweep"
kill -TERM "$sweep"
ends_with 75 early
{ grep -q '^early/1 .* 4 ' early.out && ! grep -q '^best:' early.out; } || fail "early: $(cat early.out)"
finish
