# Shared by jobs/quickstart.sh and tests/run.sh (sourced, from anywhere): packages, build, and what the MPI wants.
# shellcheck shell=bash

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# shellcheck disable=SC2034  # used by those who source this
build_packages=(g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhwloc-dev libhdf5-dev
  hdf5-tools libdnnl-dev libboost-program-options-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev
  zlib1g-dev libpng-dev libjpeg-dev libpcre2-dev libutf8proc-dev libeigen3-dev)
[ "$(uname -m)" = x86_64 ] || build_packages+=(libopenblas-openmp-dev)
# LOCKSTEP_MPI=mpich (or openmpi): that MPI; else the one of the compiler wrapper mpicc, if there is one.
case ${LOCKSTEP_MPI:-} in
  '' | mpich | openmpi) ;;
  *) echo "LOCKSTEP_MPI=$LOCKSTEP_MPI: must be mpich or openmpi" >&2 && exit 2 ;;
esac
if [[ ${LOCKSTEP_MPI:-$(mpicc -show 2>/dev/null)} == *mpich* ]]; then
  build_packages=("${build_packages[@]/libopenmpi-dev/libmpich-dev}")
  build_packages=("${build_packages[@]/openmpi-bin/mpich}")
fi
# shellcheck disable=SC2034
test_packages=(libboost-test-dev libboost-context-dev python3-h5py procps) # the quick suite
# shellcheck disable=SC2034
full_test_packages=(python3-venv iproute2 slurm-wlm munge shellcheck lintian mkdocs mkdocs-material doxygen chromium)

say() { printf '\n== %s\n' "$*"; }

# install_packages PACKAGE...: installs what is missing; without root says what is missing and ends with 2.
install_packages() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "These packages are missing, and installing them needs root: ${missing[*]}" >&2
      echo "Ask for: apt-get install ${missing[*]}    (or see INSTALL: without root)" >&2
      exit 2
    fi
    as_root=(sudo)
  fi
  say "Installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# shellcheck source=jobs/mpi.sh
source "$repository/jobs/mpi.sh"
export "${mpi_settings[@]}"
# Threads are set by the program, never found in the environment.
export OMP_NUM_THREADS=1

# leave_out_gpu_code_without_gpu: where nvcc is there and no GPU is, GPU code would take long to build and could not run.
leave_out_gpu_code_without_gpu() {
  [[ ${LOCKSTEP_CMAKE_FLAGS:-} != *LOCKSTEP_CUDA* ]] || return 0
  command -v "${CUDACXX:-nvcc}" >/dev/null || return 0
  ! compgen -G '/dev/nvidia[0-9]*' >/dev/null || return 0
  ! nvidia-smi -L 2>/dev/null | grep -q '^GPU' || return 0
  echo "nvcc is here and no GPU: GPU code is left out; LOCKSTEP_CMAKE_FLAGS=-DLOCKSTEP_CUDA=ON before the command builds it"
  export LOCKSTEP_CMAKE_FLAGS="${LOCKSTEP_CMAKE_FLAGS:-} -DLOCKSTEP_CUDA=OFF"
}

# say_build_time: of a first build without GPU code, by what it takes on one core.
say_build_time() {
  local cores minutes
  [ ! -e "$repository/build/release/bin/lockstep" ] || return 0
  cores=$(env -u OMP_NUM_THREADS nproc)
  minutes=$(((8 + cores - 1) / cores))
  echo "The build takes about $minutes minute$([ "$minutes" -eq 1 ] || echo s) on $cores core$([ "$cores" -eq 1 ] || echo s)."
}

# build_release TARGET...: configures and builds build/release; extra CMake settings in LOCKSTEP_CMAKE_FLAGS.
build_release() {
  if [ -n "${LOCKSTEP_MPI:-}" ] && [[ $(mpicc -show 2>&1) != *"$LOCKSTEP_MPI"* ]]; then
    echo "LOCKSTEP_MPI=$LOCKSTEP_MPI, but mpicc is of another MPI: update-alternatives --config mpi and --config mpirun choose one" >&2
    exit 2
  fi
  say "Building (build/release)"
  mkdir -p "$repository/build"
  # shellcheck disable=SC2086  # several flags
  cmake --preset release -S "$repository" ${LOCKSTEP_CMAKE_FLAGS:-} >"$repository/build/configure.log" 2>&1 ||
    { cat "$repository/build/configure.log" >&2; exit 1; }
  cmake --build "$repository/build/release" --target "$@"
}
