#!/usr/bin/env bash
# keys_page.sh PROGRAM PAGE: the committed page of configuration keys is the one that the program writes.
set -eu
written=$(mktemp)
trap 'rm -f "$written"' EXIT
"$1" markdown "$written"
diff -u "$2" "$written" || { echo "$2 is out of date; write it again: $1 markdown $2"; exit 1; }
