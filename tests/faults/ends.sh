#!/usr/bin/env bash
# What `lockstep status` says of a run that something ended: a hang, a rank that was killed, a launcher that was, a job of which nothing is
# left, a full disk. The state is right, the reason names what happened, and the run goes on afterwards.
source "$(dirname "$0")/faults.sh"

digits digits.h5
small_mlp "steps = $endless_steps" 'global_batch = 32' 'shards = 2' '[log]' 'every = 50' '[checkpoint]' 'every = 100' \
  '[fault]' 'hang_timeout_s = 1' >run.ini
export OMPI_MCA_odls_base_sigkill_timeout=3

# says STATE CODE WHY: of RUN subject; CODE as JSON, WHY a regular expression.
says() {
  "$LOCKSTEP" status subject --json >status.json 2>err.status || fail "$case: status: $(cat err.status)"
  python3 - "$@" <<'PY' || fail "$case: $(cat status.json) $(tail -n 4 err.log)"
import json, re, sys
(run,) = json.load(open("status.json"))
state, code, why = sys.argv[1:]
assert run["state"] == state and run["exit_code"] == json.loads(code) and re.search(why, run["why"]), run
PY
}
# start: the run in the background on two ranks, until it has a checkpoint. $launcher; $first and $second: the ranks.
start() {
  rm -rf subject
  # shellcheck disable=SC2086
  $LOCKSTEP_MPIRUN -n 2 "$LOCKSTEP" train run.ini --run subject >out.log 2>err.log </dev/null &
  launcher=$!
  find_ranks
}
find_ranks() {
  until_there subject/checkpoints/latest "$launcher"
  first=$(sed -n 's/^pid=//p' subject/lock)
  second=$(pgrep -P "$(ps -o ppid= -p "$first" | tr -d ' ')" -f 'lockstep train' | grep -vx "$first" | tail -n 1)
  [ -n "$second" ] || fail "$case: no second rank"
}
gone() { while kill -0 "$first" 2>/dev/null || kill -0 "$second" 2>/dev/null; do sleep 0.05; done; }
resumes() {
  ranks 2 train run.ini --run subject --set train.steps=$(($(newest) + 5)) >out.log 2>err.log || fail "$case: does not resume: $(tail -n 3 err.log)"
  says ended 0 '^done: '
}
newest() { basename "$(readlink -f subject/checkpoints/latest)" .h5 | sed 's/step-0*//'; }

# A rank can say how another one ended if the launcher gives it the time, as only that of Open MPI 4 does.
if [ "$mpi" = orte ]; then
  case="a rank hangs"
  start
  says training null '^pid'
  kill -STOP "$second"
  wait "$launcher"
  kill -KILL "$second" 2>/dev/null
  gone
  says ended 5 "^rank 1 \(.*process $second\): no (sign of life|progress) for [0-9.]+ s; in "
  resumes

  case="rank 0 hangs"
  start
  kill -STOP "$first"
  wait "$launcher"
  kill -KILL "$first" 2>/dev/null
  gone
  says ended 5 "^rank 0 \(.*process $first\): no (sign of life|progress) for [0-9.]+ s; in "
  resumes

  for rank in 1 0; do
    case="rank $rank is killed"
    OMPI_MCA_odls_base_sigkill_timeout=1 start  # as it is by default
    [ $rank = 1 ] && victim=$second || victim=$first
    kill -KILL "$victim"
    wait "$launcher"
    gone
    says ended 5 "rank $rank|process $victim"
    resumes
  done

  case="the launcher is killed"
  start
  kill -KILL "$launcher"
  wait "$launcher" 2>/dev/null
  gone
  says ended 5 'its launcher \(process [0-9]+\) is gone|has died'
fi

case="nothing of the job is left"
start
kill -STOP "$first" "$second" "$launcher"  # nobody has time to say anything
kill -KILL "$first" "$second" "$launcher"
wait "$launcher" 2>/dev/null
gone
says lost null "^pid $first on .* is dead and left its lock; the same command resumes"
resumes

# The job script writes what the launcher said, where the ranks could not.
case="all ranks are killed under the job script"
rm -rf subject
LOCKSTEP_BIND=none LOCKSTEP_MAX_RESTARTS=0 \
  bash "$LOCKSTEP_SOURCE_DIR/jobs/train-mpirun.sh" 2 run.ini --run subject >out.log 2>err.log </dev/null &
launcher=$!
find_ranks
kill -STOP "$first" "$second"
kill -KILL "$first" "$second"
until_says '"exit_code":[0-9]' subject/exit.json "$launcher"
grep -q '"why":"the launcher ended with exit code 137: a rank was ended by SIGKILL"' subject/exit.json ||
  fail "$case: $(cat subject/exit.json) $(tail -n 3 err.log)"
wait "$launcher"
code=$?
gone
[ $code -eq 137 ] || fail "$case: the script's exit code"
says ended 137 'SIGKILL'

case="a full disk"
if [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null; then
  rm -rf subject
  mkdir subject
  # shellcheck disable=SC2016
  # Somebody else fills the disk during the run: the next checkpoint finds no room. Then a start finds none even for its lock.
  # shellcheck disable=SC2016
  unshare --mount bash -c '
    mount -t tmpfs -o size=2m tmpfs subject || exit
    run() { "$LOCKSTEP" train run.ini --run subject --set log.tensorboard=false --set log.every=1000000 >out.log 2>err.log; }
    run &
    until [ -e subject/checkpoints/latest ] || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
    dd if=/dev/zero of=subject/full bs=4k >/dev/null 2>&1
    wait $!
    echo $? >code
    "$LOCKSTEP" status subject --json >status.json
    dd if=/dev/zero of=subject/fuller bs=1 >/dev/null 2>&1
    run
    [ ! -e subject/lock ] || cp subject/lock left
    cp err.log second.log' || fail "$case"
  [[ "$(cat code)" =~ ^[35]$ ]] || fail "$case: exit $(cat code): $(cat err.log)"
  python3 -c '
import json
(run,) = json.load(open("status.json"))
assert run["state"] == "ended" and run["exit_code"] == int(open("code").read()) and "No space left on device" in run["why"], run' ||
    fail "$case: $(cat status.json) $(cat err.log)"
  [ ! -e left ] || fail "$case: a lock without a holder is left: $(cat left)"
else
  echo "not checked: a full disk (needs root)"
fi
finish
