#!/usr/bin/env bash
# lockstep doctor says what is wrong in surroundings that are made wrong on purpose, ends with 1 then and with 0 elsewhere, and
# neither waits for what hangs nor needs what is missing. A run whose ranks are not alike does not start.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 4' 'global_batch = 16' 'shards = 2' >run.ini

# doctor CODE RANKS ARGUMENTS...: the program's doctor; what it prints goes to out.log.
doctor() {
  local code=$1 count=$2 got
  shift 2
  if [ "$count" -eq 1 ]; then
    timeout 120 "$LOCKSTEP" doctor "$@" >out.log 2>err.log
  else
    # shellcheck disable=SC2086
    timeout 120 $LOCKSTEP_MPIRUN -n "$count" "$LOCKSTEP" doctor "$@" >out.log 2>err.log
  fi
  got=$?
  [ "$got" -eq "$code" ] || fail "doctor $* ($count ranks): exit $got, expected $code: $(cat out.log err.log)"
}
# says VERDICT SUBJECT TEXT: a line of out.log; TEXT is a regular expression.
says() { grep -E "^$1 +$2 " out.log | has_line "$3" || fail "no line '$1 $2: $3' in: $(cat out.log)"; }
says_not() { ! grep -Eq -e "$1" out.log || fail "says $1: $(cat out.log)"; }
# unlike FIRST SECOND: two ranks, each by a command line of its own; exit code also in `code`.
unlike() {
  mixed "$@" >out.log 2>err.log
  code=$?
  return "$code"
}

# Healthy surroundings: every subject has a line, nothing is a problem, nothing is left behind.
before=$(find . | sort | grep -v -e out.log -e err.log)
for count in 1 2; do
  doctor 0 "$count" --run runs/new --config run.ini
  for subject in processor mpi hdf5 onednn gpu nccl "shared memory" limits "temporary files" "run directory" "disk speed" \
    "data storage" "file calls" slurm "job settings" binding threads; do
    grep -Eq "^(ok|note) +$subject " out.log || fail "nothing about $subject: $(cat out.log)"
  done
  says_not '^problem'
  says ok "run directory" "runs/new \(does not exist yet; checked \.\): .* free; a checkpoint takes about"
  says ok "disk speed" "[0-9]+ MB/s written and synced, [0-9]+ MB/s read"
done
says ok "ranks alike" "program, libraries, configuration, data"
[ "$(find . | sort | grep -v -e out.log -e err.log)" = "$before" ] || fail "doctor left something behind: $(find .)"

# What a run would refuse is a problem beforehand.
doctor 0 2 --config run.ini
says ok configuration "lockstep train would start: 2 shards on 2 ranks"
doctor 1 3 --config run.ini
says problem configuration "3 ranks are more than the 2 shards of the run"
sed 's/^shards = 2/shards = 3/' run.ini >odd.ini
doctor 1 1 --config odd.ini
says problem configuration "3 shards do not divide train.global_batch = 16"
for key in 'device = cuda' 'cuda_graph = true'; do
  sed "s/^\[train\]/&\n$key/" run.ini >gpu.ini
  CUDA_VISIBLE_DEVICES='' doctor 1 1 --config gpu.ini
  says problem configuration "$key|device cuda: "
done
sed 's/digits.h5/missing.h5/' run.ini >missing.ini
doctor 1 2 --config missing.ini
says problem configuration "data.train: missing.h5: No such file; lockstep prepare makes"
says ok "data storage" "no files of data.train on this node"
rm odd.ini missing.ini gpu.ini

# JSON: fixed keys, of ranks and hosts.
for count in 1 2; do
  doctor 0 "$count" --json
  python3 - "$count" <<'PY' || fail "doctor --json on $count ranks: $(cat out.log)"
import json, sys
report = json.load(open("out.log"))
assert report.keys() == {"ok", "ranks", "hosts", "findings"}, report.keys()
assert report["ok"] is True and report["ranks"] == int(sys.argv[1]) and len(report["hosts"]) == 1
assert len(report["findings"]) >= 15
for finding in report["findings"]:
    assert finding.keys() == {"subject", "verdict", "text", "remedy", "ranks"}, finding
    assert finding["verdict"] in ("ok", "note") and bool(finding["remedy"]) == (finding["verdict"] == "note"), finding
PY
done
doctor 0 1 --node --json
python3 -c 'import json; report = json.load(open("out.log")); assert report.keys() == {"ok", "host", "findings"}' ||
  fail "doctor --node --json: $(cat out.log)"

# Sockets, cores and hardware threads are those that hwloc reports: here of a made-up node.
HWLOC_SYNTHETIC="pack:2 core:4 pu:2" doctor 0 1
says ok processor "16 of 16 cores available to this process"
says ok threads "train.threads = 0 chooses 8 \(.*: 1 rank on 8 cores \(16 hardware threads\)\)"

# Binding.
LOCKSTEP_BIND=none doctor 0 1
says ok binding "training does not bind threads"
sed 's/\[train\]/&\nbind = none/' run.ini >unbound.ini
doctor 0 2 --config unbound.ini
says ok binding "training does not bind threads"
doctor 0 1
says_not "training does not bind threads"
if [ "$(nproc)" -gt 1 ] && command -v taskset >/dev/null; then
  core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
  unlike "taskset -c $core '$LOCKSTEP' doctor" "taskset -c $core '$LOCKSTEP' doctor"
  [ "$code" -ne 0 ] || fail "two ranks on one core are no problem"
  says problem binding "ranks 0, 1 are bound to the same core $core, .*-bind-to core"
  sed 's/\[train\]/&\nthreads = 3/' run.ini >threads.ini
  timeout 120 taskset -c "$core" "$LOCKSTEP" doctor --config threads.ini >out.log
  [ $? -eq 1 ] || fail "three threads on one core are no problem"
  says problem binding "rank 0, with 3 threads each, is bound to core $core"
  says note processor "1 of .* cores"

  # As many threads as cores at the first start; the run keeps their number, and a node with fewer cores is reported.
  says ok threads "3 per rank; train.threads = 0 chooses 1 \(.*: 1 rank on 1 core\)"
  timeout 120 taskset -c "$core" "$LOCKSTEP" train threads.ini --run oversubscribed 2>start.log >&2 || fail "3 threads: $(cat start.log)"
  has_line "note: .*: rank 0, with 3 threads each, is bound to core $core; give each rank its own cores" <start.log || fail "no note: $(cat start.log)"
  timeout 120 "$LOCKSTEP" train run.ini --run free --set train.threads=0 --set train.steps=2 2>start.log >&2 || fail "threads = 0: $(cat start.log)"
  has_line "[0-9]+ threads? a rank, stored with the run \(.*: 1 rank on " <start.log || fail "threads are not said: $(cat start.log)"
  chosen=$(sed -n '/^\[train\]/,$s/^threads = //p' free/config.ini)
  [ "$chosen" -ge 1 ] || fail "the run holds no number of threads: $(cat free/config.ini)"
  timeout 120 taskset -c "$core" "$LOCKSTEP" train run.ini --run free --set train.threads=0 2>start.log >&2 || fail "goes not on: $(cat start.log)"
  has_line "with $chosen threads? a rank" <start.log || fail "the run's $chosen threads have changed: $(cat start.log)"
fi

# Slurm: absent, in a job, without pmix, and one that never answers (a problem of its own, but no reason to wait).
mkdir slurm
cat >slurm/squeue <<'SH'
#!/bin/sh
case $* in
  --version) echo "slurm-wlm 22.05.8" ;;
  *"-j 42 "*) echo 1-02:03:04 ;;
  *) exit 1 ;;
esac
SH
printf '#!/bin/sh\necho "MPI plugin types are..."\necho pmix_v4 pmi2\n' >slurm/srun
chmod +x slurm/squeue slurm/srun
with_slurm() { PATH=$PWD/slurm:$PATH doctor "$@"; }
with_slurm 0 1
says ok slurm "version 22.05.8; not in a job"
printf '#!/bin/sh\nexit 1\n' >slurm/silent && chmod +x slurm/silent && mkdir silent && mv slurm/silent silent/squeue
PATH=$PWD/silent:$PATH doctor 0 1
says ok slurm "squeue does not answer; not in a job"
# Where there is no squeue at all: what the program needs of PATH, without it.
mkdir bare
for tool in sh timeout bash env; do ln -s "$(command -v $tool)" bare/$tool; done
(unset SLURM_JOB_ID && PATH=$PWD/bare "$LOCKSTEP" doctor >out.log 2>err.log)
says ok slurm "not installed"
! grep -q squeue out.log || fail "squeue is told of where there is no Slurm: $(grep squeue out.log)"
SLURM_JOB_ID=42 SLURM_JOB_NUM_NODES=2 SLURM_RESTART_COUNT=3 with_slurm 0 1
says ok slurm "version 22.05.8, job 42, nodes: 2, restart 3, time left 1-02:03:04, srun supports (pmix|pmi2)"
SLURM_JOB_ID=7 with_slurm 0 1
says note slurm "job 7; squeue does not report the remaining time"
# A step of several nodes whose fences are none (step NODES FENCE).
step() { PMIX_NAMESPACE=slurm.pmix.42.0 SLURM_JOB_ID=42 SLURM_STEP_NUM_NODES=$1 SLURM_PMIX_FENCE=$2 with_slurm 0 1; }
step 2 ''
says note slurm "do not wait for each other in MPI_Init"
step 2 ring
says ok slurm "srun supports (pmix|pmi2)"
step 1 ''
says ok slurm "srun supports (pmix|pmi2)"
printf '#!/bin/sh\necho "PMIxCollFence           = ring"\n' >slurm/scontrol
chmod +x slurm/scontrol
step 2 ''
says ok slurm "srun supports (pmix|pmi2)"
step 2 tree
says note slurm "do not wait for each other in MPI_Init"
printf '#!/bin/sh\necho none\n' >slurm/srun
SLURM_JOB_ID=42 with_slurm 0 1
says note slurm "srun does not support (pmix|pmi2); start the ranks with mpirun"
printf '#!/bin/sh\nsleep 300 &\nwait\n' >slurm/squeue
start_s=$SECONDS
SLURM_JOB_ID=42 with_slurm 0 1
says note slurm "job 42, but squeue does not answer"
[ $((SECONDS - start_s)) -lt 100 ] || fail "doctor waited for a squeue that never answers"

# Limits, places.
(ulimit -n 100 && timeout 120 "$LOCKSTEP" doctor >out.log)
[ $? -eq 1 ] || fail "100 open files are no problem"
says problem limits "open files 100,.*ulimit -n 4096"
TMPDIR=$PWD/nowhere doctor 1 1
says problem "temporary files" "nowhere: No such file or directory; set TMPDIR"
touch plainfile
for place in plainfile plainfile/run; do
  doctor 1 1 --run "$place"
  says problem "run directory" "$place: plainfile is a file"
done
mkdir readonly && chmod a-w readonly
if [ "$(id -u)" -ne 0 ]; then
  doctor 1 1 --run readonly
  says problem "run directory" "readonly: is not writable: Permission denied; .*--run"
  doctor 1 1 --run readonly --node
fi

# Tiny file systems: /dev/shm as containers have it, a full run directory. Mounted where nobody else sees them.
if [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null; then
  mkdir tiny
  # shellcheck disable=SC2016
  small() { unshare --mount sh -c 'mount -t tmpfs -o size=$1 tmpfs "$0" && shift && exec "$@"' "$@"; }
  small /dev/shm 16m "$LOCKSTEP" doctor >out.log
  [ $? -eq 1 ] || fail "16 MB of /dev/shm are no problem"
  says problem "shared memory" "/dev/shm has 16.8 MB of 16.8 MB free; .*--shm-size"
  small /dev/shm 16m "$LOCKSTEP" doctor --node >out.log
  [ $? -eq 1 ] || fail "16 MB of /dev/shm are no problem for --node"
  grep -Eq "^problem +[^ ]+: shared memory: " out.log || fail "--node: $(cat out.log)"
  unshare --mount sh -c 'mount -t tmpfs -o ro,size=512m tmpfs /dev/shm && exec "$@"' sh "$LOCKSTEP" doctor >out.log 2>err.log
  [ $? -eq 1 ] || fail "a /dev/shm that cannot be written is no problem"
  says problem "shared memory" "/dev/shm is not writable: Read-only file system; make it writable"
  small "$PWD/tiny" 3m "$LOCKSTEP" doctor --run tiny >out.log
  [ $? -eq 1 ] || fail "3 MB for a run are no problem"
  says problem "run directory" "tiny: 3.1 MB free; free some space"
  says problem "disk speed" "tiny: writing .*No space left on device"
else
  echo "not checked: tiny file systems (they need root)"
fi

# The quick check of a node takes no part in MPI, and looks at what it was told to.
# shellcheck disable=SC2086
timeout 120 $LOCKSTEP_MPIRUN -n 2 "$LOCKSTEP" doctor --node --run runs/new >out.log 2>err.log || fail "--node under mpirun: $(cat err.log)"
[ "$(grep -c '^ok  .*runs/new.*disk speed: .* MB/s written and synced' out.log)" -eq 2 ] || fail "--node under mpirun: $(cat out.log)"
PMIX_RANK=0 timeout 120 "$LOCKSTEP" doctor --node >out.log || fail "--node where a launcher left its traces: $(cat out.log)"
doctor 2 1 --node --config run.ini
doctor 2 1 --nodes

# Ranks that are not alike: doctor says all differences, train the first, in one line, and does not start.
cp "$LOCKSTEP" other && printf x >>other
unlike "'$LOCKSTEP' doctor" "./other doctor"
[ "$code" -ne 0 ] || fail "doctor: different programs are no problem"
says problem "ranks alike" "program: rank 0 on .* has [0-9]+ bytes, digest [0-9a-f]{16}, rank 1 on .* has "
says_not "data.train"

# differ TEXT FIRST SECOND: two ranks that train do not start, with code 2.
differ() {
  refused 2 "^lockstep: ranks differ in $1" unlike "$2" "$3"
}
mkdir elsewhere && cp run.ini elsewhere && cp digits.h5 elsewhere && printf y >>elsewhere/digits.h5
train="'$LOCKSTEP' train run.ini --run '$PWD/run'"
differ "program: rank 0 on [^ ]+ has .* bytes, digest .*, rank 1 on [^ ]+ has .*; give every rank the same" "$train" "./other train run.ini --run '$PWD/run'"
differ "train.steps: rank 0 on [^ ]+ has 4, rank 1 on [^ ]+ has 5; " "$train" "$train --set train.steps=5"
differ "ema.rates: .* has '', .* has 0.9" "$train" "$train --set ema.rates=0.9"
differ "data.train digits.h5: .* bytes, digest .* bytes, digest " "$train" "cd elsewhere && $train"
rm elsewhere/digits.h5
differ "data.train digits.h5: .* bytes, digest .* has no such file" "$train" "cd elsewhere && $train"
differ "--run: " "$train" "'$LOCKSTEP' train run.ini --run other-run"
unlike "'$LOCKSTEP' doctor --config run.ini" "cd elsewhere && '$LOCKSTEP' doctor --config run.ini"
says problem "ranks alike" "data.train digits.h5: .* has no such file"
says_not '^problem +configuration'
# Other instructions give other bits, but a good run: it is said.
unlike "$train" "ONEDNN_MAX_CPU_ISA=SSE41 $train"
[ "$code" -eq 0 ] || fail "a run on unlike processors: $(cat err.log)"
case $("$LOCKSTEP" doctor | sed -n 's/^ok *onednn.*, //p') in
  sse41) ;;
  *) [ "$(cat out.log err.log | grep -c 'warning: instruction set: rank 0 on .*, rank 1 on .* has sse41')" -eq 1 ] ||
    fail "unlike processors are not said once: $(cat out.log err.log)" ;;
esac

# Two made-up nodes: what they do not share, and what differs between them by host.
two_hosts=$LOCKSTEP_SOURCE_DIR/tests/bench/two_hosts.sh
# shellcheck disable=SC2016  # expanded on the hosts
on_hosts() {  # on_hosts SCRIPT: on both; $1 is 1 on the first and 2 on the second
  timeout 100 "$two_hosts" bash -c 'host=$(hostname); exec bash -c "$0" bash "${host:1:1}"' "$1" >out.log 2>err.log
  code=$?
}
mkdir first second
on_hosts "'$LOCKSTEP' doctor"
if [ "$code" -eq 77 ]; then
  echo "not checked: two nodes ($(tail -n 1 err.log))"
else
  [ "$code" -eq 0 ] || fail "doctor on two hosts: exit $code: $(cat out.log err.log)"
  says ok mpi "2 ranks on 2 nodes"
  says ok "shared directory" "files and locks are visible on all nodes"
  says ok clocks "within [0-9]+ ms on 2 nodes"
  on_hosts "[ \$1 = 1 ] && cd first || cd second; '$LOCKSTEP' doctor"
  [ "$code" -ne 0 ] || fail "a run directory of each host's own is no problem"
  says problem "shared directory" "a file that h1-[0-9]+ writes is not visible on h2-"
  on_hosts "[ \$1 = 1 ] || ulimit -n 100; '$LOCKSTEP' doctor"
  [ "$code" -ne 0 ] || fail "100 open files on one of two hosts are no problem"
  says problem limits "on h2-[0-9]+: open files 100"
  if command -v cc >/dev/null; then
    cat >ahead.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* now) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 100;
  return result;
}
C
    cc -shared -fPIC ahead.c -o ahead.so -ldl || fail "cc"
    on_hosts "[ \$1 = 1 ] || export LD_PRELOAD=$PWD/ahead.so; '$LOCKSTEP' doctor"
    says problem clocks "h2-[0-9]+ is (99|100)\.[0-9] s ahead of h1-"
  fi
  on_hosts "[ \$1 = 1 ] && program='$LOCKSTEP' || program=./other; \$program train run.ini --run hosts"
  [ "$code" -eq 2 ] || fail "another program on the second host: exit $code: $(cat err.log)"
  grep -Eq "^lockstep: ranks differ in program: h1-[0-9]+ has [^,]*, digest [^,]*, h2-[0-9]+ has " err.log || fail "train on unlike hosts: $(cat err.log)"
fi
finish
