#!/usr/bin/env bash
# Installs, builds and runs every test; ends with CTest's summary. Arguments go to ctest (e.g. -R golden).
set -euo pipefail
# shellcheck source=jobs/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/setup.sh"
cd "$repository"

install_packages "${build_packages[@]}" "${test_packages[@]}"
LOCKSTEP_CMAKE_FLAGS="-DLOCKSTEP_TESTS=ON ${LOCKSTEP_CMAKE_FLAGS:-}" build_release all
say "Testing"
exec ctest --test-dir build/release --output-on-failure "$@"
