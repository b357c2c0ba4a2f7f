# For scripts that compare with PyTorch (sourced): the programs, and how ranks are started.
# shellcheck shell=bash
# Sets: lockstep, mpirun (array), python (array: peer -> interpreter), scratch (removed at the end). The peers:
#   newest   PyTorch from PyPI, installed into build/peers on first use (about 5 GB: PyPI has the CUDA build only, which runs on
#            CPUs as well; LOCKSTEP_PEER_VENV names another virtual environment, LOCKSTEP_PEER_INSTALL=no forbids installing)
#   debian   /usr/bin/python3 with python3-torch and python3-h5py, unless it would compute with the reference BLAS
# LOCKSTEP names the program (default: build/release/bin/lockstep).
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$folder/../../.." && pwd)
lockstep=${LOCKSTEP:-$repository/build/release/bin/lockstep}
venv=${LOCKSTEP_PEER_VENV:-$repository/build/peers}

say() { echo "$(basename "$0"): $*" >&2; }
[ -x "$lockstep" ] || { say "no program at $lockstep: build it, or set LOCKSTEP"; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
mpirun=(mpirun --oversubscribe --bind-to none)

version_of() { "$1" "$folder/ddp.py" --version 2>/dev/null; }

install_newest() {
  [ -z "$(version_of "$venv/bin/python")" ] || return 0
  [ "${LOCKSTEP_PEER_INSTALL:-yes}" = yes ] || return 0
  local free_gb
  free_gb=$(($(df --output=avail -k "$repository" | tail -n 1) / 1000000))
  [ "$free_gb" -ge 15 ] || { say "newest: not installed, it takes 15 GB of disk on the way and $free_gb are free"; return 0; }
  say "newest: installing PyTorch from PyPI into $venv"
  { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --no-cache-dir torch numpy h5py; } >"$scratch/pip.log" 2>&1 ||
    say "newest: not installed: $(tail -n 1 "$scratch/pip.log")"
}

# Debian's PyTorch calls whichever libblas.so.3 is installed; with the reference one it is ten times slower than it need be.
slow_blas() {
  /usr/bin/python3 -c 'import torch, re
for line in open("/proc/self/maps"):
    if re.search("/blas/libblas.so", line): print(line.split()[-1]); break' 2>/dev/null
}

declare -A python=()
find_pytorch() {
  install_newest
  if [ -n "$(version_of "$venv/bin/python")" ]; then python[newest]=$venv/bin/python; fi
  if [ -z "$(version_of /usr/bin/python3)" ]; then
    say "debian: /usr/bin/python3 has no torch and h5py (packages python3-torch, python3-h5py)"
  elif [ -n "$(slow_blas)" ]; then
    say "debian: left out, it computes with the reference BLAS, $(slow_blas) (package libopenblas0-pthread)"
  else
    python[debian]=/usr/bin/python3
  fi
  [ ${#python[@]} -gt 0 ] || { say "no PyTorch here: nothing to compare with"; exit 77; }
}

say_versions() {
  echo "$("$lockstep" --version), $("${mpirun[0]}" --version | head -n 1), $(getconf _NPROCESSORS_ONLN) cores: $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
  for who in "${!python[@]}"; do echo "$who: PyTorch $(version_of "${python[$who]}")"; done
}

# take_turns ROUNDS RANKS SUBJECT [ARGUMENTS...]: `lockstep bench SUBJECT --json` and each peer's SUBJECT.py, with the same arguments;
# a line "WHO JSON" for each into $scratch/times.
take_turns() {
  local rounds=$1 ranks=$2 subject=$3 round who command
  shift 3
  for round in $(seq "$rounds"); do
    for who in ours "${!python[@]}"; do
      say "round $round of $rounds: $who"
      command=("$lockstep" bench "$subject" --json)
      [ "$who" = ours ] || command=("${python[$who]}" "$folder/$subject.py")
      "${mpirun[@]}" -n "$ranks" "${command[@]}" "$@" 2>"$scratch/error" >"$scratch/figures" ||
        { say "$who: $(tail -n 3 "$scratch/error")"; exit 1; }
      echo "$who $(tr -d '\n' <"$scratch/figures")" >>"$scratch/times"
    done
  done
}
