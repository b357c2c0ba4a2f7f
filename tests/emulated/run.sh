#!/usr/bin/env bash
# Runs tests of a build folder on an emulated processor, one that this machine need not have (README.md beside this file).
#
# run.sh [--cpu MODEL] [--features NAMES] [--memory MB] [--minutes N] [--env NAME=VALUE]... [--with PATH]... BUILD COMMAND...
#
#   --cpu      a model of the emulator (bochs -help cpu); corei7_skylake_x unless told
#   --features what the model gets besides its own (bochs -help features), or with a minus loses: "amx amx_int8 amx_bf16 -avx512vnni"
#   --memory   of the emulated machine; 2048 MB unless told
#   --minutes  after which a machine that is still running is stopped; 120 unless told
#   --env      set for every command: --env DNNL_VERBOSE=1
#   --with     a file or folder of the sources that commands read, besides tests/golden: they find it as $LOCKSTEP_SOURCE_DIR/PATH
#   BUILD      a build folder, whose programs are dynamically linked as usual
#   COMMAND    one command line each, its first word a test or a program of BUILD: 'kernels --run_test=matmul', 'lockstep version'
#
# $BOCHS is the emulator, bochs unless set. Packages are unpacked below BUILD/emulated, nothing is installed.
# Exit code 0: every command ended with 0; 1: some did not, or the machine stopped early; 2: cannot run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$(cd "$here/../.." && pwd)

die() {
  echo "run.sh: $*" >&2
  exit 2
}

cpu=corei7_skylake_x features='' memory=2048 minutes=120 environment=() with=(tests/golden)
while [[ ${1:-} == --* ]]; do
  [ $# -ge 2 ] || die "$1 needs a value"
  case $1 in
    --cpu) cpu=$2 ;;
    --features) features+=" $2" ;;
    --memory) memory=$2 ;;
    --minutes) minutes=$2 ;;
    --env) environment+=("$2") ;;
    --with) with+=("$2") ;;
    *) die "unknown option $1 (the first lines of $0 name all)" ;;
  esac
  shift 2
done
[ $# -ge 2 ] || die "needs a build folder and at least one command (the first lines of $0 show how)"
build=$(cd "$1" && pwd)
shift

bochs=$(command -v "${BOCHS:-bochs}") || die "no emulator '${BOCHS:-bochs}': apt install bochs bochs-term, or set BOCHS"
packages=$build/emulated/packages image=$build/emulated/image
rm -rf "$image"
mkdir -p "$packages" "$image"/{root,disc}

# A kernel with few drivers, a shell, a boot loader, the BIOS: unpacked once.
unpack() {
  [ -e "$packages/$1.done" ] && return
  echo "run.sh: unpacking $1"
  (cd "$packages" && rm -f "${1}"_*.deb && apt-get -qq -o APT::Sandbox::User=root download "$1" &&
    dpkg -x "${1}"_*.deb . && touch "$1.done") || die "cannot download the Debian package $1 (apt-get update?)"
}
for package in busybox-static isolinux syslinux-common genisoimage bochsbios vgabios; do unpack "$package"; done
if ! ls "$packages"/boot/vmlinuz-* &>/dev/null; then
  unpack "$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -1)"
fi

# A program with its libraries, where its loader looks for them.
install_program() {
  local library
  install -D "$1" "$image/root/bin/$2"
  for library in $(ldd "$1" | grep -o '/[^ ]*'); do
    [ -e "$image/root$library" ] || install -D "$library" "$image/root$library"
  done
}

program_of() {
  local found
  found=$(find "$build/bin" "$build/tests" -type f -perm -u+x \( -name "test.$1" -o -name "$1" \) -print -quit)
  [ -n "$found" ] || die "no program $1 or test.$1 in $build: build it first"
  echo "$found"
}

install -D "$packages/bin/busybox" "$image/root/bin/busybox"
ln -s busybox "$image/root/bin/sh"
install "$here/init.sh" "$image/root/init"
printf '%s\n' "$@" >"$image/root/commands"
printf 'export %q\n' LOCKSTEP_SOURCE_DIR=/source "${environment[@]}" >"$image/root/environment"
for command in "$@"; do
  name=${command%% *}
  program=$(program_of "$name")
  [ -e "$image/root/bin/$name" ] || install_program "$program" "$name"
done
for path in "${with[@]}"; do
  mkdir -p "$image/root/source/$(dirname "$path")"
  cp -r "$sources/$path" "$image/root/source/$path"
done

(cd "$image/root" && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) >"$image/disc/initrd"
cp "$packages"/boot/vmlinuz-* "$image/disc/linux"
cp "$packages/usr/lib/ISOLINUX/isolinux.bin" "$packages/usr/lib/syslinux/modules/bios/ldlinux.c32" "$image/disc"
# Without fsrm: Bochs has no IA32_MISC_ENABLE, so Linux takes fast strings for switched off and drops erms. Its memmove() then relies on
# fsrm alone and runs over all memory on its first few bytes.
cat >"$image/disc/isolinux.cfg" <<END
default linux
label linux
kernel linux
append initrd=initrd rdinit=/init console=ttyS0 quiet loglevel=2 panic=-1 mitigations=off nokaslr nowatchdog clearcpuid=fsrm random.trust_cpu=on
END
"$packages/usr/bin/genisoimage" -quiet -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table \
  -o "$image/boot.iso" "$image/disc"

# Bochs panics when its system management mode ends under five-level paging, and gives programs AMX only with bochs-3.0.patch.
[ "$cpu" != sapphire_rapids ] || features="-la57 -amx -amx_int8 -amx_bf16$features"
declare -A change=()  # the last word on a feature counts
for feature in $features; do
  if [[ $feature == -* ]]; then change[${feature#-}]=exclude; else change[$feature]=add; fi
done
model=$cpu
for word in add exclude; do
  names=$(for feature in "${!change[@]}"; do if [ "${change[$feature]}" = $word ]; then echo "$feature"; fi; done | sort | xargs)
  [ -z "$names" ] || model+=", ${word}_features=\"$names\""
done

cat >"$image/bochsrc" <<END
cpu: model=$model, count=1, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1
memory: guest=$memory, host=$memory
romimage: file=$packages/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=$packages/usr/share/vgabios/vgabios.bin
display_library: ${BOCHS_DISPLAY:-rfb, options="timeout=0"}
ata0-master: type=cdrom, path=$image/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$image/serial
clock: sync=none
log: $image/bochs.log
panic: action=fatal
error: action=ignore
END

echo "run.sh: starting the emulated machine ($model); its console is $image/serial, the emulator's log $image/bochs.log"
touch "$image/serial"
timeout "${minutes}m" "$bochs" -q -f "$image/bochsrc" <<<$'continue\nquit' >"$image/bochs.out" 2>&1 &
machine=$!
trap 'kill "$machine" 2>/dev/null || true' EXIT

ended=0 failed=0 off=no begin=$SECONDS
while IFS= read -r line; do
  case $line in
    "@start "*) begin=$SECONDS && echo "== ${line#@start }" ;;
    "@end "*)
      read -r _ code command <<<"$line"
      ended=$((ended + 1))
      [ "$code" = 0 ] || failed=$((failed + 1))
      echo "== exit code $code after $((SECONDS - begin)) s: $command"
      ;;
    "@off") off=yes && break ;;
    "@"*) echo "run.sh: ${line#@}" ;;
    *) printf '%s\n' "$line" ;;
  esac
done < <(tail -n +1 -f --pid="$machine" "$image/serial" | sed -u "s/\r$//")
if [ $off = no ]; then
  tail -n 5 "$image/bochs.out" >&2
  echo "run.sh: the machine stopped or was stopped after $ended of $# commands; see $image/bochs.log and bochs.out" >&2
  exit 1
fi
echo "run.sh: $ended commands on $cpu, $failed failed"
[ $failed = 0 ]
