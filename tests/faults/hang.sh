#!/usr/bin/env bash
# hang.sh stop|end|one [all]: a rank is stopped, stuck or killed in each phase of a run. Always: the job ends in bounded time, with the
# right code, the rank, its step and its phase are named, no process is left, and the run goes on to the bits of one without a fault.
# `stop`: SIGSTOP, a thread that is stuck for ever, reports; `end`: SIGKILL, SIGSEGV, SIGTERM, a launcher that goes, SIGTERM to those
# that are left of a job that lost a rank. `one`: a rank is stopped.
# By default one rank is struck in each phase, in one of the ways; with `all`, each of 2 and of 4, in every way.
# Environment: LOCKSTEP_STRIKE_PROGRAM, LOCKSTEP_STALL_LIBRARY (libstall.so), besides that of faults.sh.
source "$(dirname "$0")/faults.sh"

kind=$1
all=false
[ "${2:-}" != all ] || all=true
timeout_s=2
# How long mpirun lets the others live that have to name a rank that died. A campaign shows that its default is enough for them, with the
# machine to itself; tests of the full suite run beside each other, and a rank that waits for a core is not one that keeps silent.
case "$kind ${2:-}" in
  "end all") export OMPI_MCA_odls_base_sigkill_timeout=1 ;;
  end*) export OMPI_MCA_odls_base_sigkill_timeout=3 ;;
esac

small_run
sed -i -e 's/^steps = .*/steps = 400/; s/^every = .*/every = 40/' -e '/^\[train\]/a eval_every = 40' -e '/^\[data\]/a eval_fraction = 0.2' run.ini
cat >>run.ini <<INI
[fault]
hang_timeout_s = $timeout_s
signal_report = true
INI
train 1 || give_up "the run without a fault: $(cat err.log)"
cp subject/checkpoints/latest reference.h5

starts=0
# start_ranks RANKS [ARGUMENT...]: starts the run in the background; `id` and `launcher` are set.
start_ranks() {
  id=$$-$((++starts))
  from_nothing
  # shellcheck disable=SC2086
  LOCKSTEP_STRIKE=$id timeout -s KILL "$patience_s" $LOCKSTEP_MPIRUN -n "$1" env LD_PRELOAD="$LOCKSTEP_STALL_LIBRARY" \
    "$LOCKSTEP" train run.ini --run subject "${@:2}" >out.log 2>err.log &
  launcher=$!
}

# ended EXPECTED-CODES: waits for the launcher and for the last process, and notes how long that took after the strike.
ended() {
  local code=0
  wait "$launcher" || code=$(exit_code_of $?)
  all_gone "$id" || { fail "$case: processes are left: $(processes_of "$id")"; processes_of "$id" | xargs -r kill -KILL; }
  [[ $code =~ ^($1)$ ]] || fail "$case: exit code $code, not $1: $(tail -n 5 err.log)"
  sed -n 's/.* at=//p' strike.log | awk -v now="$(date +%s%N)" -v case="$case" '{ printf "%.2f s  %s\n", (now - $1) / 1e9, case }' >>times.log
}

# struck_place: "in step 3, backward" as the report has to say it.
struck_place() {
  sed -nE 's/.* step=([0-9]+) phase=([a-z]+) .*/\1 \2/p' strike.log | {
    read -r step phase
    if [ "$phase" = end ]; then echo "after step $step, at the end of the program"
    elif [ "$step" = 0 ]; then echo "in $phase"
    else echo "in step $step, $phase"; fi
  }
}

# once TEXT: exactly one line of the log is like this.
once() {
  local count
  count=$(grep -cE "$1" err.log)
  [ "$count" -eq 1 ] || fail "$case: $count lines with '$1': $(grep '^lockstep' err.log | head -n 5)"
}

# left_alone: the rank was struck in its end when the others had taken leave already, so that nobody is there to miss it. It goes on then.
left_alone() {
  local struck
  struck=$(sed -n 's/^struck pid=\([0-9]*\) .*/\1/p' strike.log)
  while processes_of "$id" | has_line "^$struck\$" && [ "$(processes_of "$id" | wc -l)" -gt 1 ]; do sleep 0.1; done
  ! grep -q '^lockstep: ' err.log && kill -CONT "$struck" 2>/dev/null
}

# strike_rank RANK PHASE SIGNAL [STEP]
strike_rank() {
  "$LOCKSTEP_STRIKE_PROGRAM" "$id" "$@" >strike.log 2>&1 && { [ "$2$3" != endSTOP ] || ! left_alone; }
}

# started RANKS COMMAND...: starts the run, and strikes it by the command; again, if the run was over first: on a busy machine whoever
# strikes may come too late, and on a fast one the run lasts tenths of a second, and a phase microseconds.
started() {
  local ranks=$1
  shift
  for _ in $(seq 20); do
    start_ranks "$ranks"
    if "$@"; then return 0; fi
    wait "$launcher"
  done
  fail "$case: $(cat strike.log)"
  return 1
}

cases=0
# strike RANKS RANK PHASE SIGNAL CODE [LINE]: LINE has to be in the log, with %rank and %place.
strike() {
  local step=$((cases * 7 % 90 + 3)) line
  case="$4 to rank $2 of $1 in $3"
  ((++cases))
  case $3 in
    start) step=0 ;;
    evaluation | save) ;;
    end) step=400 ;;
  esac
  started "$1" strike_rank "$2" "$3" "$4" "$step" || return
  ended "$5"
  if [ -n "${6:-}" ]; then
    line=${6//%rank/rank $2 \\(}
    once "^lockstep: ${line//%place/$(struck_place)}"
  fi
  goes_on "$1"
}

# each SIGNAL CODE LINE PHASE... [-- PHASE...]: strikes in these phases, a rank in turn of 2 and of 4. With `all` every rank of them, and in
# the phases after the dashes, too.
each() {
  local signal=$1 code=$2 line=$3 phase ranks rank
  shift 3
  for phase in "$@"; do
    if $all; then
      [ "$phase" != -- ] || continue
      for ranks in 2 4; do
        for ((rank = 0; rank < ranks; ++rank)); do strike "$ranks" "$rank" "$phase" "$signal" "$code" "$line"; done
      done
    else
      [ "$phase" != -- ] || break
      ranks=$((cases % 2 == 0 ? 2 : 4))
      strike "$ranks" $((cases / 2 % ranks)) "$phase" "$signal" "$code" "$line"
    fi
  done
}

no_progress='%rank.*: no progress for .*; %place'
stopped='%rank.*: no (progress|sign of life) for .*; %place.*the process is stopped$'
died='%rank.* has died; %place'
[ "$mpi" = orte ] || died=''  # other launchers end those at once that could name it
case $kind in
  one) strike 2 1 backward STOP 5 "$stopped" ;;
  stop)
    # In their end ranks leave one after another, and Open MPI's mpirun itself may crash when it loses one there: by hand only.
    each STOP 5 "$stopped" start backward sums header save -- data forward optimizer evaluation end
    each STALL 5 "$no_progress" data forward optimizer evaluation -- backward save
    if $all; then each STALL 5 '%rank.*: no (progress|sign of life) for .*; %place' start; fi  # its watchdog may not have started

    case="a report, after a write to where nobody reads any more"
    ask_for_reports() { strike_rank 1 sums PIPE 2 && strike_rank 1 sums USR1 3 && strike_rank 0 sums USR1 3; }
    started 2 ask_for_reports || give_up "$case"
    ended 0
    once '^lockstep: report at .*(ms a step|no step is done yet)'
    once '^lockstep:   rank 0 .*: in step'
    once '^lockstep:   rank 1 .*: in step'
    once '^lockstep: stack of rank 0'
    once '^lockstep: stack of rank 1'
    grep -q '^  #.* lockstep::' err.log || fail "$case: no names in the stack: $(cat err.log)"
    expect_same reference.h5 subject/checkpoints/latest
    ;;
  end)
    each KILL 137 "$died" start forward sums save -- data backward header optimizer evaluation
    each SEGV 139 "$died" backward evaluation -- start forward sums save
    each TERM 75 '' data optimizer header -- start forward backward sums evaluation save

    for signal in TERM KILL; do
      case="SIG$signal to the launcher"
      [ "$mpi" != hydra ] || continue  # the parent of its ranks is a proxy
      started 2 strike_rank 0 backward LAUNCHER-$signal 20 || continue
      ended "$([ $signal = TERM ] && echo 1 || echo 137)"
      if grep -q preempted err.log; then fail "$case: taken for a request"; fi
      goes_on 2
    done

    # As Slurm does it: the launcher ends nobody, and SIGTERM comes from elsewhere.
    case="SIGTERM to those that are left"
    start_ranks 4 --set "train.steps=$endless_steps"
    # Without a report: mpirun, when it goes on, may write what the ranks said in pieces, and a line behind half of another one's.
    strike_rank 0 sums CONT 3 || fail "$case: $(cat strike.log)"
    mpirun=$(ps -o ppid= -p "$(processes_of "$id" | head -n 1)")  # or Hydra's proxy
    # shellcheck disable=SC2086  # with a blank
    kill -STOP $mpirun
    strike_rank 1 backward KILL 3 || fail "$case: $(cat strike.log)"
    processes_of "$id" | xargs kill -TERM
    all_gone "$id" || fail "$case: they stay"
    # shellcheck disable=SC2086
    kill -CONT $mpirun
    ended '5|137'  # mpirun finds several that have ended
    once '^lockstep: rank 1 \(.* has died; in step'
    once '^lockstep: rank 1 \(.* has died, and SIGTERM now means the end of this job'
    if grep -q preempted err.log; then fail "$case: taken for a request"; fi
    ;;
esac
sort -n times.log | awk '{ time[NR] = $1; line[NR] = $0 } END { print "figures: " NR " faults; from the fault to the last process gone: median " time[int((NR + 1) / 2)] " s, worst " line[NR] }'
finish
