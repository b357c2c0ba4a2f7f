#!/usr/bin/env bash
# What surrounds a process does not end a run, stall it, or leak into its files: closed and full standard streams, pipes without a
# reader, limits of file sizes, ranks that never come, directories that are not the same, absurd job numbers, names that would move
# the cursor.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 20' 'global_batch = 24' 'shards = 2' '[checkpoint]' 'every = 5' '[log]' 'every = 1' >good.ini
"$LOCKSTEP" train good.ini --run wanted >log 2>&1 || fail "train: $(tail -n 2 log)"

# same_run RUN: it has ended as it would have anywhere.
same_run() {
  expect_same "$1/checkpoints/latest" wanted/checkpoints/latest
  python3 - "$1" <<'PY' || fail "$1: metrics.jsonl: $(cat "$1/metrics.jsonl")"
import json, sys
def losses(run):
    return [(line["step"], line["loss"]) for line in map(json.loads, open(run + "/metrics.jsonl")) if "loss" in line]
assert losses(sys.argv[1]) == losses("wanted")
PY
  [ ! -e "$1/lock" ] || fail "$1: the lock is still there"
}

# Closed, full and broken streams.
"$LOCKSTEP" train good.ini --run no-stderr 2>&- || fail "without standard error: exit $?"
same_run no-stderr
"$LOCKSTEP" train good.ini --run no-streams <&- >&- 2>&- || fail "without standard streams: exit $?"
same_run no-streams
"$LOCKSTEP" train good.ini --run no-output <&- 2>log >&- || fail "without standard input and output: exit $?"
same_run no-output
"$LOCKSTEP" train good.ini --run full-stderr 2>/dev/full || fail "with a full standard error: exit $?"
same_run full-stderr
grep -q '"note":"lines on standard error were lost: No space left on device"' full-stderr/metrics.jsonl ||
  fail "metrics do not say that lines were lost"
"$LOCKSTEP" train good.ini --run broken-pipe 2> >(true) || fail "with a pipe that nobody reads: exit $?"
same_run broken-pipe
mkfifo pipe
exec 9<>pipe  # somebody has it open, and reads nothing
"$LOCKSTEP" train good.ini --run full-pipe --set train.steps=20 2>&9 || fail "with a full pipe: exit $?"
for ((i = 0; i < 20; ++i)); do head -c 4096 /dev/zero; done | timeout 1 cat >&9
timeout 100 "$LOCKSTEP" train good.ini --run fuller-pipe 2>&9 || fail "with a pipe that is full: exit $?"
exec 9>&-
same_run full-pipe
same_run fuller-pipe
"$LOCKSTEP" train nowhere.ini 2>/dev/full
[ $? -eq 2 ] || fail "an error that cannot be written has another exit code"
"$LOCKSTEP" train --help-keys >/dev/full 2>log
[ $? -eq 3 ] || fail "--help-keys on a full device: $(cat log)"

# A limit of file sizes is an error like a full disk.
limited() { (ulimit -f 20 && exec "$LOCKSTEP" "$@"); }
ends 3 "File too large" limited train good.ini --run limited
[ ! -e limited/lock ] || fail "ulimit -f: the lock is still there"
[ -z "$(find limited -name '*.tmp')" ] || fail "ulimit -f: $(find limited -name '*.tmp') stayed"

for format in "csv $LOCKSTEP_SOURCE_DIR/share/data/digits.csv.gz" "text $LOCKSTEP_SOURCE_DIR/share/data/words.txt"; do
  # shellcheck disable=SC2086
  refused 3 "limited.h5.*File too large" limited prepare $format --out limited.h5
done
"$LOCKSTEP" train --help-keys | true
[ "${PIPESTATUS[0]}" -eq 0 ] || fail "a reader that has seen enough is an error"

# A rank that never comes is named.
short="'$LOCKSTEP' train good.ini --run short --set fault.hang_timeout_s=3"
mixed "$short" "sleep 90" >log 2>&1
got=$?
[ "$got" -eq 5 ] || fail "a rank that is another program: exit $got"
grep -q 'lockstep: rank 0: MPI did not start within 3 s (fault.hang_timeout_s): rank 1 did not come' log || fail "not named: $(cat log)"

mixed "sleep 90" "$short" 4 >log 2>&1
[ "$(grep -c 'MPI did not start' log)" -eq 1 ] || fail "said more or less than once: $(cat log)"
grep -q 'lockstep: rank 1: .*: rank 0 did not come' log || fail "not named among three: $(cat log)"

# Ranks in different directories.
mkdir -p here there
cat >in.sh <<'SH'
cd "$([ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" -eq 0 ] && echo here || echo there)" && exec "$LOCKSTEP" train ../good.ini --set data.train=../digits.h5 --run relative
SH
# shellcheck disable=SC2086
$LOCKSTEP_MPIRUN -n 2 bash in.sh >log 2>err.log
[ $? -eq 2 ] || fail "ranks in different directories: $(cat err.log)"
grep -q "rank 1: relative: on .*, this is another directory than on rank 0" err.log || fail "not said: $(cat err.log)"

# Job numbers that are none, and names that hold control characters.
SLURM_JOB_ID=$'7\nhost=elsewhere' "$LOCKSTEP" train good.ini --run job >log 2>&1 || fail "a job number with a line end: $(tail -n 2 log)"
same_run job
refused 3 'no\\nsuch\\x1b\[31mfile' ranks 1 inspect $'no\nsuch\x1b[31mfile'
"$LOCKSTEP" verify $'no\nsuch\x1b[31mfile' >log && fail "a file that is not there is complete"
grep -qF 'no\nsuch\x1b[31mfile: ' log || fail "verify: $(cat -v log)"
refused 2 'too many arguments; each --set takes one SECTION.KEY=VALUE' ranks 1 train good.ini --run x --set a.b=1 c.d=2
finish
