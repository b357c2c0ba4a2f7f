#!/usr/bin/env bash
# api.sh: Doxygen finds every public name of include/ documented, and finds one that is not. Skipped (77) without Doxygen.
# Environment: LOCKSTEP_SOURCE_DIR.
set -euo pipefail
type -P doxygen >/dev/null || { echo "SKIPPED: doxygen is not installed"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# reference FOLDER: of the headers in FOLDER/include
reference() {
  sed -e "s|@PROJECT_SOURCE_DIR@/include|$1/include|; s|@PROJECT_SOURCE_DIR@|$LOCKSTEP_SOURCE_DIR|" \
    -e "s|@LOCKSTEP_API_OUTPUT@|$scratch|" "$LOCKSTEP_SOURCE_DIR/cmake/api/Doxyfile.in" >"$scratch/Doxyfile"
  doxygen "$scratch/Doxyfile" >"$scratch/log" 2>&1
}

reference "$LOCKSTEP_SOURCE_DIR" || { echo "FAILED: say what these are:"; grep -E "warning|error" "$scratch/log"; exit 1; }

mkdir -p "$scratch/some/include"
documented='double width_m = 0;  ///< of the tyre'
for undocumented in 'int speed();' "struct Wheel { $documented
};" '/// A wheel.
struct Wheel { double width_m = 0; };'; do
  printf '/// A namespace.\nnamespace lockstep {\n%s\n}\n' "$undocumented" >"$scratch/some/include/wheel.h"
  ! reference "$scratch/some" || { echo "FAILED: not found: $undocumented"; exit 1; }
done
