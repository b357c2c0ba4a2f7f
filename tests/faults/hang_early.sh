#!/usr/bin/env bash
# hang_early.sh: a rank of another host dies in its first moments, and the launcher ends nobody (as Slurm does it: SIGTERM to those
# that are left, and SIGKILL much later). It has been heard of all the same: the rank that waits for it in vain names it and leaves.
# Needs root, for two network name spaces (tests/bench/two_hosts.sh); exit code 77 where they cannot be made.
source "$(dirname "$0")/faults.sh"
two_hosts=$LOCKSTEP_SOURCE_DIR/tests/bench/two_hosts.sh
export OMPI_MCA_orte_enable_recovery=1  # mpirun leaves the others alone

small_run
case="a rank of another host dies early"
id=$$-early
LOCKSTEP_STRIKE=$id bash "$two_hosts" -n 1 -r none "$LOCKSTEP" train run.ini --run subject >out.log 2>err.log &
hosts=$!
"$LOCKSTEP_STRIKE_PROGRAM" "$id" 1 start KILL >strike.log 2>&1 &
striker=$!
wait -n -p first $hosts $striker
code=$?
if [ "$first" = $hosts ]; then
  kill $striker
  [ $code -ne 77 ] || { cat err.log; exit 77; }
fi
[ $code -eq 0 ] || give_up "$case: $(cat strike.log err.log)"
processes_of "$id" | xargs kill -TERM
all_gone "$id" || { fail "$case: the other rank stays: $(cat err.log)"; processes_of "$id" | xargs -r kill -KILL; }
wait $hosts
grep -qE '^lockstep: rank 1 \(h2-.*: no sign of life for .*; SIGTERM now means the end of this job' err.log ||
  fail "$case: rank 1 is not named: $(cat err.log)"
finish
