#!/usr/bin/env bash
# figures.sh drawn|guarantees: the committed figures are what their scripts draw. drawn: those of docs/concepts.md and the one of
# measured times, from these times. guarantees: the runs of the figure are made again and hold what it says.
# Environment: LOCKSTEP, LOCKSTEP_SOURCE_DIR; LOCKSTEP_FAULT_LIBRARY (libfault.so), for guarantees.
set -euo pipefail
figures=$LOCKSTEP_SOURCE_DIR/docs/figures
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case $1 in
  drawn)
    /usr/bin/python3 "$figures/concepts.py" "$scratch"
    /usr/bin/python3 "$figures/step_time.py" "$figures/step_time.txt" "$scratch/step_time.svg"
    ;;
  guarantees) /usr/bin/python3 "$figures/guarantees.py" "$LOCKSTEP" "$LOCKSTEP_FAULT_LIBRARY" "$scratch/guarantees.svg" ;;
esac
for figure in "$scratch"/*.svg; do
  cmp "$figure" "$figures/$(basename "$figure")" || { echo "FAILED: draw it again, see docs/performance.md"; exit 1; }
done
