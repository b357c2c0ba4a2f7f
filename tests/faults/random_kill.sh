#!/usr/bin/env bash
# random_kill.sh [KILLS]: SIGKILL of a rank or of mpirun at random moments; each start goes on from where the last one was killed,
# on another number of ranks and saving beside the training or not, until it ends by itself, in the bits of a run that was left
# alone. LOCKSTEP_TEST_SEED=N repeats the choices, though not the moments to the microsecond.
source "$(dirname "$0")/faults.sh"

kills_wanted=${LOCKSTEP_TEST_KILLS:-${1:-8}}
seed=${LOCKSTEP_TEST_SEED:-$((SRANDOM % 1000000))}
RANDOM=$seed
echo "seed $seed"
last_step=60 hang_s=600
small_run

# start RANKS ASYNC: in the background; $launcher is its pid. Returns when it trains, or has ended.
start() {
  # shellcheck disable=SC2086
  $LOCKSTEP_MPIRUN -n "$1" "$LOCKSTEP" train run.ini --run subject --set checkpoint.async="$2" --set log.every=1 \
    >out.log 2>err.log </dev/null &
  launcher=$!
}
until_it_trains() {
  local until=$((SECONDS + hang_s))
  until grep -qs "samples to train on" err.log || ! kill -0 "$launcher" 2>/dev/null; do
    [ $SECONDS -lt $until ] || { end_hang; return; }
    sleep 0.01
  done
}
# end_hang: nothing that goes on takes so long.
end_hang() {
  fail "$case: hangs with ranks alive: $(tail -n 3 err.log)"
  local left
  mapfile -t left < <(ranks_of "$launcher")
  kill -KILL "$launcher" "${left[@]}" 2>/dev/null
}
alive() {  # alive PID...: those of them that have not ended
  [ $# -gt 0 ] || return
  local pids=$*
  ps -o pid=,stat= -p "${pids// /,}" | awk '$2 !~ /^Z/ { print $1 }'
}
# until_it_ended: $code is the launcher's. Open MPI's mpirun sometimes waits for ever after a rank was killed in MPI_Init: with no rank
# left, or none that got further, that is its own affair, and ended after half a minute. Ranks that train and do not end are a failure.
until_it_ended() {
  local patience=300 until=$((SECONDS + hang_s))
  while [ -n "$(alive "$launcher")" ]; do
    if [ -z "$(alive "${pids[@]:1}")" ] || ! grep -q "samples to train on" err.log; then ((--patience)); fi
    if [ "$patience" -eq 0 ]; then
      kill -KILL "${pids[@]}" 2>/dev/null
      ((++hung_launchers))
    fi
    [ $SECONDS -lt $until ] || { end_hang; break; }
    sleep 0.1
  done
  wait "$launcher" 2>/dev/null
  code=$?
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }

length_ms=1000000  # of the training of the quickest of a few runs, so that most kills hit
for count in 1 2 3; do
  rm -rf subject
  case="the run without a kill on $count ranks"
  start "$count" true
  until_it_trains
  began_ms=$(now_ms)
  timeout $hang_s tail --pid="$launcher" -s 0.01 -f /dev/null || end_hang
  wait "$launcher" || give_up "$case: $(cat err.log)"
  took_ms=$(($(now_ms) - began_ms + 1))
  [ $took_ms -ge $length_ms ] || length_ms=$took_ms
done
cp subject/checkpoints/latest reference.h5
rm -rf subject

# Ranks may outlive a killed mpirun for a moment, and prune: a file that went is not a broken one.
whole_newest_now() {
  local file
  for _ in $(seq 100); do
    file=$(newest)
    [ -n "$file" ] || return
    "$LOCKSTEP" verify "$file" >verify.log 2>&1 && return
    [ -e "$file" ] && break
  done
  fail "$case: $file is not whole: $(head -n 1 verify.log)"
}

kills=0 runs=0 starts=0 hung_launchers=0
while [ "$kills" -lt "$kills_wanted" ]; do
  ranks=$((RANDOM % 4 + 1))
  async=$((RANDOM % 2))
  case="seed $seed, start $((++starts)) on $ranks ranks, async $async"
  start "$ranks" "$([ $async -eq 0 ] && echo false || echo true)"
  [ $((RANDOM % 8)) -eq 0 ] || until_it_trains  # some are hit while they start
  delay_us=$(((RANDOM * 32768 + RANDOM) % (length_ms * 1000)))
  sleep "$(printf '%d.%06d' $((delay_us / 1000000)) $((delay_us % 1000000)))"
  mapfile -t pids < <(echo "$launcher"; ranks_of "$launcher")
  victim=${pids[RANDOM % ${#pids[@]}]}
  kill -KILL "$victim" 2>/dev/null
  until_it_ended
  if [ "$code" -eq 0 ]; then  # it ended before it was hit
    expect_same reference.h5 subject/checkpoints/latest
    rm -rf subject
    ((++runs))
    continue
  fi
  # 137 is SIGKILL; whatever else a start ends with, and says, is its own doing. But Open MPI's mpirun may itself crash (139) when it loses
  # a rank that is leaving, with all steps done; and in MPI_Init ranks may die of SIGPIPE (141), writing to one that is no more.
  case $code in
    137) true ;;
    139) grep -q "done: $last_step steps" err.log && ! grep -q "exited on signal 11" err.log ;;
    141) ! grep -q "samples to train on" err.log ;;
    *) false ;;
  esac || fail "$case: exit $code: $(tail -n 20 err.log)"
  ((++kills))
  whole_newest_now
done
if [ -d subject ]; then
  case="the last start after seed $seed"
  goes_on 2
  ((++runs))
fi
echo "figures: $kills kills in $starts starts, $runs runs to the end, each of $length_ms ms without a kill, mpirun hung $hung_launchers times"
finish
