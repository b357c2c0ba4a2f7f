#!/usr/bin/env bash
# deb.sh SCRATCH BUILD CPACK: the packages for Debian have all that they shall install, ask for the packages they need, and lintian finds
# no error in them. Unpacked, the program, its job script, manual and completion work, and other programs find the library.
# Exit code 77: this is no Debian.
# shellcheck source=tests/package/scratch.sh
source "$(dirname "$0")/scratch.sh"
scratch=$1 build=$2 cpack=$3
for tool in dpkg-deb dpkg-shlibdeps file; do
  command -v $tool >/dev/null || { echo "SKIPPED: $tool is not here (Debian: dpkg-dev, file)"; exit 77; }
done

enter_empty "$scratch"
"$cpack" --config "$build/CPackConfig.cmake" -G DEB -B packages -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip \
  -D CPACK_PACKAGE_CONTACT="Test of Lockstep <test@example.org>" >cpack.log 2>&1 || failed "cpack: $(cat cpack.log)"
version=$("$LOCKSTEP" --version | sed -nE '1s/^lockstep ([0-9.]+).*/\1/p')
architecture=$(dpkg --print-architecture)
for package in lockstep liblockstep-dev; do
  [ -f "packages/${package}_${version}_$architecture.deb" ] || failed "no ${package}_${version}_$architecture.deb: $(ls packages)"
done
mkdir root
for package in packages/*.deb; do dpkg-deb -x "$package" root; done

# Every library that the program or liblockstep.so loads is in a package that theirs asks for, or in one of these.
depends=$(for package in packages/*.deb; do dpkg-deb -f "$package" Depends; done | tr ',' '\n' | sed -E 's/^ *([^ ]+).*/\1/' | sort -u)
mapfile -t files < <(find root -type f \( -path '*/bin/*' -o -name '*.so.*' \))
[ ${#files[@]} -gt 0 ] || failed "no program was packed"
for library in $(objdump -p "${files[@]}" | awk '$1 == "NEEDED" { print $2 }' | sort -u); do
  [ -z "$(find root -name "$library")" ] || continue
  # Packages that have it, also for other architectures, and the names that they provide.
  mapfile -t owners < <(dpkg -S "*/$library" | sed -nE '/^diversion/d; s/^([^:]+):.*/\1/p' | sort -u)
  mapfile -t -O "${#owners[@]}" owners < <(dpkg-query -W -f '${Provides}\n' "${owners[@]}" | grep -oE '[a-z0-9][a-z0-9.+-]+')
  grep -qxF "$(printf '%s\n' "${owners[@]}")" <<<"$depends" || failed "$library is in ${owners[*]}; the packages depend on ${depends//$'\n'/ }"
done
grep -qx openmpi-bin <<<"$depends" || failed "no package depends on openmpi-bin, which has mpirun"
if command -v lintian >/dev/null; then
  lintian --fail-on error --tag-display-limit 0 packages/*.deb >lintian.log 2>&1 || failed "lintian: $(cat lintian.log)"
else
  echo "lintian is not here: not asked"
fi

# What was installed works.
usr=$scratch/root/usr
LD_LIBRARY_PATH=$(dirname "$(find "$usr/lib" -name 'liblockstep.*' -print -quit)")
export LD_LIBRARY_PATH PATH=$usr/bin:$PATH
[ "$(command -v lockstep)" = "$usr/bin/lockstep" ] || failed "the program is not in /usr/bin"
lockstep doctor >doctor.log || failed "doctor: $(cat doctor.log)"
lockstep prepare csv "$usr/share/lockstep/data/digits.csv.gz" --shape 1,8,8 --out digits.h5
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 MPIRUN_FLAGS="--bind-to none" \
  "$usr/share/lockstep/jobs/train-mpirun.sh" 2 "$usr/share/lockstep/jobs/digits.ini" --run run --set data.train=digits.h5 \
  --set train.steps=10 >train.log 2>&1 || failed "jobs/train-mpirun.sh: $(cat train.log)"
lockstep verify run/checkpoints/latest
for page in man1/lockstep.1 man5/lockstep.ini.5; do
  zcat "$usr/share/man/$page.gz" | grep -q '^\.TH' || failed "the manual page $page"
done
completed=$(bash -c 'source "$1"; COMP_WORDS=(lockstep doc) COMP_CWORD=1; _lockstep; echo "${COMPREPLY[*]}"' - \
  "$usr/share/bash-completion/completions/lockstep")
[ "$completed" = doctor ] || failed "completion of 'lockstep doc' gives '$completed'"
cmake -S "$usr/share/lockstep/example" -B example -DCMAKE_PREFIX_PATH="$usr" >cmake.log 2>&1 || failed "find_package: $(cat cmake.log)"
rm -rf "$scratch"
