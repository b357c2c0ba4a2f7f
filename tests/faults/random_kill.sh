#!/usr/bin/env bash
# random_kill.sh [KILLS] [async]: SIGKILL of a rank or of mpirun at random moments; each start goes on from where the last one was
# killed, on another number of ranks, until it ends by itself, in the bits of a run that was left alone. LOCKSTEP_TEST_SEED=N
# repeats the choices, though not the moments to the microsecond.
source "$(dirname "$0")/faults.sh"

kills_wanted=20
for word in "$@"; do
  case $word in
    async) settings+=(--set checkpoint.async=true) ;;
    *) kills_wanted=$word ;;
  esac
done
seed=${LOCKSTEP_TEST_SEED:-$((SRANDOM % 1000000))}
RANDOM=$seed
echo "seed $seed"
last_step=60
small_run

# start RANKS: in the background; $launcher is its pid. Returns when it trains, or has ended.
start() {
  # shellcheck disable=SC2086
  $LOCKSTEP_MPIRUN -n "$1" "$LOCKSTEP" train run.ini --run subject "${settings[@]}" --set log.every=1 \
    >out.log 2>err.log </dev/null &
  launcher=$!
}
until_it_trains() {
  until grep -q "samples to train on" err.log || ! kill -0 "$launcher" 2>/dev/null; do sleep 0.01; done
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }

start 2
until_it_trains
began_ms=$(now_ms)
wait "$launcher" || fail "the run without a kill: $(cat err.log)"
length_ms=$(($(now_ms) - began_ms + 1))
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
  fail "$case: $file is not whole: $(cat verify.log)"
}

kills=0 runs=0 starts=0
while [ "$kills" -lt "$kills_wanted" ]; do
  ranks=$((RANDOM % 4 + 1))
  case="seed $seed, start $((++starts)) on $ranks ranks"
  start "$ranks"
  [ $((RANDOM % 8)) -eq 0 ] || until_it_trains  # some are hit while they start
  delay_us=$(((RANDOM * 32768 + RANDOM) % (length_ms * 1000)))
  sleep "$(printf '%d.%06d' $((delay_us / 1000000)) $((delay_us % 1000000)))"
  mapfile -t pids < <(echo "$launcher"; pgrep -P "$launcher")
  victim=${pids[RANDOM % ${#pids[@]}]}
  if kill -KILL "$victim" 2>/dev/null; then
    wait "$launcher" 2>/dev/null
    code=$?
  else
    wait "$launcher"
    code=$?
    [ "$code" -eq 0 ] || fail "$case: exit $code: $(tail -n 3 err.log)"
  fi
  if [ "$code" -eq 0 ]; then  # it ended before it was hit
    expect_same reference.h5 subject/checkpoints/latest
    rm -rf subject
    ((++runs))
    continue
  fi
  ((++kills))
  grep '^lockstep: ' err.log >>said.log
  whole_newest_now
done
if [ -d subject ]; then
  case="the last start after seed $seed"
  goes_on 2
  ((++runs))
fi
# What a start says of its own: the ranks of a killed one may say that others are gone, but no run refuses its own directory.
! grep -E "another run holds|no checkpoint is whole" said.log || fail "seed $seed: a start was refused"
echo "$kills kills in $starts starts, $runs runs to the end, each of $length_ms ms without a kill"
finish
