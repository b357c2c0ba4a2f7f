#!/usr/bin/env bash
# campaign.sh [NAME [ARGUMENT...]]: what takes longer than tests/run.sh --full, by hand; without a name, the list. A campaign installs and
# builds what it needs, ends with one line of figures, and its exit code says whether all held. Its log is build/campaign-NAME.log.
set -euo pipefail
# shellcheck source=jobs/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/setup.sh"
list() {
  cat <<'LIST'
campaigns:
  kills [N]           SIGKILL of a rank or of mpirun, N (200) times at random moments, also while a save goes on beside training
  faults [REGEX]      every point of a save: SIGKILL, calls that fail, the order of calls; also asynchronous
  hangs [stop|end]    every rank of 2 and of 4 stopped, stuck or killed in every phase
  live_readers [N]    every verb N (1000) times beside a run that saves without a pause
  mutations [N]       N (10000) damaged checkpoint files of each kind: read right or refused; another seed each time (LOCKSTEP_TEST_SEED)
  pytorch_files [N]   N (5000) damaged files of torch.save, address sanitizer: read right or refused; another seed each time
  pictures [N]        N (20000) pictures of every kind that Pillow writes: the same bits from a folder and a packed file, killed and resumed
  sanitizers [PRESET] asan: all but slurm and faults; tsan: comm, ddp, checkpoint, data. Each source of the library is compiled alone
  fuzz [SECONDS]      each target of tests/fuzz, for so long (600)
  peers               steps, sums and checkpoints beside PyTorch's, whose steps are checked first (tests/bench/peers)
  torchvision [MODEL] resnet18, resnet50 and vit_b_16 with random weights: our predictions beside torchvision's; weights there and back
  table               a table from CSV to predictions beside pandas, scikit-learn and PyTorch: what is learned, from which rows, and r2
  two_hosts           how much communication shows between two made-up hosts, 1 Gbit/s apart (root)
  emulated_gpu        the emulated GPU: more ranks and seeds, large sizes; ddp over NCCL's transport on 1 to 3 ranks (nvcc, CUDA's headers)
  counts [WORKLOAD]   what a step launches and moves on a GPU, counted by the emulated one: gpt-gpu and unet-gpu, in 1 shard and in 8
  races               all cases of the emulated GPU, alone and on 1 to 3 ranks, with a check for races between blocks
  attention_plans     what Lockstep sends to cuDNN's attention, on five described kinds of GPU: each has a plan (nvcc, cuDNN; half an hour)
  bundle              the bundle with every test program, where nothing is installed
  container [SUITE]   the container image, on a Debian from debootstrap (trixie): built, and trains on 2 ranks (root)
LIST
}
name=${1:-}
cd "$repository"
mkdir -p build
log=$repository/build/campaign-$name.log failed=0
export LOCKSTEP_SOURCE_DIR=$repository

# needed COMMAND...: what it prints goes to the log, too. The campaign, or this part of it, ends where it fails.
needed() {
  "$@" 2>&1 | tee -a "$log" || { failed=1; return 1; }
}
# tracked COMMAND...: the same, but that the campaign goes on.
tracked() {
  needed "$@" || true
}
# figure TEXT...: of the last line.
figure() {
  echo "figures: $*" >>"$log"
}
# tested WHAT ARGUMENT...: CTest. For it those that cannot run here have passed, so the figure says how many they are.
tested() {
  local before
  before=$(wc -l <"$log")
  tracked ctest "${@:2}"
  figure "${1:+$1: }$(tail -n "+$((before + 1))" "$log" | awk '
    /tests passed, .* out of/ { passed = $0 }
    /^\t *[0-9]+ - .*\(Skipped\)$/ { ++skipped }
    END { print (passed == "" ? "no test ran" : passed) ", " skipped + 0 " skipped" }')"
}
# packages PACKAGES...: besides what every build and its tests need.
packages() {
  install_packages "${build_packages[@]}" "${test_packages[@]}" "${full_test_packages[@]}" "$@"
}
# prepare PACKAGES... -- TARGET...
prepare() {
  local more=()
  while [ "$1" != -- ]; do
    more+=("$1")
    shift
  done
  packages "${more[@]}"
  LOCKSTEP_CMAKE_FLAGS="-DLOCKSTEP_TESTS=ON ${LOCKSTEP_CMAKE_FLAGS:-}" build_release "${@:2}"
}
# by_ctest ARGUMENT...: of tests that CTest runs in campaigns only
by_ctest() {
  prepare -- all
  tested "" --test-dir build/release -C campaign --no-tests=error --output-on-failure -V "$@"
}
# sees_accesses TARGET: with an emulated GPU that is called for each load and store of a kernel.
sees_accesses() {
  packages
  needed cmake -S . -B build/races -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_TESTS=ON -DLOCKSTEP_EMULATED_RACES=ON
  needed cmake --build build/races --target "$1"
}
# last_line: whatever ends the campaign.
last_line() {
  local code=$? figures
  [ "$failed" -eq 0 ] || code=1
  figures=$(sed -nE 's/^([0-9]+: )?figures: //p' "$log" | paste -sd ';' | sed 's/;/; /g')
  echo "campaign $name: $([ "$code" -eq 0 ] && echo held || echo FAILED): $figures; $SECONDS s"
  exit "$code"
}

: >"$log"
trap last_line EXIT
case $name in
  kills) LOCKSTEP_TEST_KILLS=${2:-200} by_ctest -R '^faults\.many_kills$' ;;
  faults) by_ctest -R "^faults\.(order|every_point.*${2:-})" ;;
  hangs) by_ctest -R "^faults\.every_hang\.${2:-}" ;;
  live_readers) LOCKSTEP_TEST_READINGS=${2:-1000} by_ctest -R '^cli\.many_live_readers$' ;;
  emulated_gpu) by_ctest -R '^(emulated_gpu|ddp\.over_nccl)' ;;
  counts)
    sees_accesses lockstep_on_emulated_gpu
    for workload in ${2:-gpt-gpu unet-gpu}; do
      for shards in 1 8; do
        tracked python3 tests/bench/kernel_list.py --count --steps 1 2 -- build/races/tests/emulated_gpu/lockstep_on_emulated_gpu bench step \
          --device cuda --workload "$workload" --precision bf16 --shards "$shards"
        figure "$workload in $shards: $(tail -n 1 "$log")"
      done
    done
    ;;
  races)
    sees_accesses test.emulated_gpu
    tested "" --test-dir build/races -C campaign --no-tests=error --output-on-failure -V -R '^emulated_gpu\.races'
    figure "$(sed -nE 's/.*emulated GPU: ([0-9]+) launches and ([0-9]+) accesses .*/\1 \2/p' "$log" |
      awk '{ launches += $1; accesses += $2 } END { print launches + 0 " launches, " accesses + 0 " accesses" }')"
    ;;
  attention_plans) by_ctest -R '^kernels\.cuda\.graphs\.sm_' ;;
  bundle) by_ctest -R '^package\.whole_bundle' ;;
  container)
    install_packages debootstrap podman buildah runc
    tracked bash tests/package/container.sh "$repository/build/container" "${@:2}"
    ;;
  mutations)
    prepare -- test.checkpoint
    files=${2:-10000} seed=${LOCKSTEP_TEST_SEED:-$SRANDOM}
    LOCKSTEP_TEST_MUTATIONS=$files LOCKSTEP_TEST_SEED=$seed tracked build/release/tests/checkpoint/test.checkpoint --run_test='damage*,safetensors/thousands*' \
      --log_level=message --color_output=no
    figure "$files files of each kind, seed $seed, $(grep " of $files ended inside HDF5" "$log" | tail -n 1)"
    ;;
  pytorch_files)
    packages
    files=${2:-5000} seed=${LOCKSTEP_TEST_SEED:-$SRANDOM}
    needed cmake --preset asan -DLOCKSTEP_TESTS=ON -DCMAKE_UNITY_BUILD=OFF
    needed cmake --build --preset asan --target test.checkpoint
    LOCKSTEP_TEST_MUTATIONS=$files LOCKSTEP_TEST_SEED=$seed tracked build/asan/tests/checkpoint/test.checkpoint \
      --run_test='pytorch/many_mutated*' --log_level=message --color_output=no
    figure "$files files, seed $seed, $(grep " of $files files" "$log" | tail -n 1)"
    ;;
  pictures)
    prepare python3-venv -- lockstep_program
    [ -x build/pictures/bin/python ] || needed python3 -m venv build/pictures
    needed build/pictures/bin/pip install --quiet pillow numpy
    PYTHON=$repository/build/pictures/bin/python LOCKSTEP=$repository/build/release/bin/lockstep LOCKSTEP_MPIRUN="mpirun --oversubscribe --bind-to none --allow-run-as-root" \
      tracked bash tests/data/pictures_campaign.sh "${2:-20000}"
    figure "${2:-20000} pictures, $(tail -n 1 "$log")"
    ;;
  sanitizers)
    packages
    for preset in ${2:-asan tsan}; do
      if ! { needed cmake --preset "$preset" -DLOCKSTEP_TESTS=ON -DCMAKE_UNITY_BUILD=OFF && needed cmake --build --preset "$preset"; }; then
        figure "$preset: not built"
        continue
      fi
      if [ "$preset" = asan ]; then tests=(-LE 'slurm|faults'); else tests=(-R '^(comm|ddp|checkpoint|data)(\.|$)'); fi
      tested "$preset" --preset "$preset" "${tests[@]}"
    done
    ;;
  fuzz)
    packages clang
    needed cmake -S . -B build/fuzz -G Ninja -DLOCKSTEP_TESTS=ON -DLOCKSTEP_FUZZ=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
      -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1"
    needed cmake --build build/fuzz --target fuzz
    for target in safetensors pytorch config csv tokenizer; do
      mkdir -p "build/fuzz/corpus/$target"
      tracked "build/fuzz/tests/fuzz/fuzz.$target" -max_total_time="${2:-600}" -max_len=4096 -timeout=10 -print_final_stats=1 \
        -artifact_prefix=build/fuzz/ "build/fuzz/corpus/$target" "tests/fuzz/seeds/$target"
      figure "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1) inputs"
    done
    ;;
  peers)
    prepare python3-venv -- lockstep_program peer_case
    tracked tests/bench/peers/check.sh build/release/tests/bench/peer_case
    figure "check: $(tail -n 1 "$log")"
    for script in run allreduce checkpoint; do
      tracked "tests/bench/peers/$script.sh"
      figure "$script: $(tail -n 1 "$log")"
    done
    ;;
  torchvision)
    prepare python3-venv -- lockstep_program
    venv=build/torchvision-venv
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    needed "$venv/bin/pip" install --quiet torch torchvision safetensors h5py
    mkdir -p build/torchvision
    tracked "$venv/bin/python" tests/bench/peers/torchvision_models.py build/release/bin/lockstep build/torchvision "${@:2}"
    figure "$(tail -n 1 "$log")"
    ;;
  table)
    prepare python3-venv -- lockstep_program
    venv=build/table-venv
    [ -x "$venv/bin/python" ] || needed python3 -m venv "$venv"
    needed "$venv/bin/pip" install --quiet pandas scikit-learn h5py torch
    tracked env OMP_NUM_THREADS=1 "$venv/bin/python" tests/bench/peers/table.py build/release/bin/lockstep build/table
    figure "$(tail -n 1 "$log")"
    ;;
  two_hosts)
    prepare -- lockstep_program
    for workload in gpt-cpu resnet-cpu mlp-wide; do
      tracked tests/bench/two_hosts.sh build/release/bin/lockstep bench overlap --workload "$workload"
      figure "$workload: $(tail -n 1 "$log")"
    done
    ;;
  *)
    trap - EXIT
    rm "$log"
    [ -z "$name" ] || echo "campaign.sh: there is no campaign $name" >&2
    list
    [ -z "$name" ]
    exit
    ;;
esac
