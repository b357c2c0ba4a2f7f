#!/usr/bin/env bash
# systems.sh SYSTEM [--full] [--bare] [--cxx COMPILER] [ctest arguments]: both commands of the README, jobs/quickstart.sh and tests/run.sh,
# on another system: a tree made by debootstrap, with mounts and processes of its own. Needs root on Debian or Ubuntu.
#   debian12, debian13   these releases               testing   Debian's next release as it is today
#   mpich, mpich12       Debian 13 or 12, with MPICH  arm64     Debian 13 for Arm: a cross compiler builds, qemu-user tests
# --full: every test, not the quick ones only. --bare: in a new tree, not in the one of the last run. --cxx COMPILER: another compiler,
# installed as the package of its name (clang++-19). --shell: a shell there. --install FILE...: nothing is built. A wheel or Debian packages
# are installed in a new tree, NAME-bare, and train there (tests/package/first_step.sh): how many seconds does that take? Trees and logs
# are in $LOCKSTEP_SYSTEMS. $LOCKSTEP_CCACHE: a folder for ccache that trees share.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trees=${LOCKSTEP_SYSTEMS:-/var/tmp/lockstep-systems}
mirror=${LOCKSTEP_MIRROR:-http://deb.debian.org/debian}

refuse() { echo "systems.sh: $*" >&2 && exit 2; }
say() { printf '\n== %s: %s\n' "$system" "$*"; }

system=${1:-} architecture=amd64
case $system in
  debian12 | mpich12) release=bookworm ;;
  debian13 | mpich) release=trixie ;;
  testing) release=testing ;;
  arm64) release=trixie architecture=arm64 ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
shift
suite=() not_emulated=() bare='' compiler='' shell='' install=''
while [ $# -gt 0 ]; do
  case $1 in
    --full) suite=(--full) ;;
    --bare) bare=yes ;;
    --shell) shell=yes ;;
    --install) install=yes && shift && break ;;
    --cxx) compiler=${2:?--cxx needs a compiler} && shift ;;
    *) break ;;
  esac
  shift
done
[ "$(id -u)" -eq 0 ] || refuse "making another system needs root"

# host_package COMMAND PACKAGE
host_package() { command -v "$1" >/dev/null || apt-get install -y -qq --no-install-recommends "$2" >/dev/null; }

# make_tree NAME RELEASE ARCHITECTURE
make_tree() {
  [ ! -e "$trees/$1/complete" ] || return 0
  say "Making $trees/$1 ($2, $3)"
  host_package debootstrap debootstrap
  rm -rf --one-file-system "${trees:?}/$1"
  mkdir -p "$trees/$1"
  debootstrap --arch="$3" --variant=minbase --include=ca-certificates "$2" "$trees/$1" "$mirror" >"$trees/$1.log" 2>&1 ||
    refuse "debootstrap failed; see $trees/$1.log"
  touch "$trees/$1/complete"
}

# inside TREE [NAME=VALUE...] COMMAND...: runs it there, in /root/lockstep. What it mounts and starts ends with it.
inside() {
  local tree=$trees/$1
  shift
  mkdir -p "$tree/root/lockstep"
  cp -L /etc/resolv.conf /etc/hosts "$tree/etc/"
  # A mirror may be older than the week for which the lists of `testing` are valid.
  echo 'Acquire::Check-Valid-Until "false";' >"$tree/etc/apt/apt.conf.d/99mirror"
  # shellcheck disable=SC2016  # the inner shell expands
  unshare --mount --propagation private --pid --fork --kill-child bash -euc '
    tree=$1 tools=$2
    shift 2
    mount -t proc proc "$tree/proc"
    mount --rbind /sys "$tree/sys"
    mount --rbind /dev "$tree/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$tree/dev/shm"
    if [ -n "${LOCKSTEP_CCACHE:-}" ]; then
      mkdir -p "$tree/root/.cache/ccache"
      mount --bind "$LOCKSTEP_CCACHE" "$tree/root/.cache/ccache"
    fi
    if [ -n "$tools" ]; then  # programs of this processor run as they do at home: their loader and libraries are where they look
      mkdir -p "$tree/native" "$tree/lib64" "$tree/usr/lib/x86_64-linux-gnu"
      mount --bind "$tools" "$tree/native"
      mount --bind "$tools/usr/lib64" "$tree/lib64"
      mount --bind "$tools/usr/lib/x86_64-linux-gnu" "$tree/usr/lib/x86_64-linux-gnu"
      # oneDNN for Arm asks the kernel which processor it is on, and complains of an answer that there is on Arm only: of a Neoverse N1.
      cpus=$tree/sys/devices/system/cpu identification=$tree/mnt/upper/cpu0/regs/identification
      mount -t tmpfs tmpfs "$tree/mnt"
      mkdir -p "$identification" "$tree/mnt/work"
      echo 0x00000000413fd0c0 >"$identification/midr_el1"
      mount -t overlay -o "lowerdir=$cpus,upperdir=$tree/mnt/upper,workdir=$tree/mnt/work" overlay "$cpus"
    fi
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb CI="${CI:-}" \
      chroot "$tree" /usr/bin/env --chdir=/root/lockstep "$@"' - "$tree" "$tools" "$@"
}

# copy_sources TREE: what git knows or would add; build and runs of an earlier time stay.
copy_sources() {
  local target=$trees/$1/root/lockstep
  mkdir -p "$target"
  find "$target" -mindepth 1 -maxdepth 1 ! -name build ! -name runs -exec rm -rf {} +
  (cd "$repository" && git ls-files -z --cached --others --exclude-standard --deduplicate | tar --null --ignore-failed-read -cf - -T -) |
    tar -xf - --no-same-owner -C "$target"
}

if [ -n "$install" ]; then
  [ $# -gt 0 ] || refuse "--install needs a wheel or packages"
  bare=yes system+=-bare
fi
[ -z "$bare" ] || rm -rf --one-file-system "${trees:?}/$system"
tools='' settings=()
if [ "$architecture" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
  make_tree native "$release" amd64
  inside native bash -c 'dpkg -s qemu-user g++-aarch64-linux-gnu ccache >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user g++-aarch64-linux-gnu ccache >/dev/null; }' 2>/dev/null
  mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  # F: the kernel opens the emulator now, and it serves in trees that do not have it.
  [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] ||
    printf ':qemu-aarch64:M::\\x7fELF\\x02\\x01\\x01%s\\x02\\x00\\xb7\\x00:%s\\x00%s\\xfe\\xff\\xff\\xff:%s:F' \
      "$(printf '\\x00%.0s' {1..9})" "$(printf '\\xff%.0s' {1..7})" "$(printf '\\xff%.0s' {1..8})" \
      "$trees/native/usr/bin/qemu-aarch64" >/proc/sys/fs/binfmt_misc/register
  settings+=(CC=/native/usr/bin/aarch64-linux-gnu-gcc CXX=/native/usr/bin/aarch64-linux-gnu-g++ QEMU_CPU="${QEMU_CPU:-neoverse-n1}")
  LOCKSTEP_CMAKE_FLAGS="-DLOCKSTEP_TEST_TIME_FACTOR=20 ${LOCKSTEP_CMAKE_FLAGS:-}"
  # What the emulator lacks: it tells a process when that started, and other processes see another time, so that who holds a run's
  # directory seems to be dead (cli.status, and one check of cli.dry_run).
  not_emulated=(-E '^cli\.(status|dry_run)$')
fi
make_tree "$system" "$release" "$architecture"
if [ "${#settings[@]}" -gt 0 ]; then
  tools=$trees/native
  ln -sfn /native/usr/aarch64-linux-gnu "$trees/$system/usr/aarch64-linux-gnu" # where the cross compiler's C library says that it is
fi
if [ -n "$install" ]; then
  mkdir -p "$trees/$system/root/lockstep"
  cp "$@" "$repository/tests/package/first_step.sh" "$trees/$system/root/lockstep"
  inside "$system" bash first_step.sh "${@##*/}"
  exit
fi
case $system in mpich*) settings+=(LOCKSTEP_MPI=mpich) ;; esac
copy_sources "$system"
if [ -n "$compiler" ]; then
  case $compiler in
    clang++*) c_compiler=${compiler/++/} package=${compiler/++/} omp=libomp${compiler#clang++}-dev ;;
    *) c_compiler=${compiler/g++/gcc} package=$compiler omp='' ;;
  esac
  settings+=("CXX=$compiler" "CC=$c_compiler")
  # shellcheck disable=SC2086  # nothing, or a name
  inside "$system" bash -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $package $omp >/dev/null"
fi
# A build folder keeps its compiler, whatever it is told later.
built_by=$trees/$system/root/lockstep/build/release/CMakeCache.txt
[ "$architecture" != amd64 ] || grep -qs "^CMAKE_CXX_COMPILER:.*/${compiler:-c++}$" "$built_by" || rm -rf "${built_by%/*}"
if [ -n "${LOCKSTEP_CCACHE:-}" ]; then
  inside "$system" bash -c 'command -v ccache /native/usr/bin/ccache >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends ccache >/dev/null; }'
  LOCKSTEP_CMAKE_FLAGS="-DCMAKE_CXX_COMPILER_LAUNCHER=${tools:+/native/usr/bin/}ccache ${LOCKSTEP_CMAKE_FLAGS:-}"
fi
if [ -n "$shell" ]; then
  inside "$system" "${settings[@]}" bash -i
  exit
fi

log=$trees/$system.txt
: >"$log"
begin=$SECONDS
# LOCKSTEP_WERROR: no library and no compiler of these systems gives a warning.
settings+=("LOCKSTEP_CMAKE_FLAGS=-DLOCKSTEP_WERROR=$([ "$system" = testing ] && echo OFF || echo ON) ${LOCKSTEP_CMAKE_FLAGS:-}")
quickstart_s=0
if [ -z "$tools" ]; then  # an emulated processor would take an hour to train
  say "bash jobs/quickstart.sh"
  inside "$system" "${settings[@]}" bash jobs/quickstart.sh 2>&1 | tee -a "$log"
  quickstart_s=$((SECONDS - begin))
fi
begin=$SECONDS
say "bash tests/run.sh ${suite[*]} ${not_emulated[*]} $*"
status=0
inside "$system" "${settings[@]}" bash tests/run.sh "${suite[@]}" "${not_emulated[@]}" "$@" 2>&1 | tee -a "$log" || status=$?
# shellcheck disable=SC2016  # the shell there expands
say "$(inside "$system" bash -c '. /etc/os-release; echo "$PRETTY_NAME, $(uname -m)"')"
say "quickstart $quickstart_s s, tests $((SECONDS - begin)) s"
grep -E 'tests passed|tests failed' "$log" || true
exit "$status"
