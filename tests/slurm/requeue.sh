#!/usr/bin/env bash
# Jobs that are requeued, at the same time on a pair of nodes each: preempted, out of time, without one of its nodes, crashed. Each
# ends with the bits of an undisturbed run. Those without progress are given up: at the limit of restarts, and
# sooner when starts save nothing. And a program that knows only the exit codes.
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "$0")/jobs.sh"
start_cluster 10
endless_run

# crash.sh: lockstep, but rank 1 of `train` is killed by SIGSEGV as soon as the run $CRASHING has saved once more; at once, if
# there is none.
cat >crash.sh <<'CRASH'
#!/usr/bin/env bash
[ "$1" = train ] && [ "$SLURM_PROCID" = 1 ] || exec "$REAL" "$@"
newest() { readlink "$CRASHING/checkpoints/latest"; }
before=$(newest)
"$REAL" "$@" &
rank=$!
while [ -n "$CRASHING" ] && [ "$(newest)" = "$before" ] && kill -0 "$rank" 2>/dev/null; do sleep 0.1; done
kill -SEGV "$rank"
wait "$rank" 2>/dev/null
kill -SEGV $$
CRASH
chmod +x crash.sh

submit preempted -w n1,n2 -- train.sbatch run.ini --run preempted
preempted=$job
SBATCH_SIGNAL=B:USR2@1 submit late -w n3,n4 --time=1 -- train.sbatch run.ini --run late
late=$job
submit lost -N2 --exclude="n[1-4,7-8,10]" -- train.sbatch run.ini --run lost
lost=$job
export REAL=$LOCKSTEP
LOCKSTEP=$PWD/crash.sh CRASHING=crashing LOCKSTEP_MAX_RESTARTS=2 LOCKSTEP_MAX_STALLED=2 \
  submit crashing -w n7,n8 -- train.sbatch run.ini --run crashing
crashing=$job
LOCKSTEP=$PWD/crash.sh CRASHING='' LOCKSTEP_MAX_STALLED=2 submit hopeless -w n7,n8 -- train.sbatch run.ini --run hopeless
hopeless=$job

# program.sh: no lockstep. Each rank saves its state when it is asked to, and its second start is the last; with `fail` it fails.
cat >program.sh <<'PROGRAM'
#!/usr/bin/env bash
state=state-$SLURM_PROCID
trap 'echo "$1" >"$state" && exit 75' USR2
[ "$1" != fail ] || exit 5
[ ! -e "$state" ] || { echo "rank $SLURM_PROCID resumes with $(cat "$state")" && exit 0; }
echo "rank $SLURM_PROCID begins with $1 of $#"
while :; do sleep 0.1; done
PROGRAM
chmod +x program.sh
submit program -w n10 --ntasks-per-node=2 -- program.sbatch ./program.sh 'two words' end
program=$job
LOCKSTEP=nowhere LOCKSTEP_MAX_STALLED=2 submit failing -w n10 -- program.sbatch ./program.sh fail
failing=$job
# A program with a model and a task of its own, and the verbs of lockstep.
/usr/bin/python3 "$LOCKSTEP_SOURCE_DIR/share/example/wind.py" wind.h5 || fail "h5py is needed for this test"
cp "$LOCKSTEP_SOURCE_DIR/share/example/wind.ini" .
LOCKSTEP=$WIND submit wind -w n10 --ntasks-per-node=2 -- train.sbatch wind.ini --run wind --set train.steps="$endless_steps" \
  --set train.eval_every=0
wind_job=$job
submit nothing -w n10 -- program.sbatch ./no-such-program
nothing=$job

# starts_again NAME JOB COUNT: the job has come back for the COUNT-th time and trains.
starts_again() {
  local until=$((SECONDS + 120))
  until [ "$(restarts "$2")" -ge "$3" ] && reached "$1" "$3"; do
    [ "$SECONDS" -lt "$until" ] || give_up "$1: does not come back: $(state "$2"), $(tail -n 20 "$1.log")"
    hurry "$2"
    sleep 0.2
  done
}
# hurry JOB: need not wait for Slurm's two minutes, only for what they are there for: its processes to end, and the second to pass in
# which they were killed, since slurmd takes what is to start in it for killed as well ("already killed, do not launch").
declare -A hurried=()  # by job and restart
hurry() {
  local start
  start=$1.$(restarts "$1")
  if [ -z "${hurried[$start]:-}" ] && is "$1" PENDING && [ -z "$(steps_of "$1")" ]; then
    scontrol update JobId="$1" StartTime=now+2 2>/dev/null && hurried[$start]=yes
  fi
}
# no_step_lost NAME: every start went on where the one before it was stopped.
no_step_lost() {
  local stopped resumed
  stopped=$(sed -nE 's/.*preempted after step ([0-9]+);.*/\1/p' "$1.log")
  resumed=$(sed -nE 's/.*going on after step ([0-9]+) .*/\1/p' "$1.log")
  if [ -z "$stopped" ] || [ "$stopped" != "$resumed" ]; then fail "$1: stopped after $stopped, resumed after $resumed"; fi
  held "$1: stopped and resumed after step ${resumed//$'\n'/ }"
}
# stopped_by_user NAME JOB RESTARTS [CONFIG]: RUN/stop ends it for good, in the bits of an undisturbed run.
stopped_by_user() {
  touch "$1/stop"
  ends "$1" "$2" FAILED 76 "$3"
  same_as_undisturbed "$1" "${4:-}"
}

# A node is gone with all that ran on it: nothing answers any more. Slurm finds out, ends the rest and requeues the job itself; it
# goes on with the node that was to spare.
until_trains lost 0
wait_for 60 test -e lost/checkpoints/latest || give_up "lost: no checkpoint: $(tail lost.log)"
read -r -d '' stays goes < <(scontrol show hostnames "$(squeue -h -j "$lost" -o %N)")
mapfile -t frozen < <(processes_of "$goes")
[ ${#frozen[@]} -ge 2 ] || give_up "lost: nothing of $goes runs: ${frozen[*]}"
kill -STOP "${frozen[@]}"
{ kill -KILL "${slurmd[$goes]}" && wait "${slurmd[$goes]}"; } 2>/dev/null
lost_at=$SECONDS
none_left() { [ -z "$(processes_of "$stays")" ]; }
(wait_for 100 none_left && echo "$((SECONDS - lost_at))" >gone) &
last_seen=$(sed -nE 's/.* step ([0-9]+)\/.*/\1/p' lost.log | tail -n 1)

# A job of higher priority wants both nodes.
until_trains preempted 0
high=$(sbatch --parsable --partition=high -w n1,n2 --exclusive --output=/dev/null --wrap true)
wait_for 90 is "$high" COMPLETED || give_up "the job of higher priority: $(state "$high")"
starts_again preempted "$preempted" 1
no_step_lost preempted
stopped_by_user preempted "$preempted" 1

until_trains wind 0
wait_for 60 test -e wind/checkpoints/latest || give_up "wind: no checkpoint: $(tail wind.log)"
scancel --signal=USR2 --batch "$wind_job"
status_is() { "$REAL" status "$1" --json | grep -q "\"state\": \"$2\""; }
wait_for 60 status_is wind queued || fail "wind waits in the queue: $("$REAL" status wind)"
starts_again wind "$wind_job" 1
status_is wind training || fail "wind trains again: $("$REAL" status wind)"
[ ! -e wind/queued ] || fail "wind trains again: wind/queued is still there"
no_step_lost wind
LOCKSTEP=$WIND stopped_by_user wind "$wind_job" 1 wind.ini

# wait_for_end NAME JOB: however often it is requeued.
wait_for_end() {
  local until=$((SECONDS + 120))
  until ended "$2"; do
    [ "$SECONDS" -lt "$until" ] || give_up "$1: $(state "$2"): $(tail -n 20 "$1.log")"
    hurry "$2"
    sleep 0.2
  done
}
# A program of any kind: its arguments reach it as they are, and it is requeued by its exit codes.
wait_for 60 grep -q 'rank 1 begins' program.log || give_up "program: does not begin: $(cat program.log)"
wait_for 60 grep -q 'rank 0 begins' program.log || give_up "program: does not begin: $(cat program.log)"
says program "rank 1 begins with two words of 2"
scancel --signal=USR2 --batch "$program"
wait_for_end program "$program"
ends program "$program" COMPLETED 0 1
says program "stopped as asked; requeued as $program\$"
says program "rank 1 resumes with two words"
wait_for_end failing "$failing"
ends failing "$failing" FAILED 5 1
says failing "nodes are not checked: no program nowhere"
says failing "failed with exit 5; not requeued: 2 starts in a row without a newer checkpoint"
ends nothing "$nothing" FAILED 2 0
says nothing "no program ./no-such-program"

# A run that crashes is requeued while checkpoints get newer, up to the limit; one that saves nothing, once.
wait_for_end hopeless "$hopeless"
says hopeless "2 starts in a row without a newer checkpoint"
[ "$(state "$hopeless") $(restarts "$hopeless")" = "FAILED 1" ] || fail "hopeless: $(state "$hopeless"), $(restarts "$hopeless") restarts"
wait_for_end crashing "$crashing"
says crashing "2 restarts, the limit is 2"
[ "$(state "$crashing") $(restarts "$crashing")" = "FAILED 2" ] || fail "crashing: $(state "$crashing"), $(restarts "$crashing") restarts"
same_as_undisturbed crashing
# The other rank does not take Slurm's SIGTERM for a request to stop, nor waits for its SIGKILL.
says crashing "rank 1 .*: no sign of life for .*SIGTERM now means the end of this job"
silent_about crashing "exit 1[0-9][0-9]"
held "hopeless and crashing: $(exit_code "$hopeless"), $(exit_code "$crashing")"

until_is lost "$lost" PENDING
[ "$(restarts "$lost")" -eq 1 ] || fail "lost: $(restarts "$lost") restarts"
wait_for 60 test -s gone || fail "lost: processes left on $stays: $(processes_of "$stays")"
held "lost: $(cat gone) s from the loss to the last process of the other node"
kill -KILL "${frozen[@]}"
starts_again lost "$lost" 1
resumed=$(sed -nE 's/.*going on after step ([0-9]+) .*/\1/p' lost.log)
# A step is logged before it is saved: the checkpoint of the step that was seen last may not be there.
[ "$((last_seen - resumed))" -le 200 ] || fail "lost: at step $last_seen when the node was lost, resumed after step $resumed"
held "lost: at step $last_seen or later when the node was lost, resumed after step $resumed"
stopped_by_user lost "$lost" 1

starts_again late "$late" 1
no_step_lost late
stopped_by_user late "$late" 1
finish
