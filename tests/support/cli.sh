# For tests of the command line (sourced): a scratch folder, ranks, and checks that say what they saw.
# Open MPI's own files go there, too: in a folder that several tests share, one mpirun clears away what another is about to use.
# shellcheck shell=bash
# Environment: LOCKSTEP (the program), LOCKSTEP_SOURCE_DIR, LOCKSTEP_MPIRUN (mpirun and its flags).

set -uo pipefail
scratch=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/work"
mkdir -m 1777 "$scratch/tmp"
export TMPDIR=$scratch/tmp
cd "$scratch/work" || exit 1
# shellcheck source=jobs/mpi.sh
source "$LOCKSTEP_SOURCE_DIR/jobs/mpi.sh"
find_mpi "$(cut -d ' ' -f 1 <<<"${LOCKSTEP_MPIRUN:-mpirun}")"
patience_s=$((120 * ${LOCKSTEP_TEST_TIME_FACTOR:-1}))  # for a run that may hang
export OMPI_MCA_odls_base_sigkill_timeout=0  # mpirun ends what is left of a job at once, not a second after asking
failures=0
# Of train.steps, for runs that something else ends: no machine gets there while a test looks, not by tens of thousands a second.
# shellcheck disable=SC2034  # for those who source this
endless_steps=1000000000

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# has_line TEXT: whether standard input has such a line (an extended regular expression). Reads it to the end: behind `grep -q` the
# writer of a pipe may fail, as nobody listens any more.
has_line() {
  local lines
  lines=$(cat)
  grep -Eq -e "$1" <<<"$lines"
}

# one_error WHO TEXT: err.log has one line of error, and that says TEXT (an extended regular expression).
one_error() {
  local lines
  lines=$(grep '^lockstep: ' err.log)
  [ "$(grep -c . <<<"$lines")" -eq 1 ] || fail "$1: not one line of error: $(cat err.log)"
  grep -Eq -e "$2" <<<"$lines" || fail "$1: '$lines' does not say: $2"
}

# ends CODE TEXT COMMAND...: COMMAND ends with CODE and one line of error that says TEXT. What it prints is in out.log and err.log.
ends() {
  local code=$1 text=$2 who got
  shift 2
  who=${case:+$case: }$*  # $case: what a script says of the place that it tests
  "$@" >out.log 2>err.log </dev/null
  got=$?
  [ "$got" -eq "$code" ] || fail "$who: exit $got, expected $code: $(grep lockstep: err.log)"
  one_error "$who" "$text"
}

# refused CODE TEXT COMMAND...: it ends like that, and this folder has the files and folders that it had, besides logs.
refused() {
  local before after
  before=$(ls -A -I '*.log')
  ends "$@"
  after=$(ls -A -I '*.log')
  [ "$before" = "$after" ] || fail "${*:3}: other files: $(diff <(echo "$before") <(echo "$after"))"
}

# ranks N VERB ARGUMENTS...: lockstep on N ranks; on one without mpirun, whose start costs more than what most tests start.
ranks() {
  local count=$1 start=()
  shift
  [ "$count" -eq 1 ] || read -r -a start <<<"$LOCKSTEP_MPIRUN -n $count"
  "${start[@]}" "$LOCKSTEP" "$@"
}

# mixed FIRST SECOND [RANKS]: rank 0 by the command line FIRST, the others by SECOND. Not by mpirun's colons: that of Open MPI 5.0.7 crashes.
mixed() {
  # shellcheck disable=SC2086,SC2016  # mpirun's flags are several words; a rank expands
  timeout "$patience_s" $LOCKSTEP_MPIRUN -n "${3:-2}" bash -c '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" -eq 0 ] || shift; exec bash -c "$1"' rank "$1" "$2"
}

# train_to_end NAME RANKS [SECTION.KEY=VALUE...]: the run NAME of run.ini, with what it says in log-NAME.
train_to_end() {
  local name=$1 count=$2
  shift 2
  ranks "$count" train run.ini --run "$name" "${@/#/--set=}" >"log-$name" 2>&1 </dev/null || fail "$name: $(tail -n 3 "log-$name")"
}

# until_there FILE PID, until_says TEXT FILE PID: waits for the file, or its text (a regular expression), or the end of the process.
until_there() {
  until [ -e "$1" ] || ! kill -0 "$2" 2>/dev/null; do sleep 0.02; done
}
until_says() {
  until grep -qs -e "$1" "$2" || ! kill -0 "$3" 2>/dev/null; do sleep 0.02; done
}

# kill_when FILE RANKS VERB ARGUMENTS...: lockstep, which does not end by itself, is killed with SIGKILL, every process of the job, as soon
# as there is FILE. What it said is in killed.log.
kill_when() {
  local file=$1 count=$2 start=() launcher
  shift 2
  [ "$count" -eq 1 ] || read -r -a start <<<"$LOCKSTEP_MPIRUN -n $count"
  setsid "${start[@]}" "$LOCKSTEP" "$@" >killed.log 2>&1 </dev/null &
  launcher=$!
  until_there "$file" "$launcher"
  # shellcheck disable=SC2046  # several; each has a session of its own where Hydra has started it
  kill -KILL "$launcher" $(ranks_of "$launcher") || fail "$*: it ended before it was killed: $(tail -n 3 killed.log)"
  wait "$launcher" 2>/dev/null
}

# expect_same A B: two checkpoints hold the same bits.
expect_same() {
  "$LOCKSTEP" diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(head -n 5 diff.log)"
}

digits() {
  "$LOCKSTEP" prepare csv "$LOCKSTEP_SOURCE_DIR/share/data/digits.csv.gz" --shape 1,8,8 --out "$1" >/dev/null ||
    fail "prepare csv"
}

words() {
  "$LOCKSTEP" prepare text "$LOCKSTEP_SOURCE_DIR/share/data/words.txt" --out "$1" >/dev/null || fail "prepare text"
}

# small_mlp TRAIN-SETTING...: sections [model], [data] (digits.h5) and [train] of a configuration.
small_mlp() {
  printf '%s\n' '[model]' 'name = mlp' 'sizes = 64 32 10' '[data]' 'train = digits.h5' '[train]' "$@"
}

# small_resnet [SETTING...]: sections [model] and [data] (digits.h5) of a configuration; further lines go to [data].
small_resnet() {
  printf '%s\n' '[model]' 'name = resnet' 'blocks = 1' 'width = 8' 'in_channels = 1' 'classes = 10' \
    '[data]' 'train = digits.h5' "$@"
}

# small_gpt [SETTING...]: the same of a gpt that learns text.h5.
small_gpt() {
  printf '%s\n' '[model]' 'name = gpt' 'layers = 2' 'heads = 2' 'channels = 32' 'context = 32' 'vocab = 256' '[data]' 'train = text.h5' "$@"
}

finish() {
  [ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
  echo "all held"
}
