#!/usr/bin/env bash
# container.sh SCRATCH [SUITE]: podman builds the image of packaging/Containerfile and trains in it on 2 ranks, as a user that the image does
# not know. The Debian that it is built on comes from debootstrap (SUITE: trixie), not from a registry. Root, debootstrap and podman;
# tests/campaign.sh container runs it. Its images are in SCRATCH, and go with it.
# shellcheck source=tests/package/scratch.sh
source "$(dirname "$0")/scratch.sh"
scratch=$1 suite=${2:-trixie}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
say() { printf '\n== %s\n' "$*"; }

rm -rf --one-file-system "$scratch"
mkdir -p "$scratch/debian" "$scratch/work"
cd "$scratch"
# Where this machine is a container itself, limits cannot be raised, crun may refuse its cgroups, and a build is to do with chroot.
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
podman=(podman --root "$scratch/images" --runroot "$scratch/state" --runtime runc)
trap '"${podman[@]}" unmount --all >/dev/null 2>&1 || true; umount "$scratch/images/overlay" 2>/dev/null || true' EXIT

say "The base image: $suite"
debootstrap --variant=minbase "$suite" debian "${LOCKSTEP_MIRROR:-http://deb.debian.org/debian}" >debootstrap.log 2>&1 ||
  failed "debootstrap: $(tail -n 3 debootstrap.log)"
tar -C debian -cf - . | "${podman[@]}" import - localhost/debian:base

say "The image"
begin=$SECONDS
"${podman[@]}" build --isolation chroot --build-arg DEBIAN=localhost/debian:base -f "$repository/packaging/Containerfile" -t lockstep "$repository"
build_s=$((SECONDS - begin))

# in_container ARGUMENT...: as the Containerfile says, with a user whom only this machine knows.
in_container() {
  "${podman[@]}" run --rm "${limits[@]}" --shm-size=1g --user 4711:4711 -v "$scratch/work":/work -w /work "$@"
}
chown 4711:4711 work
say "podman run lockstep doctor"
# Its check of shared memory wants more than the 64 MB that containers have by default.
"${podman[@]}" run --rm "${limits[@]}" --shm-size=1g lockstep doctor || failed "doctor: exit $?"
say "podman run lockstep: 2 ranks train"
in_container lockstep prepare csv /usr/share/lockstep/data/digits.csv.gz --shape 1,8,8 --out digits.h5
in_container --entrypoint mpirun lockstep -n 2 --oversubscribe lockstep train /usr/share/lockstep/jobs/digits.ini --run run \
  --set data.train=digits.h5
in_container lockstep eval run/checkpoints/latest --weights model
in_container lockstep verify run/checkpoints/latest
echo "figures: built in $build_s s, $("${podman[@]}" images --format '{{.Size}}' lockstep), on $suite"
