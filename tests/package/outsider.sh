#!/usr/bin/env bash
# outsider.sh BUILD SOURCE COMPILER BUILD_TYPE [SANITIZERS]: the installed package serves programs of somebody else's.
set -euo pipefail
build=$1 source=$2 compiler=$3 build_type=$4 sanitizers=${5:-}
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

export PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig:$scratch/prefix/lib/x86_64-linux-gnu/pkgconfig
mkdir "$scratch/by-pkg-config"
# shellcheck disable=SC2046,SC2086  # flags are several words
for program in digits lstm unet; do
  "$compiler" -O2 $flags $(pkg-config --cflags lockstep) "$scratch/example/$program.cpp" \
    -o "$scratch/by-pkg-config/$program" $(pkg-config --libs lockstep)
done

# same_bits STEPS PROGRAM [DATA]: STEPS steps on one rank, and on two ranks with a stop in between.
same_bits() {
  local steps=$1 program=$2
  shift 2
  by-pkg-config/"$program" "$@" "$program-alone" "$steps"
  for until in $((steps * 3 / 5)) "$steps"; do
    mpirun --oversubscribe --allow-run-as-root --bind-to none -n 2 "by-cmake/$program" "$@" "$program-pair" "$until"
  done
  prefix/bin/lockstep diff "$program-alone/checkpoints/latest" "$program-pair/checkpoints/latest"
}
cd "$scratch"
same_bits 100 digits digits.h5
same_bits 10 lstm words.h5
same_bits 10 unet
