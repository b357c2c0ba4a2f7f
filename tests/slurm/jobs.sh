# For tests of the job scripts (sourced): a run without an end and what jobs of the real templates do with it.
# shellcheck shell=bash disable=SC2034  # job: for those who source this
# shellcheck source=tests/support/cli.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/cli.sh"
# shellcheck source=tests/slurm/cluster.sh
source "$LOCKSTEP_SOURCE_DIR/tests/slurm/cluster.sh"

templates=$LOCKSTEP_SOURCE_DIR/jobs
export LOCKSTEP_JOBS=$templates LOCKSTEP_LOGS=logs LOCKSTEP_SITE=
unset SLURM_PMIX_FENCE OMPI_MCA_odls_base_sigkill_timeout  # the templates' own
# The tests', which would hide what the templates forget.
unset {OMPI_MCA_hwloc_base,PRTE_MCA_hwloc_default}_binding_policy OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
export OMPI_MCA_btl=self,tcp  # the two nodes are one machine, which shared memory between ranks would be led astray by
export LOCKSTEP_BIND=none     # more cores than the machine has

endless_run() {
  digits digits.h5
  small_mlp "steps = $endless_steps" 'global_batch = 16' 'shards = 4' 'seed = 5' >run.ini
  cat >>run.ini <<'INI'
[optimizer]
schedule = constant
[ema]
rates = 0.9
[checkpoint]
every = 200
[log]
every = 50
INI
}

# submit NAME [SBATCH-OPTION...] -- TEMPLATE ARGUMENT...: its number is in $job, its log is NAME.log.
submit() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
  job=$(sbatch --parsable --job-name="$name" --output="$name.log" "${options[@]}" "$templates/$1" "${@:2}") ||
    fail "$name: sbatch"
}

# state JOB: RUNNING, PENDING, COMPLETED ...
state() { scontrol show job -o "$1" | sed -nE 's/.* JobState=([A-Z_]+) .*/\1/p'; }
restarts() { scontrol show job -o "$1" | sed -nE 's/.* Restarts=([0-9]+) .*/\1/p'; }
exit_code() { scontrol show job -o "$1" | sed -nE 's/.* ExitCode=([0-9]+):.*/\1/p'; }
is() { [ "$(state "$1")" = "$2" ]; }
ended() { case $(state "$1") in RUNNING | PENDING | COMPLETING | PREEMPTED) false ;; esac; }

# reached NAME COUNT: the log of a job says COUNT times that training goes on; with 0, that it trains.
reached() {
  if [ "$2" -eq 0 ]; then grep -q ' step [0-9]*/' "$1.log" 2>/dev/null; else trains_again "$1" "$2"; fi
}
# After the COUNT-th "going on" there is a step.
trains_again() {
  awk -v want="$2" '/going on after step/ {count++} / step [0-9]+\// && count >= want {found = 1} END {exit !found}' "$1.log" 2>/dev/null
}

# until_trains NAME COUNT
until_trains() {
  wait_for 200 reached "$1" "$2" || give_up "$1: does not train: $(tail -n 20 "$1.log" 2>&1)"
}
until_is() {  # until_is NAME JOB STATE
  wait_for 200 is "$2" "$3" || give_up "$1: $(state "$2"), expected $3: $(tail -n 20 "$1.log" 2>&1)"
}
until_ended() {
  wait_for 200 ended "$2" || give_up "$1: $(state "$2"), expected its end: $(tail -n 20 "$1.log" 2>&1)"
}
give_up() {
  fail "$*"
  exit 1
}

# held NAME: a line for each case and the time since the start, for whoever reads the log of the test.
held() { echo "$1: looked at after $SECONDS s"; }

# ends NAME JOB STATE CODE RESTARTS
ends() {
  until_ended "$1" "$2"
  local got
  got="$(state "$2") $(exit_code "$2") $(restarts "$2")"
  held "$1: $got"
  [ "$got" = "$3 $4 $5" ] || fail "$1: state, exit code, restarts: $got, expected $3 $4 $5: $(tail -n 20 "$1.log")"
}
says() {  # says NAME TEXT
  grep -Eq "$2" "$1.log" || fail "$1: does not say '$2': $(cat "$1.log")"
}
silent_about() {
  ! grep -Eq "$2" "$1.log" || fail "$1: says '$2': $(cat "$1.log")"
}

# same_as_undisturbed RUN [CONFIG]: one rank, one start, as many steps as the newest checkpoint: the same bits.
same_as_undisturbed() {
  local last
  last=$(readlink "$1/checkpoints/latest")
  last=${last#step-}
  rm -rf undisturbed
  "$LOCKSTEP" train "${2:-run.ini}" --run undisturbed --set train.steps="$((10#${last%.h5}))" >undisturbed.log 2>&1 ||
    fail "$1: the undisturbed run: $(tail -n 3 undisturbed.log)"
  expect_same undisturbed/checkpoints/latest "$1/checkpoints/latest"
}

# container IMAGE: a folder in the place of an image, in which alone lockstep is there, as `inner`; ./contain exec IMAGE COMMAND runs it.
container() {
  mkdir -p "$1/bin"
  ln -s "$LOCKSTEP" "$1/bin/inner"
  cat >contain <<'CONTAIN'
#!/usr/bin/env bash
[ "$1" = exec ] && [ -d "$2" ] || exit 255
PATH=$2/bin:$PATH exec "${@:3}"
CONTAIN
  chmod +x contain
}
