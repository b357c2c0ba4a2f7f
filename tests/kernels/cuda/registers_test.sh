#!/usr/bin/env bash
# registers_test.sh PYTHON NVCC: registers.py finds a kernel that keeps an array in local memory, by its name, and one that does not
# passes; a table that allows it, which it wrote itself, does, too.
set -uo pipefail
script=$(cd "$(dirname "$0")" && pwd)/registers.py
scratch=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
mkdir src
failures=0
fail() {
  echo "FAILED: $*: $(cat log)"
  failures=1
}
# build BODY: of a folder with one kernel
build() {
  printf '%s\n' 'namespace house { namespace {' 'template <class T> __global__ void __launch_bounds__(128) move(int at, T* to) {' "$1" '} }' \
    'void all(float* to) { move<<<1, 128>>>(3, to); } }' >src/one.cu
  printf '[{"directory": "%s", "command": "%s -O3 -o x.o -c %s", "file": "%s"}]' "$PWD" "$nvcc" "$PWD/src/one.cu" "$PWD/src/one.cu" \
    >compile_commands.json
}
python=$1 nvcc=$2

build 'to[threadIdx.x] = at;'
"$python" "$script" . table.md --write >log 2>&1 || fail "a table"
# shellcheck disable=SC2016  # Markdown
grep -q '^| `one.move` | 1 | [0-9]* | 0 | 0 | 0 | 128 | 100 % |$' table.md || fail "the row of a kernel: $(cat table.md)"
"$python" "$script" . table.md >log 2>&1 || fail "a kernel as its table says"

build 'T kept[64] = {}; for (int i = 0; i < 64; ++i) kept[int(to[i]) & 63] += to[i + 64]; to[threadIdx.x] = kept[int(to[0]) & 63];'
"$python" "$script" . table.md >log 2>&1 && fail "local memory passes"
grep -q '^one.move: 256 local bytes, where table.md has 0' log || fail "local memory is not named"
"$python" "$script" . table.md --write >log 2>&1 || fail "a table with local memory"
"$python" "$script" . table.md >log 2>&1 || fail "a table that allows it"
exit $failures
