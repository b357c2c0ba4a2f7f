#!/usr/bin/env bash
# Jobs that end, each in its way and at the same time: done, wrong, stopped, cancelled; a sweep, an evaluation, mpirun, and two jobs
# on one directory. What must not come back does not come back.
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "$0")/jobs.sh"
start_cluster 2
endless_run
printf '%s\n' '# learning rates' 'train.steps=40 optimizer.lr=1e-3' '' "train.steps=60 'ema.rates=0.9 0.99'" 'train.nonsense=1' >sweep.txt
printf '%s\r\n' '' 'train.steps=40' "train.steps=40 'ema.rates=0.9 0.99" >windows.txt

submit whole -N2 --ntasks-per-node=2 -- train.sbatch run.ini --run whole --set train.steps=120
whole=$job
LOCKSTEP_LAUNCHER=mpirun submit mpirun -N2 --ntasks-per-node=2 -- train.sbatch run.ini --run mpirun --set train.steps=120
mpirun=$job
# unfit.sh: lockstep on nodes of which the second has a fault.
cat >unfit.sh <<UNFIT
#!/usr/bin/env bash
if [ "\$1" = doctor ] && [ "\$SLURM_NODEID" = 1 ]; then echo "problem  fans: none turns" && exit 1; fi
exec "$LOCKSTEP" "\$@"
UNFIT
chmod +x unfit.sh
LOCKSTEP=$PWD/unfit.sh LOCKSTEP_MAX_STALLED=1 submit unfit -N2 -- train.sbatch run.ini --run unfit
unfit=$job
# elsewhere.sh: the rank of the second node alone says why it ends.
cat >elsewhere.sh <<ELSEWHERE
#!/usr/bin/env bash
[ "\$1" = train ] || exec "$LOCKSTEP" "\$@"
[ "\$SLURM_PROCID" = 1 ] || exec tail -f /dev/null
echo "lockstep: fans: none turns" >&2
exit 5
ELSEWHERE
chmod +x elsewhere.sh
LOCKSTEP=$PWD/elsewhere.sh LOCKSTEP_MAX_STALLED=1 submit elsewhere -N2 -- train.sbatch run.ini --run elsewhere
elsewhere=$job
LOCKSTEP_LAUNCHER=mpirun submit forwarded -N2 -- train.sbatch run.ini --run forwarded
forwarded=$job
submit wrong -N2 -- train.sbatch run.ini --run wrong --set train.nonsense=1
wrong=$job
LOCKSTEP_SRUN_MPI=pmx submit flavour -N2 -- train.sbatch run.ini --run flavour
flavour=$job
LOCKSTEP_LAUNCHER_FLAGS=--no-such LOCKSTEP_HEALTH_CHECK_S=0 submit flags -N2 -- train.sbatch run.ini --run flags
flags=$job
submit missing -N1 -- train.sbatch nowhere.ini
missing=$job
submit short -N1 --time=2 -- train.sbatch run.ini --run short
short=$job
submit brief -N1 --time=2 --signal=B:USR2@30 -- train.sbatch run.ini --run brief --set train.steps=40
brief=$job
# in_turn.sh: lockstep on nodes of which the second looks at itself after the first has failed.
cat >in_turn.sh <<'IN_TURN'
#!/usr/bin/env bash
[ "$1" = doctor ] || exec "$REAL" "$@"
until [ "$SLURM_NODEID" = 0 ] || [ -e "first_$SLURM_JOB_ID" ]; do sleep 0.2; done
[ "$SLURM_NODEID" = 0 ] || sleep 1  # time for what would end it
"$REAL" "$@"
code=$?
touch "first_$SLURM_JOB_ID"
exit "$code"
IN_TURN
chmod +x in_turn.sh
export REAL=$LOCKSTEP
LOCKSTEP=$PWD/in_turn.sh submit homeless -N2 -- train.sbatch run.ini --run /proc/run
homeless=$job
sweep=$(sbatch --parsable --array=1-4 --output=sweep-%a.log "$templates/array.sbatch" run.ini sweep.txt sweep)
windows=$(sbatch --parsable --array=1-2 --output=windows-%a.log "$templates/array.sbatch" run.ini windows.txt windows)
submit first -N2 -- train.sbatch run.ini --run shared
first=$job
submit cancelled -N2 -- train.sbatch run.ini --run cancelled
cancelled=$job

until_trains first 0
submit second -N2 -- train.sbatch run.ini --run shared
second=$job

# scancel: SIGTERM to the ranks, which save; Slurm's state is CANCELLED and stays that.
until_trains cancelled 0
scancel "$cancelled"
ends cancelled "$cancelled" CANCELLED 75 0
"$LOCKSTEP" verify cancelled/checkpoints/latest >verify.log || fail "cancelled: no whole checkpoint: $(cat verify.log)"
says cancelled "; cancelled: not requeued"
silent_about cancelled "requeued as|No such process"

# The signal that comes before the time limit, under mpirun: handed on to the ranks, a checkpoint, back into the queue.
until_trains forwarded 0
scancel --signal=USR2 --batch "$forwarded"
until_is forwarded "$forwarded" PENDING
says forwarded "stopped as asked; requeued as $forwarded, to resume after step"
"$LOCKSTEP" verify forwarded/checkpoints/latest >verify.log || fail "forwarded: no whole checkpoint: $(cat verify.log)"
scancel "$forwarded"
ended "$forwarded" || until_ended forwarded "$forwarded"

ends whole "$whole" COMPLETED 0 0
says whole "4 ranks on n.* by srun --mpi=$([ "$mpi" = hydra ] && echo pmi2 || echo pmix)"
says whole "done: 120 steps"
[ "$(find logs -name 'whole-*-[01]-*.log' | wc -l)" -eq 2 ] || fail "whole: not a log for each node: $(ls logs)"
same_as_undisturbed whole
# Its ranks waited for one another where they started: PMIx's fence along a tree, without data, waits for nobody.
fences=$(grep -h "\[$whole\.[0-9]*\].*pmixp_coll_contrib_local:.*COLL_FENCE_" cluster/log/slurmd.*.log)
[ "$mpi" = hydra ] || grep -q COLL_FENCE_RING <<<"$fences" || fail "whole: the nodes' logs do not say how ranks wait for one another"
! grep COLL_FENCE_TREE <<<"$fences" || fail "whole: its ranks do not wait for one another: $fences"
ends mpirun "$mpirun" COMPLETED 0 0
says mpirun "4 ranks on n.* by mpirun"
same_as_undisturbed mpirun
ends unfit "$unfit" FAILED 5 0
says unfit "a node is not fit"
says unfit "fans: none turns"
[ ! -e unfit ] || fail "unfit: trained"
ends elsewhere "$elsewhere" FAILED 5 0
says elsewhere "job: from logs/elsewhere-$elsewhere-1-.*.log:"
says elsewhere "^lockstep: fans: none turns"
ends wrong "$wrong" FAILED 2 0
says wrong "train.nonsense: unknown key"
[[ $(tail -n 1 wrong.log) == 'lockstep: --set: train.nonsense: unknown key'* ]] || fail "wrong: the reason is not last: $(tail -n 3 wrong.log)"
[ ! -e wrong/checkpoints ] || fail "wrong: left something"
# Not a node's fault.
ends flavour "$flavour" FAILED 2 0
says flavour "Invalid MPI type 'pmx'"
silent_about flavour "not fit"
ends flags "$flags" FAILED 2 0
says flags "unrecognized option '--no-such'"
ends missing "$missing" FAILED 2 0
says missing " 1 rank on n"
# A time limit that is not above the lead of the script's signal: no rank starts. Another lead on the command line, which a job cannot see.
ends short "$short" FAILED 2 0
says short "time limit of 120 s is not above the 180 s .* --signal=B:USR2@30$"
[ ! -e short ] || fail "short: trained"
ends brief "$brief" COMPLETED 0 0
ends homeless "$homeless" FAILED 2 0
says homeless "no node can write the run there"
says homeless "problem .*run directory: /proc: is not writable"

# The sweep: lines 1 and 2 train with their settings, line 3 is wrong, line 4 is not there.
for task in 1 2; do
  ends "sweep-$task" "${sweep}_$task" COMPLETED 0 0
done
for task in 3 4; do
  ends "sweep-$task" "${sweep}_$task" FAILED 2 0
done
says sweep-4 "has no line 4"
[ "$(readlink sweep/1/checkpoints/latest) $(readlink sweep/2/checkpoints/latest)" = "step-000000040.h5 step-000000060.h5" ] ||
  fail "sweep: $(ls sweep/*/checkpoints)"
grep -q "lr = 0*1e-0*3\|lr = 0.001" sweep/1/config.ini || fail "sweep: task 1 has not its own rate: $(grep lr sweep/1/config.ini)"
grep -q "rates = 0.9 0.99" sweep/2/config.ini || fail "sweep: task 2 has not its own averages: $(grep rates sweep/2/config.ini)"
# A list with the line ends of Windows; a quote that does not end drops nothing silently.
ends windows-1 "${windows}_1" COMPLETED 0 0
ends windows-2 "${windows}_2" FAILED 2 0
says windows-2 "job: windows.txt, line 3: a quote"
[ ! -e windows/2 ] || fail "windows: line 3 trains"

submit eval -N2 -- eval.sbatch sweep/1/checkpoints/latest --data digits.h5 --weights ema/0.9
ends eval "$job" COMPLETED 0 0
says eval "accuracy"

# One run directory, two jobs: the second is told who holds it, and does not wait for its turn in a loop of requeues.
ends second "$second" FAILED 2 0
says second "shared/lock.*pid"
is "$first" RUNNING || fail "first: $(state "$first") when a second job came"
touch shared/stop
ends first "$first" FAILED 76 0
says first "exit 76: not requeued"
same_as_undisturbed shared
finish
