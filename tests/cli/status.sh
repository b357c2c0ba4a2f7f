#!/usr/bin/env bash
# lockstep status: what it says of a run in every state, from files alone; and that it leaves the files as they are.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5

# status RUN...: its JSON in status.json; the exit code is its own.
status() {
  "$LOCKSTEP" status "$@" --json >status.json 2>err.log
}
# says RUN KEY=VALUE...: what the status of this run is, in Python's words.
says() {
  status "$1" || fail "status $1: exit $?: $(cat err.log)"
  python3 - "$@" <<'PY' || fail "status $1: $(cat status.json)"
import json, re, sys
keys = ["run", "state", "step", "steps", "exit_code", "last_line_s", "loss", "samples_per_second", "left_s", "why"]
(run,) = json.load(open("status.json"))
assert sorted(run) == sorted(keys), f"keys {list(run)}"
assert run["run"] == sys.argv[1] and run["why"], run
assert run["last_line_s"] is None or run["last_line_s"] >= 0, run
for wanted in sys.argv[2:]:
    key, value = wanted.split("=", 1)
    if key == "why":
        assert re.search(value, run["why"]), f"why is {run['why']!r}, not {value!r}"
    elif key == "last_line_s":
        assert (run[key] is None) == (value == "None"), run
    else:
        assert run[key] == (None if value == "None" else type(run[key])(value)), f"{key} is {run[key]!r}, not {value}"
PY
}

# --- ended ---------------------------------------------------------------------------------------------------------------
small_mlp 'steps = 30' 'global_batch = 32' 'shards = 2' '[log]' 'every = 10' >short.ini
ranks 2 train short.ini --run whole >log 2>&1 || fail "a short run: $(tail -n 3 log)"
says whole state=ended step=30 steps=30 exit_code=0 'why=^done: 30 steps$' last_line_s=0

# Its loss is not finite: exit code 4, with the error as the reason.
ranks 2 train short.ini --run diverged --set optimizer.lr=1e30 --set optimizer.name=sgd >log 2>&1
code=$?
[ "$code" -eq 4 ] || fail "a run that diverges: exit $code"
says diverged state=ended steps=30 exit_code=4 'why=not finite|loss'

# A start that another configuration refuses changes nothing: the run ended as it did, and the reason is added.
"$LOCKSTEP" train short.ini --run whole --set train.seed=9 >log 2>&1
says whole state=ended step=30 exit_code=0 'why=refused: .*train.seed'
ranks 1 train short.ini --run whole --set train.steps=40 >log 2>&1 || fail "it does not resume: $(tail -n 1 log)"
says whole state=ended step=40 steps=40 exit_code=0

# --- training, stopped ---------------------------------------------------------------------------------------------------
small_mlp "steps = $endless_steps" 'global_batch = 32' 'shards = 2' '[log]' 'every = 100' '[checkpoint]' 'every = 200' >run.ini
start() {  # start RUN: in the background; $run is its process
  "$LOCKSTEP" train run.ini --run "$1" >"log-$1" 2>&1 </dev/null &
  run=$!
  until { [ -e "$1/checkpoints/latest" ] && grep -q "^pid=$run$" "$1/lock" 2>/dev/null; } || ! kill -0 "$run" 2>/dev/null; do sleep 0.02; done
}
start live
says live state=training steps=$endless_steps exit_code=None "why=^pid $run on $(hostname)" last_line_s=0
python3 -c 'import json; assert json.load(open("status.json"))[0]["step"] >= 100' || fail "step: $(cat status.json)"
kill -STOP "$run"
# A thread stops when its call into the kernel returns, and on a busy disk a rename or a removal takes its time.
until ! grep -hq '^State:[^TZ]*$' /proc/"$run"/task/*/status 2>/dev/null; do sleep 0.02; done
before=$(find live -printf '%p %s %T@ %i\n' | sort)
touch asked && cp asked live/checkpoint && says live state=training 'why=^asked for a checkpoint: pid'
rm live/checkpoint && touch live/stop && says live state=training 'why=^asked to stop: pid'
rm live/stop
"$LOCKSTEP" status live >/dev/null
[ "$before" = "$(find live -printf '%p %s %T@ %i\n' | sort | sed '1d')" ] ||
  diff <(sed '/^live [0-9]/d' <<<"$before") <(find live -printf '%p %s %T@ %i\n' | sort | sed '/^live [0-9]/d') ||
  fail "status changed files of the run"
# A torn line is not a line, and neither is one that is no record.
lines=$(tail -n 1 live/metrics.jsonl)
printf 'not a record\n{"step": 999999999, "lo' >>live/metrics.jsonl
wanted=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["step"])' "$lines")
says live state=training "step=$wanted"
kill -CONT "$run"
touch live/stop
wait "$run"
says live state=stopped exit_code=76 'why=^stopped as asked after step [0-9]+$'

start preempted
kill -TERM "$run"
wait "$run"
says preempted state=stopped exit_code=75 'why=^preempted after step [0-9]+$'

# --- queued: what jobs/slurm.sh leaves; a new start's lock matters more --------------------------------------------------
printf 'job=42\nexit_code=75\n' >preempted/queued
says preempted state=queued exit_code=75 'why=Slurm job 42 '
start preempted
says preempted state=training exit_code=None
rm preempted/queued

# --- lost ----------------------------------------------------------------------------------------------------------------
kill -KILL "$run"
wait "$run" 2>/dev/null
says preempted state=lost exit_code=None "why=^pid $run on .* is dead"
# The number of the process belongs to another one now, of another start.
sed "s/^pid=.*/pid=$$/" preempted/lock >lock && cp lock preempted/lock
says preempted state=lost
# On another host: silence for much longer than between two lines.
sed 's/^host=.*/host=elsewhere/' lock >preempted/lock
says preempted state=training 'why=on elsewhere'
python3 - <<'PY'
import json, time
lines = [json.dumps({"step": 100 * i, "loss": 1, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600 + 5 * i))})
         for i in range(4)]
open("preempted/metrics.jsonl", "w").write("\n".join(lines) + "\n")
PY
touch -d '2 hours ago' preempted/lock
rm -f preempted/checkpoints/* && touch preempted/checkpoints/step-000000320.h5  # newer than the last line
says preempted state=lost step=320 'why=no line for (0:59|1:00):[0-9]+.*0:00:05'

# --- what is known of little ---------------------------------------------------------------------------------------------
mkdir -p own/checkpoints && touch own/checkpoints/step-000000070.h5  # of a program with a loop of its own
says own state=stopped step=70 steps=None exit_code=None last_line_s=None

# --- several runs, and what is none --------------------------------------------------------------------------------------
status whole live own || fail "several runs: exit $?"
[ "$(grep -c '"run"' status.json)" -eq 3 ] || fail "several runs: $(cat status.json)"
"$LOCKSTEP" status whole/ live >table 2>err.log || fail "a table: exit $?"
grep -Eq '^whole +ended +40/40 +0 +[0-9]+ s ago +done: 40 steps$' table || fail "the table: $(cat table)"
mkdir empty
for other in empty nowhere; do
  refused 3 "\"$other\"" status whole "$other"
  [ "$(grep -c '"run"' status.json)" -eq 1 ] || fail "status whole $other does not show the run: $(cat status.json)"
done
"$LOCKSTEP" status >out 2>err.log
[ $? -eq 2 ] || fail "status without a run: $(cat err.log)"

# A folder of runs: those in it, by number before name, and what is none is left out; the best first. A run that trains has its time left.
mkdir -p folder/none && for name in 10 2 b; do cp -r whole "folder/$name"; done
sed -i 's/"loss":[0-9.]*/"loss":0.25/' folder/b/metrics.jsonl
"$LOCKSTEP" status folder >table 2>err.log || fail "a folder: exit $?: $(cat err.log)"
[ "$(sed -n 's/ .*//p' table | tr '\n' ' ')" = "run folder/2 folder/10 folder/b " ] || fail "a folder: $(cat table)"
"$LOCKSTEP" status folder --sort loss >table 2>err.log || fail "--sort: exit $?: $(cat err.log)"
sed -n 2p table | grep -Eq '^folder/b +ended +40/40 +0\.2500 +[0-9]+ +- +0 ' || fail "--sort: $(cat table)"
refused 2 'no run has this metric' "$LOCKSTEP" status folder --sort los
start left
until_says '"step":200,' left/metrics.jsonl "$run"
status left || fail "time left: exit $?"
python3 -c '
import json
(run,) = json.load(open("status.json"))
assert run["left_s"] > 0 and run["loss"] > 0 and run["samples_per_second"] > 0, run' || fail "time left: $(cat status.json)"
kill -TERM "$run" && wait "$run"

# --- watching: it says again what has changed ----------------------------------------------------------------------------
"$LOCKSTEP" status own --json --watch >watched &
watcher=$!
until [ -s watched ]; do sleep 0.02; done
touch own/checkpoints/step-000000080.h5
until_says '"step":80' watched $watcher
kill -INT $watcher 2>/dev/null || kill $watcher
kill $watcher 2>/dev/null
wait $watcher 2>/dev/null
python3 -c '
import json
seen = [json.loads(line)[0]["step"] for line in open("watched")]
assert seen[0] == 70 and seen[-1] == 80, seen' || fail "watching: $(cat watched)"
finish
