#!/usr/bin/env bash
# What a GPU must show before its tests mean anything: one entry of gpu.sh's checklist. Exit code 0: it holds; 77: it cannot be asked here.
#
# checklist.sh NAME [small]
#
# The list, in order, is `checklist.sh list`. `small`: sizes for an emulated GPU. Standard output ends with figures of the runs. Four more
# names are measurements of gpu.sh's plans (loop, loop_plain, ranks_gpt, ranks_unet), whose last line is a JSON document.
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

always=()  # settings of every run of run.ini

# train RANKS RUN SETTING...: a run from step 0, which ends with a checkpoint.
train() {
  local count=$1 run=$2 start=() settings=() setting
  shift 2
  for setting in "${always[@]}" "$@"; do settings+=(--set "$setting"); done
  [ "$count" -eq 1 ] || start=("${mpirun[@]}" -n "$count")
  "${start[@]}" "$lockstep" train run.ini --run "$run" "${settings[@]}" >"$run.log" 2>&1 ||
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
    'shards = 2' 'device = cuda' 'precision = bf16' '[optimizer]' 'lr = 1e-4' 'clip = 1' '[log]' 'every = 1' >run.ini
  # shellcheck disable=SC2086  # words
  set -- $network
  while [ $# -ge 3 ]; do
    sed -i "/^layers/a $1 = $3" run.ini
    shift 3
  done
}

# unet: the same for diffusion: jobs/diffusion-cifar.ini with made-up images, or a part of jobs/diffusion-digits.ini.
unet() {
  local job=diffusion-cifar
  always=(train.device=cuda train.precision=bf16 train.steps=8 "train.global_batch=$(sized 32 4)" data.train=images.h5 log.every=1)
  if [ "$size" = small ]; then
    job=diffusion-digits
    always+=(model.channel_mult=1 model.attention_resolutions=1 model.num_heads=1 train.steps=2 train.shards=2)
    "$lockstep" prepare csv "$bundle/share/data/digits.csv.gz" --shape 1,8,8 --out images.h5
  else
    python3 -c 'import random, sys
draw = random.Random(1)
for image in range(256): sys.stdout.buffer.write(bytes([image % 10]) + draw.randbytes(3072))' >images.bin
    "$lockstep" prepare cifar images.bin --out images.h5
  fi >prepare.log 2>&1 || give_up "prepare: $(cat prepare.log)"
  sed -e '/^eval/d' -e '/^\[sample\]/,$d' "$bundle/jobs/$job.ini" >run.ini
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

unet_two_runs() {  # noise, dropout, adaptive norms and convolutions: the same bits twice
  unet
  train 1 first
  train 1 second
  same first second
}

shards() {  # eight shards one after another have the bits of four on each of two ranks
  model 4
  train 1 one train.shards=8 train.global_batch=8 train.reproducible=true
  train 2 two train.shards=8 train.global_batch=8 train.reproducible=true
  same one two
}

# report RUN...: one JSON document: medians of the steps of these runs, but for the first ones.
report() {
  python3 - "$@" <<'PYTHON'
import json, statistics, sys
def medians(run):
    lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    lines = [line for line in lines if "step_ms" in line]
    lines = lines[min(10, len(lines) // 2):]
    return {key: statistics.median(line[key] for line in lines) for key in ("step_ms", "data_wait_ms", "exposed_comm_ms")}
runs = {run: medians(run) for run in sys.argv[1:]}
print(json.dumps({**runs[sys.argv[1]], "runs": runs}))
PYTHON
}

loop() {  # SETTING...: the workload of `bench step`, trained
  model
  train 1 loop "train.steps=$(sized 60 4)" "train.global_batch=$(sized 16 4)" train.shards=1 "$@"
  report loop
}

ranks() {  # two ranks on this GPU, beside one with as many shards
  train 2 two "train.steps=$(sized 20 2)" train.shards=2 train.reproducible=true
  train 1 one "train.steps=$(sized 20 2)" train.shards=2 train.reproducible=true
  same two one
  report two one
}

entries="two_runs graphs fused nccl nccl_tree odd_length odd_vocabulary fp32 shards unet_two_runs"
if [ "${1:-}" = list ]; then
  tr ' ' '\n' <<<"$entries"
  exit
fi
case ${1:-} in
  two_runs | fused | nccl_tree | shards | unet_two_runs | loop) "$1" ;;
  graphs) captured_is_plain 12 1 ;;
  nccl) captured_is_plain 4 2 ;;  # NCCL inside the graph
  fp32) captured_is_plain 4 1 train.precision=fp32 ;;
  loop_plain) loop train.cuda_graph=false ;;
  ranks_gpt) model 4 && ranks ;;
  ranks_unet) unet && ranks ;;
  odd_length) captured_is_plain 4 1 "model.context=$(sized 1000 20)" ;;  # no multiple of 128
  odd_vocabulary) captured_is_plain 4 1 "model.vocab=$(sized 50257 257)" ;;  # rows of logits begin at no multiple of 16 bytes
  *)
    echo "checklist.sh: '${1:-}' is none of: $entries" >&2
    exit 2
    ;;
esac
