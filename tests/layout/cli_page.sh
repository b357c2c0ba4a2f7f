#!/usr/bin/env bash
# cli_page.sh PROGRAM SOURCE: docs/cli.md is the page that the build writes from cmake/cli.md.in and the help of this program, and the manual page names no other options.
set -eu
written=$(mktemp)
trap 'rm -f "$written"' EXIT
cmake -DPROGRAM="$1" -DTEMPLATE="$2/cmake/cli.md.in" -DOUTPUT="$written" -DFORMAT=markdown -P "$2/cmake/LockstepManual.cmake"
diff -u "$2/docs/cli.md" "$written" || { echo "docs/cli.md is out of date; write it again: the target cli_page of the build"; exit 1; }

# The manual page's notes on a verb name options that its help has.
awk '/^\.S/ { verb = $1 == ".SS" ? $2 : "" }
  verb { while (match($0, /\\-\\-[a-z][a-z0-9\\-]*/)) { option = substr($0, RSTART, RLENGTH); gsub(/\\/, "", option); print verb, option
    $0 = substr($0, RSTART + RLENGTH) } }' "$2/share/man/lockstep.1.in" |
  while read -r verb option; do
    awk -v verb="$verb" '/^## / { on = $2 == verb } on' "$2/docs/cli.md" | grep -qe "$option\b" ||
      { echo "share/man/lockstep.1.in: $verb has no option $option"; exit 1; }
  done
