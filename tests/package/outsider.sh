#!/usr/bin/env bash
# outsider.sh MPIRUN BUILD SOURCE COMPILER BUILD_TYPE [SANITIZERS]: the installed package serves programs of somebody else's.
set -euo pipefail
mpirun=$1 build=$2 source=$3 compiler=$4 build_type=$5 sanitizers=${6:-}
scratch=$build/package-test
flags=${sanitizers:+-fsanitize=$sanitizers}
rm -rf "$scratch"
cmake --install "$build" --prefix "$scratch/prefix" >"$build/package-install.log"
"$scratch/prefix/bin/lockstep" prepare csv "$source/share/data/digits.csv.gz" --shape 1,8,8 --out "$scratch/digits.h5"
"$scratch/prefix/bin/lockstep" prepare text "$source/share/data/words.txt" --out "$scratch/words.h5"

cp -r "$source/share/example" "$scratch/example"
cmake -S "$scratch/example" -B "$scratch/by-cmake" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE="$build_type" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_FLAGS="$flags" >/dev/null
cmake --build "$scratch/by-cmake"

export PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig:$scratch/prefix/lib/$HOSTTYPE-linux-gnu/pkgconfig
mkdir "$scratch/by-pkg-config"
# shellcheck disable=SC2046,SC2086  # flags are several words
"$compiler" -O2 $flags $(pkg-config --cflags lockstep) "$scratch/example/digits.cpp" \
  -o "$scratch/by-pkg-config/digits" $(pkg-config --libs lockstep) -Wl,-rpath,"$(pkg-config --variable=libdir lockstep)"

# on RANKS PROGRAM ARGUMENTS...
on() {
  local ranks=$1 program=$2
  shift 2
  "$mpirun" -n "$ranks" "by-cmake/$program" "$@"
}
# same RUN RUN: their newest checkpoints hold the same bits.
same() {
  prefix/bin/lockstep diff "$1/checkpoints/latest" "$2/checkpoints/latest"
}

# same_bits STEPS PROGRAM [DATA]: STEPS steps on one rank, and on two ranks with a stop in between.
same_bits() {
  local steps=$1 program=$2
  shift 2
  by-cmake/"$program" "$@" "$program-alone" "$steps"
  for until in $((steps * 3 / 5)) "$steps"; do on 2 "$program" "$@" "$program-pair" "$until"; done
  same "$program-alone" "$program-pair"
}
cd "$scratch"
same_bits 100 digits digits.h5
by-pkg-config/digits digits.h5 digits-by-pkg-config 100
same digits-alone digits-by-pkg-config
same_bits 10 lstm words.h5
same_bits 10 unet

# Statistics of synchronized batch norm are those of the ranks of a pass: the same number of ranks throughout.
on 2 groups_and_averages digits.h5 groups-whole 30 2>progress
grep -q 'step 20/30  loss .* samples/s' progress
for until in 20 30; do on 2 groups_and_averages digits.h5 groups-resumed "$until"; done
same groups-whole groups-resumed

on 2 load_and_wrap digits-pair/checkpoints/latest digits.h5
for way in wrapped one_by_one flat bucketed; do on 3 by_hand "$way" 20 "$way"; done
for way in one_by_one flat bucketed; do same wrapped "$way"; done
on 3 tutorial digits.h5 2
