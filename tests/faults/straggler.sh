#!/usr/bin/env bash
# straggler.sh: a rank that computes longer than the others is named in the log, once; the run ends in the same bits.
# Environment: LOCKSTEP_SLOW_LIBRARY (libslow.so), besides that of support/cli.sh.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 40' 'global_batch = 64' 'shards = 4' >run.ini
ranks 1 train run.ini --run alone >alone.log 2>&1 || fail "one rank: $(tail -n 3 alone.log)"
# shellcheck disable=SC2086
$LOCKSTEP_MPIRUN -n 3 env LD_PRELOAD="$LOCKSTEP_SLOW_LIBRARY" LOCKSTEP_SLOW_RANK=1 \
  "$LOCKSTEP" train run.ini --run slow >slow.log 2>&1 || fail "with a slow rank: $(tail -n 3 slow.log)"
named=$(grep -cE 'step [0-9]+: (.*; )?rank 1 is slow: [0-9.]+ ms a shard, [0-9.]+ times the median of the ranks, for 20 steps' slow.log)
[ "$named" -eq 1 ] || fail "the slow rank is named $named times: $(cat slow.log)"
expect_same alone/checkpoints/latest slow/checkpoints/latest
finish
