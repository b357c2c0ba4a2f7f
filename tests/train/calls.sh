#!/usr/bin/env bash
# calls.sh PROGRAM MPIRUN...: ranks that make different calls end, with code 2 and one line that names the calls.
set -uo pipefail
program=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# expect CODE TEXT CALLS_OF_RANK_0 [CALLS_OF_RANK_1]...: TEXT is an extended regular expression; empty: no line.
expect() {
  local code=$1 text=$2 got lines
  shift 2
  rm -rf "${folder:?}"/*
  timeout 60 "${mpirun[@]}" "$program" "$folder" "$@" 2>"$folder/log"
  got=$?
  lines=$(grep '^lockstep: ' "$folder/log")
  if [ "$got" -ne "$code" ] || ! grep -Eqx "${text:+lockstep: $text}" <<<"$lines" || [ "$(wc -l <<<"$lines")" -ne 1 ]; then
    echo "FAILED: ${mpirun[*]} $*: exit $got: $lines"
    failures=$((failures + 1))
  fi
}

same='; every rank must make the same calls in the same order'
load='calls load_weights \(load_weights\(path, model\) without a group of ranks reads on this rank alone\)'
destroys='destroys a DataParallel \(its scope ends\)'
for ranks in 2 3; do
  mpirun=("$@" -n "$ranks")
  expect 0 '' step+save
  expect 0 '' load_alone+wrap+step wrap+step
  expect 2 "rank 0 $load, but rank [12] wraps a model in DataParallel$same" load+wrap wrap
  expect 2 "rank 0 calls Store::save, but rank [12] calls DataParallel::step$same" step+save+step step+step
  expect 2 "rank 0 calls Store::save, but rank [12] $destroys$same" step+save step
  expect 2 "rank 0 $destroys, but rank [12] calls DataParallel::step$same" step step+step
  expect 2 "rank 0 $destroys, but rank [12] starts a sum or all-gather of a FlatBuffer$same" world_sum world_sum+world_sum
  expect 5 'rank 0: the sky fell' step+throw step+step
done
exit "$failures"
