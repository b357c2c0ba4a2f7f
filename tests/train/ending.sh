#!/usr/bin/env bash
# ending.sh PROGRAM MPIRUN...: however a program ends, in bounded time every rank is gone, with one exit code and one line.
set -uo pipefail
program=$1
shift
log=$(mktemp)
trap 'rm -f "$log"*' EXIT
failures=0

# expect ENDING CODE LINES TEXT
expect() {
  timeout 60 "${mpirun[@]}" "$program" "$1" 2>"$log"
  local code=$? lines
  lines=$(grep -c '^lockstep: ' "$log")
  if [ "$code" -ne "$2" ] || [ "$lines" -ne "$3" ] || { [ "$3" -gt 0 ] && ! grep -q "^lockstep: $4\$" "$log"; }; then
    echo "FAILED: ${mpirun[*]} $1: exit $code, $lines lines: $(grep '^lockstep: ' "$log")"
    failures=$((failures + 1))
  fi
}

for ranks in 2 3; do
  mpirun=("$@" -n "$ranks")
  expect "" 0 0 ""
  expect stopped 76 0 ""
  expect one_rank_throws 4 1 "rank $((ranks - 1)): the sky fell"
  expect one_rank_throws_foreign 5 1 "rank $((ranks - 1)): a foreign exception"
  expect layers_meet 3 1 "rank $((ranks - 1)): a bad shard"
  expect all_throw 3 1 "everybody saw the same"
  expect agreed 2 1 "rank $((ranks - 1)): only one saw it"
done

# A stop signal that comes while MPI starts, which here waits for rank 1, is obeyed afterwards; a request for a report is ignored.
# shellcheck source=jobs/mpi.sh
source "$(dirname "$0")/../../jobs/mpi.sh"
# shellcheck disable=SC2016  # a rank expands
"$@" -n 2 bash -c '
  if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" -eq 0 ]; then echo $$ >"$1.first"; else until [ -e "$1.go" ]; do sleep 0.02; done; fi
  exec "$0" obeys' "$program" "$log" 2>"$log.err" &
launcher=$!
until [ -s "$log.first" ] && heeds "$(cat "$log.first")" USR2 || ! kill -0 $launcher 2>/dev/null; do sleep 0.02; done
kill -USR1 "$(cat "$log.first")"
kill -USR2 "$(cat "$log.first")"
touch "$log.go"
wait $launcher
code=$?
[ "$code" -eq 75 ] || { echo "FAILED: a signal while MPI starts: exit $code: $(cat "$log.err")"; failures=$((failures + 1)); }
exit "$failures"
