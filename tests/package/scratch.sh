# What tests of packages share (sourced).
# shellcheck shell=bash
set -euo pipefail

failed() {
  echo "FAILED: $*"
  exit 1
}

# enter_empty FOLDER: makes it anew and goes there.
enter_empty() {
  rm -rf "$1"
  mkdir -p "$1"
  cd "$1"
}
