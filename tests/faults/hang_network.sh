#!/usr/bin/env bash
# hang_network.sh: the link between two hosts goes down in the middle of a run. The ranks of both hosts end in bounded time, those who
# can speak name the others; mpirun, which would wait for the daemon beyond the link for a quarter of an hour, is ended by the job
# scripts; and the run goes on to the bits of one without a fault. Needs root, for two network name spaces
# (tests/bench/two_hosts.sh); exit code 77 where they cannot be made.
source "$(dirname "$0")/faults.sh"
two_hosts=$LOCKSTEP_SOURCE_DIR/tests/bench/two_hosts.sh

small_run
sed -i -e "s/^steps = .*/steps = $endless_steps/; s/^every = .*/every = 50/" run.ini
printf '[fault]\nhang_timeout_s = 2\n' >>run.ini

mkdir bin
cat >bin/mpirun <<'MPIRUN'
#!/usr/bin/env bash
# As the job scripts start it.
PATH=${PATH#*:}
source "$LOCKSTEP_SOURCE_DIR/jobs/launch.sh"
run_in_background mpirun "$@"
say "mpirun has ended: $(verdict "$code")"
exit "$code"
MPIRUN
chmod +x bin/mpirun

case="the link goes down"
id=$$-network
PATH=$PWD/bin:$PATH LOCKSTEP_LAUNCHER_GRACE_S=2 LOCKSTEP_STRIKE=$id bash "$two_hosts" -n 1 -r none "$LOCKSTEP" train run.ini --run subject >out.log 2>err.log &
hosts=$!
for _ in $(seq 300); do
  [ -e subject/checkpoints/latest ] && break
  kill -0 $hosts 2>/dev/null || break
  sleep 0.1
done
[ -e subject/checkpoints/latest ] || { wait $hosts; code=$?; [ $code -ne 77 ] || { cat err.log; exit 77; }; give_up "$case: no run: exit $code: $(tail -n 5 err.log)"; }

[ "$(processes_of "$id" | wc -l)" -eq 2 ] || fail "$case: not two ranks: $(processes_of "$id")"
ip -n "h1-$hosts" link set lockstep0 down || fail "$case: cannot take it down"
down=$(date +%s%N)
all_gone "$id" || fail "$case: ranks are left after a minute: $(processes_of "$id")"
awk -v a="$down" -v b="$(date +%s%N)" 'BEGIN { printf "from the fault to the last rank gone: %.2f s\n", (b - a) / 1e9 }'
grep -qE '^lockstep: rank 1 \(h2-.*: no sign of life for ' err.log || fail "$case: rank 1 is not named: $(grep ^lockstep err.log)"
for _ in $(seq 300); do
  kill -0 $hosts 2>/dev/null || break
  sleep 0.1
done
kill -TERM $hosts 2>/dev/null && fail "$case: mpirun is left after 30 s: $(tail -n 3 out.log)"
wait $hosts
code=$?
[ $code -eq 5 ] || fail "$case: the job script says exit $code, not 5: $(tail -n 3 out.log)"
grep -q 'job: mpirun still waits for another node' out.log || fail "$case: mpirun was not ended: $(tail -n 3 out.log)"
"$LOCKSTEP" verify subject/checkpoints/latest >verify.log 2>&1 || fail "$case: $(head -n 1 verify.log)"
reached=$(readlink subject/checkpoints/latest | tr -dc '0-9')
settings=(--set "train.steps=$((10#$reached + 20))")
train 2 || fail "$case: resumed: exit $?: $(tail -n 3 err.log)"
cp subject/checkpoints/latest resumed.h5
from_nothing
train 1 || fail "$case: without a fault: exit $?"
expect_same resumed.h5 subject/checkpoints/latest
finish
