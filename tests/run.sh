#!/usr/bin/env bash
# run.sh [--full] [ctest arguments]: installs, builds and runs the quick tests (minutes), or with --full all of them; ends with CTest's
# summary. Arguments go to ctest and choose among these: run.sh -R same_bits, run.sh --full -L slurm. What takes hours: campaign.sh.
set -euo pipefail
# shellcheck source=jobs/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/setup.sh"
cd "$repository"

target=quick_tests suite=(-L quick)
if [ "${1:-}" = --full ]; then
  shift
  target=all suite=() test_packages+=("${full_test_packages[@]}")
fi
install_packages "${build_packages[@]}" "${test_packages[@]}"
LOCKSTEP_CMAKE_FLAGS="-DLOCKSTEP_TESTS=ON ${LOCKSTEP_CMAKE_FLAGS:-}" build_release "$target"
say "Testing"
# Twice as many as there are cores (nproc obeys OMP_NUM_THREADS, which setup.sh sets): what scripts do is mostly waiting, for programs
# to start and for ranks that are to end.
tests=(ctest --test-dir build/release --output-on-failure -j "$(($(env -u OMP_NUM_THREADS nproc) * 2))" "${suite[@]}" "$@")
if [ $# -gt 0 ] && [[ $("${tests[@]}" --show-only) == *"Total Tests: 0"* ]]; then
  if [ "$target" = all ]; then echo "No test matches: $*" >&2; else echo "No quick test matches: $* (with --full: among all tests)" >&2; fi
  exit 1
fi
exec "${tests[@]}"
