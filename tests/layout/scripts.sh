#!/usr/bin/env bash
# scripts.sh SOURCE: shellcheck has no remark on any script.
cd "$1" || exit 1
[ -e .ci/run ] || { echo "SKIPPED: not all scripts are here: this is no source folder"; exit 77; }
command -v shellcheck >/dev/null || { echo "SKIPPED: shellcheck is not installed"; exit 77; }
shellcheck -x -P SCRIPTDIR:. .ci/run jobs/*.sh jobs/*.sbatch tests/*.sh tests/*/*.sh tests/bench/peers/*.sh
