#!/usr/bin/env bash
# Runs a checklist, the GPU tests and benchmarks of a bundle in one go, without CTest, and writes one JSON report. For the other machine: unpack the bundle
# (cmake --preset package && cmake --build build/package --target bundle; INSTALL, "On a machine without root or packages") and start this
# script in it.
#
# gpu.sh [--checklist real|small|no] [--cpu] [--no-benchmarks] [--match REGEX] [--jobs N] [--limit-s 430] [--report report.json]
# gpu.sh --plan figures|explain [--checklist small] [--jobs N] [--limit-s 560|120] [--report report.json] [--work FOLDER]
#
#   --plan     instead of all that follows, as much as one GPU says in so long (support/plans.py): figures: bits and races while PyTorch
#              compiles on idle cores, then ours and PyTorch's steps, the kernels of a step, `train`, ranks that share the GPU, and
#              max-autotune; explain, after it: PyTorch's kernels, counters, figures that spread, kernels in graphs, then tests. What has
#              passed in FOLDER (BUNDLE/work) on the same GPU with the same files is not done again: a second start goes on. Beside the
#              report come two archives, within 25 seconds after --limit-s: report.tar.gz, of logs and the choices of the peers, and
#              report-compiled.tar.gz, of 15 MiB at most, of what PyTorch compiled, to unpack in FOLDER on the next machine
#   --checklist  what must hold before tests mean anything (support/checklist.sh): the same bits twice, with graphs and without, with NCCL
#              in a graph and outside, and odd sizes, with a GPT-2 124M or a part of it; small: with a tiny one; no: not at all
#   --cpu      tests that need no GPU as well: the MPI tests at 1, 2 and 4 ranks
#   --no-benchmarks  no measurements. These are steps of gpt-gpu and resnet-gpu, ours and PyTorch's (where it is) in turn, and profiles
#   --match    these tests instead, whatever they need; no checklist and no benchmarks
#   --jobs     so many checks and tests at once; 4, which take up to 60 GiB, if each GPU has 64, else 1. Measurements are always alone
#   --limit-s  nothing starts later, and nothing runs longer; what was not reached or not done by then is reported as skipped.
#              The checklist has 40 % of it, and tests begin no later than at 75 %
#
# Nothing ends it early: an entry that fails or hangs is reported, and the next one runs. The report is written after each entry. Ctrl-C
# and SIGTERM end what runs, and leave the report (exit code 130) and the first archive. A report's folder is made where there is none.
#
# Without a GPU the GPU tests are reported as skipped, with the reason. Exit code 0: none failed; 1: some did; 2: cannot run.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle=$(dirname "$here")

if [ ! -e "$here/list.json" ]; then
  echo "gpu.sh: $here/list.json does not exist: this script runs in a bundle" \
    "(cmake --preset package && cmake --build build/package --target bundle); in a build folder ctest -L gpu does the same" >&2
  exit 2
fi
if ! command -v python3 >/dev/null; then
  echo "gpu.sh: python3 is needed and not on PATH" >&2
  exit 2
fi

export PATH=$bundle/bin:$PATH:/usr/local/cuda/bin  # there: compute-sanitizer and ncu
# shellcheck source=jobs/mpi.sh
source "$bundle/jobs/mpi.sh"
export "${mpi_settings[@]}"
export OMP_NUM_THREADS=1
exec python3 "$here/support/run_list.py" "$bundle" "$@"
