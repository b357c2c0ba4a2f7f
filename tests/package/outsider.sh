#!/usr/bin/env bash
# outsider.sh BUILD SOURCE COMPILER BUILD_TYPE [SANITIZERS]: the installed package serves a program of somebody else's.
set -euo pipefail
build=$1 source=$2 compiler=$3 build_type=$4 sanitizers=${5:-}
scratch=$build/package-test
flags=${sanitizers:+-fsanitize=$sanitizers}
rm -rf "$scratch"
cmake --install "$build" --prefix "$scratch/prefix" >"$build/package-install.log"
"$scratch/prefix/bin/lockstep" prepare csv "$source/share/data/digits.csv.gz" --shape 1,8,8 --out "$scratch/digits.h5"

cp -r "$source/share/example" "$scratch/example"
cmake -S "$scratch/example" -B "$scratch/by-cmake" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE="$build_type" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_FLAGS="$flags" >/dev/null
cmake --build "$scratch/by-cmake"

export PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig:$scratch/prefix/lib/x86_64-linux-gnu/pkgconfig
# shellcheck disable=SC2046,SC2086  # flags are several words
"$compiler" -O2 $flags $(pkg-config --cflags lockstep) "$scratch/example/digits.cpp" -o "$scratch/by-pkg-config" \
  $(pkg-config --libs lockstep)

cd "$scratch"
"$scratch/by-pkg-config" digits.h5 alone 100
mpirun --oversubscribe --allow-run-as-root --bind-to none -n 2 "$scratch/by-cmake/digits" digits.h5 pair 60
mpirun --oversubscribe --allow-run-as-root --bind-to none -n 2 "$scratch/by-cmake/digits" digits.h5 pair 100
# The same steps on one rank, and on two ranks with a stop in between: the same bits.
"$scratch/prefix/bin/lockstep" diff alone/checkpoints/latest pair/checkpoints/latest
