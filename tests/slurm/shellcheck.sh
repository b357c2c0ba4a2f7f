#!/usr/bin/env bash
# No remark by shellcheck on the job scripts and on their tests.
cd "$LOCKSTEP_SOURCE_DIR" || exit 1
command -v shellcheck >/dev/null || { echo "SKIPPED: shellcheck is not installed"; exit 77; }
shellcheck -x -P . jobs/*.sh jobs/*.sbatch tests/slurm/*.sh
