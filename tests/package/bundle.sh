#!/usr/bin/env bash
# bundle.sh SCRATCH COMMAND...: COMMAND makes a bundle in SCRATCH, which is unpacked in a root folder that has glibc, a
# shell and coreutils and nothing else, by a user who is not root, in a folder with a blank in its name. There it trains to the same
# bits as $LOCKSTEP, the program that was built here. Exit code 77: such a root folder cannot be had.
# shellcheck source=tests/package/scratch.sh
source "$(dirname "$0")/scratch.sh"
scratch=$1
shift

enter_empty "$scratch"
"$@"
archive=$(echo "$scratch"/lockstep-*.tar.gz)
name=$(basename "${archive%.tar.gz}")

[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: the bundle was made; to run it in a bare root folder needs root"; exit 77; }
unshare --mount --pid --fork true || { echo "SKIPPED: the bundle was made; mount namespaces are not permitted here"; exit 77; }

# The bare root folder.
bare=$scratch/bare
place="a place"
mkdir -p "$bare"/{bin,usr,proc,sys,dev,tmp} "$bare/$place"
ln -s ../bin "$bare/usr/bin"
chmod 1777 "$bare/tmp" "$bare/$place"
tools=(bash basename cat date dirname env mktemp nproc readlink rm tac tar gzip)
libraries=()
for tool in "${tools[@]}"; do
  cp -L "$(type -P "$tool")" "$bare/bin/"
  mapfile -t -O "${#libraries[@]}" libraries < <(ldd "$(type -P "$tool")" | grep -oE '/[^ ]+')
done
ln -s bash "$bare/bin/sh"
glibc=$(dirname "$(ldd "$(type -P bash)" | sed -nE 's/.* (\/.*\/libc\.so\.6) .*/\1/p')")
for library in "${libraries[@]}" "$glibc"/lib{m,mvec,dl,pthread,rt,resolv,util,anl,nss_files}.so.*; do
  mkdir -p "$bare$(dirname "$library")"
  cp -L "$library" "$bare$library"
done

# What runs in it, as user 4711. A run of few steps, whose bits are compared below.
training=(--set train.steps=60 --set checkpoint.every=60)
cat >"$bare/script" <<'SCRIPT'
set -euo pipefail
cd "/a place"
tar -xzf -
cd lockstep-*
bin/lockstep --version
bin/lockstep doctor
bin/lockstep prepare csv share/data/digits.csv.gz --shape 1,8,8 --out /tmp/digits.h5
jobs/train-mpirun.sh 2 jobs/digits.ini --run /tmp/run --set data.train=/tmp/digits.h5 "$@"
bin/lockstep verify /tmp/run/checkpoints/latest
[ "$(LD_LIBRARY_PATH=/mine bin/mpirun -n 1 bash -c 'echo "$LD_LIBRARY_PATH"')" = /mine ] ||
  { echo "FAILED: what mpirun starts finds another LD_LIBRARY_PATH"; exit 1; }
SCRIPT
# shellcheck disable=SC2016  # expanded by the inner shell
unshare --mount --pid --fork --mount-proc="$bare/proc" bash -c '
  mount --rbind /sys "$1/sys"
  mount -t tmpfs none "$1/dev"
  for device in null zero urandom; do touch "$1/dev/$device"; mount --bind "/dev/$device" "$1/dev/$device"; done
  mkdir -m 1777 "$1/dev/shm"
  shift
  exec "$@"' - "$bare" env -i PATH=/bin HOME=/tmp OMPI_MCA_rmaps_base_oversubscribe=1 MPIRUN_FLAGS="--bind-to none" \
  "$(type -P chroot)" --userspec=4711:4711 "$bare" /bin/bash /script "${training[@]}" <"$archive" ||
  failed "in the bare root folder: exit $?"

# The same steps by the program that was built.
# shellcheck disable=SC2086  # several words
$LOCKSTEP_MPIRUN -n 2 "$LOCKSTEP" train "$bare/$place/$name/jobs/digits.ini" --set data.train="$bare/tmp/digits.h5" "${training[@]}" \
  --run "$scratch/run" >"$scratch/run.log" || failed "training here: $(tail -n 3 "$scratch/run.log")"
"$LOCKSTEP" diff "$bare/tmp/run/checkpoints/latest" "$scratch/run/checkpoints/latest"

# Its tests, without CTest.
bash "$bare/$place/$name/tests/gpu.sh" --match '^comm\.np2$' --report "$scratch/report.json"
grep -q '"passed": 1' "$scratch/report.json" || failed "gpu.sh: $(cat "$scratch/report.json")"
rm -rf "$scratch"
