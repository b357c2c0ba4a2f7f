#!/usr/bin/env bash
# first_step.sh FILE...: on a Debian that has nothing else, in the folder of these files, installs a wheel into a new virtual environment,
# or packages by apt-get; trains the digits on 2 ranks; says how many seconds there were from the file to the first step.
# `tests/systems.sh SYSTEM --install FILE...` runs it.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
apt-get update -qq
case $1 in
  *.whl)
    apt-get install -y -qq --no-install-recommends python3-venv >/dev/null 2>&1  # what the machine of the user has already
    python3 -m venv environment
    PATH=$PWD/environment/bin:$PATH
    begin=$(date +%s%N)
    pip install --no-index --no-deps "$1"
    jobs=$(lockstep-jobs) data=$(lockstep-jobs)/../share/data mpirun=lockstep-mpirun
    ;;
  *.deb)
    begin=$(date +%s%N)
    apt-get install -y -qq --no-install-recommends "${@/#/./}" >/dev/null 2>&1
    jobs=/usr/share/lockstep/jobs data=/usr/share/lockstep/data mpirun=mpirun
    ;;
  *) echo "first_step.sh: $1 is no wheel and no package" >&2 && exit 2 ;;
esac
lockstep prepare csv "$data/digits.csv.gz" --shape 1,8,8 --out digits.h5
"$jobs/train-mpirun.sh" 2 "$jobs/digits.ini" --run run --set data.train=digits.h5 --set train.steps=1
first=$((($(date +%s%N) - begin) / 100000000))
lockstep doctor
$mpirun -n 2 --oversubscribe --bind-to none lockstep train "$jobs/digits.ini" --run run --set data.train=digits.h5 --set train.steps=600
lockstep eval run/checkpoints/latest --weights model
# shellcheck source=/dev/null
. /etc/os-release
echo "first step after $((first / 10)).$((first % 10)) s: ${1##*/} on $PRETTY_NAME, $(ldd --version | sed -nE '1s/.* ([0-9.]+)$/glibc \1/p')"
