#!/usr/bin/env bash
# cli_page.sh PROGRAM SOURCE: docs/cli.md is the page that the build writes from cmake/cli.md.in and the help of this program.
set -eu
written=$(mktemp)
trap 'rm -f "$written"' EXIT
cmake -DPROGRAM="$1" -DTEMPLATE="$2/cmake/cli.md.in" -DOUTPUT="$written" -DFORMAT=markdown -P "$2/cmake/LockstepManual.cmake"
diff -u "$2/docs/cli.md" "$written" || { echo "docs/cli.md is out of date; write it again: the target cli_page of the build"; exit 1; }
