#!/usr/bin/env bash
# shared.sh BUILD SOURCE COMPILER COMPONENT: programs find liblockstep.so by find_package and by pkg-config, need nothing else of what
# Lockstep uses, and train to the same bits. The library exports its own names only. COMPONENT of BUILD's installation has it.
# shellcheck source=tests/package/scratch.sh
source "$(dirname "$0")/scratch.sh"
build=$1 source=$2 compiler=$3 component=$4
# property FILE NAME: of its dynamic section (NEEDED, SONAME, RPATH, RUNPATH).
property() {
  objdump -p "$1" | awk -v name="$2" '$1 == name { print $2 }'
}

rm -rf "$build/shared-test"
mkdir "$build/shared-test"
cd "$build/shared-test"
for part in "$component" "$component-runtime"; do cmake --install "$build" --prefix prefix --component "$part" >>install.log; done
export PKG_CONFIG_PATH=$PWD/prefix/lib/pkgconfig:$PWD/prefix/lib/$HOSTTYPE-linux-gnu/pkgconfig
libraries=$(pkg-config --variable=libdir lockstep)
version=$(pkg-config --modversion lockstep)
[ "$(property "$libraries/liblockstep.so" SONAME)" = "liblockstep.so.${version%.*}" ] || failed "the name in liblockstep.so"
[ -z "$(property "$libraries/liblockstep.so" RUNPATH)$(property "$libraries/liblockstep.so" RPATH)" ] ||
  failed "the installed library names folders of the computer where it was built"
[ "$(readlink "$libraries/liblockstep.so.${version%.*}")" = "liblockstep.so.$version" ] || failed "the links: $(ls -l "$libraries")"
nm -D --defined-only "$libraries/liblockstep.so" >names
[ -s names ] || failed "liblockstep.so exports nothing"
! grep -v 8lockstep names || failed "liblockstep.so exports names of other libraries"

# Without the packages that only the library itself uses.
for package in Boost CUDAToolkit MPI OpenMP PkgConfig ZLIB spdlog; do without+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done
cmake -S "$source/share/example" -B by-cmake -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$PWD/prefix" "${without[@]}" >/dev/null
cmake --build by-cmake --target digits
# shellcheck disable=SC2046  # flags are several words
"$compiler" -O2 $(pkg-config --cflags lockstep) "$source/share/example/digits.cpp" -o digits $(pkg-config --libs lockstep)
for program in digits by-cmake/digits; do
  property "$program" NEEDED | grep -qx "liblockstep.so.${version%.*}" || failed "$program does not load liblockstep.so"
  ! property "$program" NEEDED | grep -E 'boost|dnnl|hdf5|hwloc|mpi|png|spdlog|xxhash' || failed "$program loads these, too"
done

"$LOCKSTEP" prepare csv "$source/share/data/digits.csv.gz" --shape 1,8,8 --out digits.h5
by-cmake/digits digits.h5 by-cmake-run 20
# shellcheck disable=SC2086  # several words
LD_LIBRARY_PATH=$libraries $LOCKSTEP_MPIRUN -n 2 ./digits digits.h5 by-pkg-config-run 20
"$LOCKSTEP" diff by-cmake-run/checkpoints/latest by-pkg-config-run/checkpoints/latest
