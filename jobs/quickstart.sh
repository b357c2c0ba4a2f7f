#!/usr/bin/env bash
# From a bare Debian 12 or 13 to a trained model: installs, builds, trains handwritten digits on 2 ranks, evaluates, shows the
# checkpoint. Can be run again: it skips what is done and resumes the run.
set -euo pipefail
# shellcheck source=jobs/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$repository"

install_packages "${build_packages[@]}"
leave_out_gpu_code_without_gpu
say_build_time
build_release lockstep_program lockstep
lockstep=$repository/build/release/bin/lockstep
run=${1:-runs/digits}

say "Preparing the digits (runs/data/digits.h5)"
mkdir -p runs/data
[ -f runs/data/digits.h5 ] || "$lockstep" prepare csv share/data/digits.csv.gz --shape 1,8,8 --out runs/data/digits.h5

say "Training on 2 ranks ($run)"
LOCKSTEP=$lockstep bash jobs/train-mpirun.sh 2 jobs/digits.ini --run "$run"

checkpoint=$run/checkpoints/latest
say "The checkpoint: h5dump -H $checkpoint"
h5dump -H "$checkpoint" >"$run/h5dump.txt"
sed -n '/GROUP "model"/,+20p' "$run/h5dump.txt"
echo "   ... (all of it: $run/h5dump.txt)"

say "Accuracy on the held-out fifth"
"$lockstep" eval "$checkpoint" --weights model
"$lockstep" eval "$checkpoint" --weights ema/0.99

say "Done"
echo "run:        $run"
echo "checkpoint: $(readlink -f "$checkpoint")"
echo "metrics:    $run/metrics.jsonl"
echo
echo "In your own shell:  export PATH=$repository/build/release/bin:\$PATH"
find_mpi mpirun
if [ "$mpi" != hydra ]; then
  echo "and the settings of Open MPI in this script:"
  printf '  export %s\n' "${mpi_settings[@]}"
fi
