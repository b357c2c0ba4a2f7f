# For tests of the command line (sourced): a scratch folder, ranks, and checks that say what they saw.
# shellcheck shell=bash
# Environment: LOCKSTEP (the program), LOCKSTEP_SOURCE_DIR, LOCKSTEP_MPIRUN (mpirun and its flags).

set -uo pipefail
scratch=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# ranks N VERB ARGUMENTS...: lockstep on N ranks.
ranks() {
  local count=$1
  shift
  # shellcheck disable=SC2086  # mpirun's flags are several words
  $LOCKSTEP_MPIRUN -n "$count" "$LOCKSTEP" "$@"
}

# expect_same A B: two checkpoints hold the same bits.
expect_same() {
  "$LOCKSTEP" diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(head -n 5 diff.log)"
}

digits() {
  "$LOCKSTEP" prepare csv "$LOCKSTEP_SOURCE_DIR/share/data/digits.csv.gz" --shape 1,8,8 --out "$1" >/dev/null ||
    fail "prepare csv"
}

# small_resnet [SETTING...]: sections [model] and [data] (digits.h5) of a configuration; further lines go to [data].
small_resnet() {
  printf '%s\n' '[model]' 'name = resnet' 'blocks = 1' 'width = 8' 'in_channels = 1' 'classes = 10' \
    '[data]' 'train = digits.h5' "$@"
}

finish() {
  [ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
  echo "all held"
}
