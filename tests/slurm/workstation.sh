#!/usr/bin/env bash
# jobs/train-mpirun.sh: what would make mpirun kill its ranks ends in a checkpoint and the documented code; a start that failed is
# repeated while checkpoints get newer. And what all job scripts take an exit code, a folder and arguments for.
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "$0")/jobs.sh"
endless_run
PATH=$(dirname "${LOCKSTEP_MPIRUN%% *}"):$PATH

script=''
trap 'processes | xargs -r kill -KILL; rm -rf "$scratch"' EXIT
# processes: those that `begin` has started, in whatever session. A zombie has no environment any more.
processes() { grep -lzsx "LOCKSTEP_WORKSTATION=$$" /proc/[0-9]*/environ | cut -d / -f 3; }

# begin NAME [ARGUMENT...]: in a session of its own, as a terminal would start it: Ctrl-C reaches its whole process group.
begin() {
  LOCKSTEP_WORKSTATION=$$ env --default-signal=INT,HUP setsid bash "$templates/train-mpirun.sh" 2 run.ini --run "$1" "${@:2}" >"$1.log" 2>&1 &
  script=$!
}
# expect NAME CODE
expect() {
  local code
  wait "$script"
  code=$?
  [ "$code" -eq "$2" ] || fail "$1: exit $code, expected $2: $(tail -n 5 "$1.log")"
  [ -z "$(processes)" ] || fail "$1: processes left: $(processes | xargs ps -o pid=,args= -p)"
}
rank_name=$(basename "$LOCKSTEP" | cut -c 1-15)  # as the kernel keeps it
ranks_begun() { processes | sed 's|.*|/proc/&/comm|' | xargs grep -lsxF "$rank_name" | cut -d / -f 3; }
has() {  # PROGRAM
  # shellcheck disable=SC2046  # several
  grep -qsxF "$1" $(processes | sed 's|.*|/proc/&/comm|') /dev/null
}
equal() {  # equal EXPECTED WHAT GOT
  [ "$1" = "$3" ] || fail "$2: $3, expected $1"
}
whole() {
  "$LOCKSTEP" verify "$1/checkpoints/latest" >verify.log 2>&1 || fail "$1: no whole checkpoint: $(cat verify.log)"
}

for signal in TERM HUP USR2; do
  begin "$signal"
  until_trains "$signal" 0
  kill -"$signal" "$script"
  expect "$signal" 75
  whole "$signal"
done

# So does one that comes before there are ranks, or before they have handlers, which it would kill.
for program in mpirun "$rank_name"; do
  begin "early-$program"
  wait_for 60 has "$program" || fail "no $program"
  kill -USR1 "$script"
  kill -USR2 "$script"
  expect "early-$program" 75
done

# SIGUSR1 asks the ranks where they are; nobody ends by it.
begin asked --set fault.signal_report=true
until_trains asked 0
kill -USR1 "$script"
wait_for 60 grep -q 'rank 1 .*in step' asked.log || fail "asked: no report: $(tail -n 5 asked.log)"
touch asked/stop
expect asked 76

begin interrupted
until_trains interrupted 0
kill -INT -- "-$script"
expect interrupted 76
whole interrupted
begin interrupted --set train.steps="$(sed -nE 's/.* after step ([0-9]+);.*/\1/p' interrupted.log)"
expect interrupted 0
same_as_undisturbed interrupted

# A second Ctrl-C ends a run that does not obey the first.
begin twice
until_trains twice 0
mapfile -t ranks < <(ranks_begun)
kill -STOP "${ranks[@]}"
kill -INT "$script"
wait_for 60 test -e twice/stop || fail "twice: no stop"
kill -INT "$script"
expect twice 130
says twice "job: ended by a second Ctrl-C; the same command resumes"
[ ! -e twice/stop ] || fail "twice: stop is left"

# A rank that is killed: started again, to the same bits; one that never gets anywhere is given up; a wrong key is not repeated.
begin killed
until_trains killed 0
wait_for 60 test -e killed/checkpoints/latest || fail "killed: no checkpoint"
kill -KILL "$(ranks_begun | tail -n 1)"
until_trains killed 1
touch killed/stop
expect killed 76
says killed "job: failed with exit 137; started again"
same_as_undisturbed killed

cat >hopeless.sh <<'HOPELESS'
#!/usr/bin/env bash
echo start >>starts
exit 5
HOPELESS
chmod +x hopeless.sh
LOCKSTEP=$PWD/hopeless.sh begin hopeless
expect hopeless 5
says hopeless "given up after 3 starts, 3 of them without a newer checkpoint"
begin wrong --set train.nonsense=1
expect wrong 2
silent_about wrong "started again"
[[ $(tail -n 1 wrong.log) == 'lockstep: --set: train.nonsense: unknown key'* ]] || fail "wrong: the reason is not last: $(tail -n 3 wrong.log)"
for ranks in run.ini 99999999999999999999; do
  "$templates/train-mpirun.sh" $ranks run.ini >usage.log 2>&1
  [ $? -eq 2 ] || fail "$ranks ranks: $(cat usage.log)"
done
mkdir none
for tool in bash dirname date; do ln -s "$(command -v $tool)" none; done
PATH=$PWD/none bash "$templates/train-mpirun.sh" 2 run.ini >usage.log 2>&1
equal "2 1" "no mpirun: code, lines" "$? $(grep -c 'job: no mpirun on PATH' usage.log)"

# The parts on their own.
# shellcheck source=jobs/slurm.sh
source "$templates/slurm.sh"
for pair in 0=finished 2=stop 3=stop 4=stop 76=stop 75=again 1=failed 5=failed 128=failed 137=failed 139=failed 143=failed; do
  equal "${pair#*=}" "exit ${pair%=*}" "$(verdict "${pair%=*}")"
done
equal runs/gpt-text "directory" "$(run_directory_of jobs/gpt-text.ini)"
equal runs/a.b "directory" "$(run_directory_of --set train.steps=3 a.b.ini)"
equal here "directory" "$(run_directory_of a.ini --run here)"
equal 'a place' "directory" "$(run_directory_of --run='a place' --resume never a.ini)"
mkdir -p made/checkpoints
equal -1 "newest step of nothing" "$(newest_step made)"
touch made/checkpoints/step-{000000008,000000100,000000099}.h5 made/checkpoints/{step-000000200.h5.bad,.step-000000300.h5.tmp}
equal 100 "newest step" "$(newest_step made)"
printf '%s\n' -1 -1 50 100 100 >made/starts
equal 2 "starts without progress" "$(stalled made/starts 100)"
equal 0 "starts without progress" "$(stalled made/starts 101)"
equal 3 "starts after which the newest was found bad" "$(stalled made/starts 50)"
equal 0 "starts of nothing" "$(stalled made/none 0)"
equal "from the beginning after step 7" "places" "$(place_of -1) $(place_of 7)"
# The reason that only another node's log has comes into the job's log, without those of earlier starts, and once.
reasons() {
  local log=made/job code=$1
  local -A size=([made/job-1-n2.log]=14)
  printf 'lockstep: both\nlockstep: own\n' >made/job-0-n1.log
  printf 'lockstep: old\nlockstep: both\nstep 3\nlockstep: new\nlockstep: new\n' >made/job-1-n2.log
  printf 'lockstep: new\n' >made/job-2-n3.log
  reasons_elsewhere made/job-0-n1.log | sed 's/^\[.*\] //'
}
equal $'job: from made/job-1-n2.log:\nlockstep: new' "reasons after exit 5" "$(reasons 5)"
equal "" "reasons after exit 75" "$(reasons 75)"

for pair in 02:00=120 00:02:00=120 1-02:03:04=93784 UNLIMITED= Partition_Limit=; do
  equal "${pair#*=}" "seconds of ${pair%=*}" "$(seconds_of "${pair%=*}")"
done
# leads LIMIT SUBMIT-LINE [SBATCH_SIGNAL]: what is said of a job with the script's --signal=B:USR2@180, where no signal comes meanwhile.
cat >scontrol <<'SCONTROL'
#!/bin/sh
echo "JobId=1 TimeLimit=$LIMIT PreemptTime=None Command=x"
SCONTROL
cat >sacct <<'SACCT'
#!/bin/sh
echo "$SUBMITTED"
SACCT
cat >leads.sh <<'LEADS'
#SBATCH --signal=B:USR2@180
source "$LOCKSTEP_JOBS/slurm.sh"
code=0 first_signal_s=0
leaves_time
echo "$? $code"
LEADS
chmod +x scontrol sacct
leads() { PATH=$PWD:$PATH LIMIT=$1 SUBMITTED=$2 SBATCH_SIGNAL=${3:-} SLURM_JOB_ID=1 bash leads.sh | sed 's/^\[.*\] job: //'; }
line='sbatch --time=2 jobs/train.sbatch run.ini'
refused() { echo "the time limit of $1 s is not above the $2 s that --signal=$3@$2 comes before it, so nothing can be trained: give a longer --time, or --signal=$3@$4"; }
equal "$(refused 120 180 B:USR2 30)"$'\n1 2' "a lead of the script" "$(leads 00:02:00 "$line")"
equal "$(refused 60 900 R:TERM 15)"$'\n1 2' "a lead of sbatch" "$(leads 00:01:00 "sbatch --signal R:TERM@900 mine.sbatch --signal=B:USR2@1")"
equal "$(refused 60 60 USR1 15)"$'\n1 2' "a lead of the environment" "$(leads 00:01:00 "$line" USR1@60)"
equal "0 0" "a limit above the lead" "$(leads 00:03:01 "$line")"
equal "0 0" "no limit" "$(leads UNLIMITED "$line")"
equal "0 0" "another lead of sbatch" "$(leads 00:02:00 "sbatch --signal=B:USR2@30 jobs/train.sbatch")"
equal "0 0" "another lead of the environment" "$(leads 00:02:00 '' B:USR2@30)"
equal "0 0" "a signal that does not come" "$(leads 00:02:00 '' | tail -n 1)"

# choose LAUNCHER OFFERED [TYPE]: what the templates choose where srun offers OFFERED to $mpi, an Open MPI with PMIx.
choose() (
  # shellcheck disable=SC2317  # by choose_launcher
  srun() { echo "$srun_offers"; }
  # shellcheck disable=SC2317
  ompi_info() { echo mca:pmix:ext3x:version; }
  launcher=$1 srun_offers=$2 srun_mpi=${3:-}
  choose_launcher
  echo "$launcher $srun_mpi"
)
mpi=hydra
equal "srun pmi2" "launcher auto with MPICH" "$(choose auto 'none pmi2 pmix')"
equal "mpirun " "launcher auto with MPICH, without PMI2" "$(choose auto 'none pmix')"
mpi=orte
for wanted in auto srun; do
  equal "srun pmix" "launcher $wanted" "$(choose "$wanted" 'none pmi2 pmix pmix_v4')"
  equal "srun pmix_v4" "launcher $wanted, PMI told" "$(choose "$wanted" none pmix_v4)"
done
equal "mpirun " "launcher auto without PMIx" "$(choose auto 'none pmi2')"
equal "mpirun " "launcher mpirun" "$(choose mpirun 'none pmix')"
for wanted in srun ssh; do
  choose "$wanted" 'none pmi2' >choice.log
  equal "2 1" "launcher $wanted: code, lines" "$? $(grep -c "job: LOCKSTEP_LAUNCHER=$wanted: " choice.log)"
done
# cmake_flags_of GPU [FLAGS]: what the quick start builds with where nvcc is there, and a GPU or `none`.
cmake_flags_of() (
  # shellcheck disable=SC2317  # by leave_out_gpu_code_without_gpu
  compgen() { [ "$gpu" != none ]; }
  # shellcheck disable=SC2317
  nvidia-smi() { return 1; }
  gpu=$1 CUDACXX=true LOCKSTEP_CMAKE_FLAGS=${2:-}
  # shellcheck source=jobs/setup.sh
  source "$templates/setup.sh"
  leave_out_gpu_code_without_gpu >/dev/null
  echo "$LOCKSTEP_CMAKE_FLAGS"
)
equal " -DLOCKSTEP_CUDA=OFF" "flags without a GPU" "$(cmake_flags_of none)"
equal "" "flags with a GPU" "$(cmake_flags_of here)"
equal "-DLOCKSTEP_CUDA=ON" "flags without a GPU, as asked" "$(cmake_flags_of none -DLOCKSTEP_CUDA=ON)"
run_in_background false
equal 1 "a program that fails" "$code"
pass_on TERM  # before there is anything to hand it on to
run_in_background touch begun
equal 75 "a start after a request to stop" "$code"
[ ! -e begun ] || fail "it starts after a request to stop"
finish
