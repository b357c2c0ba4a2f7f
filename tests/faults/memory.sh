#!/usr/bin/env bash
# An allocation of HDF5 finds no memory while a checkpoint is laid out: that is a failure, after which a job starts again (exit 5), and
# says so. It is no bad data (exit 3). The next start ends in the bits of a run without a fault.
source "$(dirname "$0")/faults.sh"
prepare_base

failed=0
for number in $(seq 1 37 600); do
  case="allocation $number"
  from_base
  LD_PRELOAD=$LOCKSTEP_MEMORY_LIBRARY LOCKSTEP_MEMORY=$number "$LOCKSTEP" train run.ini --run subject >out.log 2>err.log
  code=$?
  case $code in
    0 | 134 | 255) ;;  # HDF5 does without, or itself ends the process
    5)
      one_error "$case" 'out of memory|memory allocation failed'
      ! grep -q 'lockstep-layout' err.log || fail "$case: names a file in memory: $(grep '^lockstep: ' err.log)"
      ((++failed))
      ;;
    *) fail "$case: exit $code: $(grep '^lockstep: ' err.log)" ;;
  esac
done
[ "$failed" -gt 0 ] || fail "no allocation failed"
goes_on 2
finish
