#!/usr/bin/env bash
# What a GPU must show before its tests mean anything: one entry of gpu.sh's checklist. Exit code 0: it holds; 77: it cannot be asked here.
#
# checklist.sh NAME [small]
#
# The list, in order, is `checklist.sh list`. `small`: sizes for an emulated GPU. Standard output ends with figures of the runs.
# Environment: LOCKSTEP (lockstep), LOCKSTEP_GPU_TEST (the program of the GPU tests), LOCKSTEP_MPIRUN (mpirun and its flags).
set -uo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
lockstep=${LOCKSTEP:-lockstep}
gpu_test=${LOCKSTEP_GPU_TEST:-$bundle/tests/bin/test.gpu}
read -r -a mpirun <<<"${LOCKSTEP_MPIRUN:-mpirun}"
size=${2:-real}
export LOCKSTEP_SHARE_GPU=1  # ranks, where there are fewer GPUs than ranks

give_up() {
  echo "$*"
  exit 1
}

# train RANKS RUN SETTING...: a run from step 0, which ends with a checkpoint.
train() {
  local count=$1 run=$2 start=() settings=() setting
  shift 2
  for setting; do settings+=(--set "$setting"); done
  [ "$count" -eq 1 ] || start=("${mpirun[@]}" -n "$count")
  "${start[@]}" "$lockstep" train gpt.ini --run "$run" "${settings[@]}" >"$run.log" 2>&1 ||
    give_up "$run (${settings[*]}) ended with exit code $?: $(tail -n 12 "$run.log")"
  echo "$run: $(tail -n 1 "$run/metrics.jsonl" | grep -Eo '"(step|loss|step_ms)":[^,}]*' | tr -d '"' | tr '\n' ' ')"
}

# sized REAL SMALL: the one that is asked for.
sized() {
  if [ "$size" = real ]; then echo "$1"; else echo "$2"; fi
}

# same RUN OTHER: they end with the same bits.
same() {
  "$lockstep" diff "$1/checkpoints/latest" "$2/checkpoints/latest" >diff.log 2>&1 ||
    give_up "$1 and $2 differ: $(head -n 12 diff.log)"
}

# model [LAYERS]: data and configuration. The real one is GPT-2 124M without dropout.
model() {
  local network="heads = 12 channels = 768 context = 1024 vocab = 50304" batch=8
  local layers=${1:-12}
  if [ "$size" = small ]; then
    network="heads = 2 channels = 32 context = 32 vocab = 256" batch=4
    layers=2
  fi
  "$lockstep" prepare text "$bundle/share/data/words.txt" "$bundle/README.md" --out text.h5 >prepare.log 2>&1 ||
    give_up "prepare text: $(cat prepare.log)"
  printf '%s\n' '[model]' 'name = gpt' "layers = $layers" '[data]' 'train = text.h5' '[train]' 'steps = 8' "global_batch = $batch" \
    'shards = 2' 'device = cuda' 'precision = bf16' '[optimizer]' 'lr = 1e-4' 'clip = 1' '[log]' 'every = 1' >gpt.ini
  # shellcheck disable=SC2086  # words
  set -- $network
  while [ $# -ge 3 ]; do
    sed -i "/^layers/a $1 = $3" gpt.ini
    shift 3
  done
}

two_runs() {  # the same bits twice, in plain steps
  model
  train 1 first train.steps=20 train.cuda_graph=false
  train 1 second train.steps=20 train.cuda_graph=false
  same first second
}

# captured_is_plain LAYERS RANKS [SECTION.KEY=VALUE...]: the same bits in captured steps as in plain ones.
captured_is_plain() {
  model "$1"
  train "$2" captured "${@:3}" train.cuda_graph=true
  train "$2" plain "${@:3}" train.cuda_graph=false
  same captured plain
}

fused() {  # products with epilogues, and attention by cuDNN, against the CPU's separate operations
  local cases
  cases=$(sized products products/a_nan_passes_a_layer_with_relu)  # the suite has the others
  [ -x "$gpu_test" ] || { echo "$gpu_test is not here"; exit 77; }
  "$gpu_test" --run_test="$cases" --color_output=no 2>&1 | tail -n 30
}

nccl_tree() {  # sums along the tree: two ranks, in a graph, have the bits of one
  model 4
  train 2 two train.reproducible=true train.cuda_graph=true
  train 1 one train.reproducible=true train.cuda_graph=false
  same two one
}

entries="two_runs graphs fused nccl nccl_tree odd_length odd_vocabulary fp32"
if [ "${1:-}" = list ]; then
  tr ' ' '\n' <<<"$entries"
  exit
fi
case ${1:-} in
  two_runs | fused | nccl_tree) "$1" ;;
  graphs) captured_is_plain 12 1 ;;
  nccl) captured_is_plain 4 2 ;;  # NCCL inside the graph
  fp32) captured_is_plain 4 1 train.precision=fp32 ;;
  odd_length) captured_is_plain 4 1 "model.context=$(sized 1000 20)" ;;  # no multiple of 128
  odd_vocabulary) captured_is_plain 4 1 "model.vocab=$(sized 50257 257)" ;;  # rows of logits begin at no multiple of 16 bytes
  *)
    echo "checklist.sh: '${1:-}' is none of: $entries" >&2
    exit 2
    ;;
esac
