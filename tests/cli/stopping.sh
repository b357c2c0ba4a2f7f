#!/usr/bin/env bash
# Stopping: RUN/stop and signals end a run with a checkpoint and the documented code; a live run keeps others out.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp "steps = $endless_steps" 'global_batch = 32' 'shards = 2' '[log]' 'every = 1000' >run.ini

start() {  # start RUN RANKS: in the background; $launcher is its pid
  # shellcheck disable=SC2086
  $LOCKSTEP_MPIRUN -n "$2" "$LOCKSTEP" train run.ini --run "$1" >"log-$1" 2>&1 &
  launcher=$!
  until_says "step 1000/" "log-$1" "$launcher"
}

ended() {  # ended RUN CODE
  wait "$launcher"
  local code=$?
  [ "$code" -eq "$2" ] || fail "$1: exit $code, expected $2: $(tail -n 2 "log-$1")"
}

start stopped 2
touch stopped/checkpoint
until [ ! -e stopped/checkpoint ] || ! kill -0 "$launcher"; do sleep 0.02; done
[ -e stopped/checkpoints/latest ] || fail "RUN/checkpoint: no checkpoint"
touch stopped/stop
ended stopped 76
[ ! -e stopped/stop ] || fail "RUN/stop was not removed when obeyed"
"$LOCKSTEP" verify stopped/checkpoints/latest >/dev/null || fail "the checkpoint of a stopped run is not whole"

start preempted 2
send_to_ranks USR2 "$launcher"
ended preempted 75
"$LOCKSTEP" verify preempted/checkpoints/latest >/dev/null || fail "the checkpoint of a preempted run is not whole"

start asked 2
send_to_ranks USR1 "$launcher"  # a report that is switched off: no reason to end
touch asked/stop
ended asked 76

# early SIGNAL NAME VERB ARGUMENT...: the signal comes while MPI starts, which here waits for rank 1; a request for a report is not one
# to end.
early() {
  local signal=$1 name=$2
  rm -f go first
  # shellcheck disable=SC2086,SC2016  # mpirun's flags are several words; a rank expands
  $LOCKSTEP_MPIRUN -n 2 bash -c '
    if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" -eq 0 ]; then echo $$ >first; else until [ -e go ]; do sleep 0.02; done; fi
    exec "$LOCKSTEP" "$@"' rank "${@:3}" >"log-$name" 2>&1 &
  launcher=$!
  until_there first "$launcher"
  for ((tenths = 0; tenths < 10 * patience_s; ++tenths)); do
    ! heeds "$(cat first)" "$signal" || break
    sleep 0.1
  done
  kill -USR1 "$(cat first)"
  kill "-$signal" "$(cat first)"
  touch go
}
# Obeyed afterwards, or by a verb that has nothing to save, as it would be later.
for signal in USR2 TERM; do
  early "$signal" "early-$signal" train run.ini --run "early-$signal"
  ended "early-$signal" 75
  "$LOCKSTEP" verify "early-$signal/checkpoints/latest" >/dev/null || fail "$signal while MPI starts: no whole checkpoint"
  early "$signal" "eval-$signal" eval "early-$signal/checkpoints/latest" --data digits.h5
  ended "eval-$signal" $((128 + $(kill -l "$signal")))
done

# A request that cannot be removed is obeyed, and the warning says why each start ends so.
mkdir -p immovable/stop/x
"$LOCKSTEP" train run.ini --run immovable >log-immovable 2>&1
[ $? -eq 76 ] || fail "a stop that cannot be removed: $(tail -n 2 log-immovable)"
grep -q 'warning: immovable/stop: cannot be removed: ' log-immovable || fail "a stop that cannot be removed: $(cat log-immovable)"

start live 2
timeout 120 "$LOCKSTEP" train run.ini --run live >second.log 2>&1
code=$?
[ "$code" -eq 2 ] || fail "a second run in a live run's directory: exit $code, expected 2"
grep -q "pid" second.log || fail "the refusal does not name the holder: $(cat second.log)"
touch live/stop
ended live 76
finish
