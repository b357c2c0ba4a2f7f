#!/usr/bin/env bash
# watched.sh PROGRAM MPIRUN...: a program that does not ask to be watched does not hang either: the job ends when ranks wait for others
# that do nothing, with a line of each rank that says where it is. A rank that nobody waits for may take its time.
set -uo pipefail
program=$1
shift
folder=$(mktemp -d)
log=$folder/log
trap 'rm -rf "$folder"' EXIT
failures=0

# expect WHAT CODE [LINE...]: the program ends so, and says these lines, in any order.
expect() {
  local what=$1 wanted=$2 code line
  shift 2
  timeout -s KILL 60 "${mpirun[@]}" env LOCKSTEP_HANG_TIMEOUT_S="$timeout_s" "$program" "$what" "$folder/run-$ranks-$what" 2>"$log"
  code=$?
  [ "$code" -eq "$wanted" ] || { echo "FAILED: $what on $ranks: exit $code, not $wanted: $(cat "$log")"; failures=$((failures + 1)); }
  for line in "$@"; do
    grep -qE "^lockstep: $line" "$log" || { echo "FAILED: $what on $ranks: no line '$line' in: $(cat "$log")"; failures=$((failures + 1)); }
  done
  if [ $# -eq 0 ] && grep -q '^lockstep: ' "$log"; then echo "FAILED: $what on $ranks: $(cat "$log")"; failures=$((failures + 1)); fi
}

timeout_s=2
ends='the job ends with exit code 5 .limit: 2 s; Session::watch.. or LOCKSTEP_HANG_TIMEOUT_S'
for ranks in 2 3; do
  mpirun=("$@" -n "$ranks")
  last=$((ranks - 1))
  expect own_code 5 "rank $last .*: no progress for .*; after step 1, in the program's own code, since" \
    'rank 0 .* waits: after step 1, in a collective of the program, since' "$ends"
  expect loss 5 "rank $last .*: no progress for .*; in step 2, forward, since" 'rank 0 .* waits: in step 2, (sums|header)'
  expect stopped 5 "rank $last .*: no (progress|sign of life) for .*; in step 2, forward, .*the process is stopped"
  expect save 2 'rank 0 calls Store::save, but rank [12] destroys a DataParallel'
  expect fewer 2 'rank 0 calls barrier, but rank [12] destroys a DataParallel'
  for works in alone together asked_not_to signal; do expect "$works" 0; done
done
expect asked 5 'rank . .*: no progress for .*; after step 1, in the program.s own code' '.*fault.hang_timeout_s = 2'
timeout_s=0
expect late 0
timeout_s=soon
expect late 2 'LOCKSTEP_HANG_TIMEOUT_S = soon in the environment is not a number of seconds'
ranks=1 timeout_s=2
mpirun=("$@" -n 1)
expect late 0
exit "$failures"
