#!/usr/bin/env bash
# startup.sh [ROUNDS]: milliseconds from `mpirun -n 2 lockstep train` to the first finished step of the digits, beside an MPI
# program that only initialises and ends, in alternating rounds; medians. Not a test: nothing fails on a time.
set -euo pipefail
rounds=${1:-7}
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
lockstep=${LOCKSTEP:-$source_dir/build/release/bin/lockstep}
# shellcheck source=jobs/mpi.sh
source "$source_dir/jobs/mpi.sh"
export "${mpi_settings[@]}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '#include <mpi.h>\nint main(int c, char** v) { MPI_Init(&c, &v); MPI_Finalize(); }\n' >"$scratch/empty.c"
mpicc "$scratch/empty.c" -o "$scratch/empty"
"$lockstep" prepare csv "$source_dir/share/data/digits.csv.gz" --shape 1,8,8 --out "$scratch/digits.h5" >/dev/null

now_ms() { date +%s%3N; }
for round in $(seq "$rounds"); do
  begin=$(now_ms)
  mpirun -n 2 "$scratch/empty"
  empty_ms+=("$(($(now_ms) - begin))")
  begin=$(now_ms)
  mpirun -n 2 "$lockstep" train "$source_dir/jobs/digits.ini" --run "$scratch/run-$round" --set data.train="$scratch/digits.h5" \
    --set train.steps=5 --set log.every=1 2>&1 | while read -r line; do
    case $line in *"step 1/"*) echo "$(($(now_ms) - begin))" >"$scratch/first" ;; esac
  done
  first_ms+=("$(cat "$scratch/first")")
done
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
empty=$(median "${empty_ms[@]}") first=$(median "${first_ms[@]}")
echo "empty MPI program $empty ms, first step after $first ms, $((first - empty)) ms more (medians of $rounds rounds)"
