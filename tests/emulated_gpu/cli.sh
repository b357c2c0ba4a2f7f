#!/usr/bin/env bash
# The command line with ranks on two emulated GPUs, which three ranks share: LOCKSTEP is lockstep_on_emulated_gpu.
source "$(dirname "$0")/../support/cli.sh"
export LOCKSTEP_SHARE_GPU=1

digits digits.h5
small_resnet 'eval_fraction = 0.1' >resnet.ini
printf '%s\n' '[train]' 'steps = 6' 'global_batch = 16' 'shards = 4' 'eval_every = 3' 'device = cuda' '[optimizer]' 'name = sgd' \
  'lr = 0.05' 'momentum = 0.9' 'clip = 1' '[ema]' 'rates = 0.9' '[checkpoint]' 'every = 3' '[log]' 'every = 1' >>resnet.ini
words text.h5
small_gpt '[train]' 'steps = 4' 'global_batch = 8' 'shards = 4' 'device = cuda' '[optimizer]' 'lr = 1e-3' '[checkpoint]' 'every = 2' '[log]' 'every = 1' |
  sed 's/^vocab.*/&\ndropout = 0.1/' >gpt.ini

# train RANKS RUN CONFIG SETTING...: a run that succeeds.
train() {
  local count=$1 run=$2 config=$3 settings=() setting
  shift 3
  for setting; do settings+=(--set "$setting"); done
  ranks "$count" train "$config" --run "$run" "${settings[@]}" >"$run.log" 2>&1 || fail "$run: $(tail -n 3 "$run.log")"
}

# close RUN OTHER TOLERANCE: the losses of two runs, line by line.
close() {
  python3 - "$@" <<'P' || fail "the losses of $1 and $2"
import json, sys
def losses(run):
    lines = (json.loads(line) for line in open(f"{run}/metrics.jsonl"))
    return [line["loss"] for line in lines if "loss" in line]
pairs = list(zip(losses(sys.argv[1]), losses(sys.argv[2]), strict=True))
print(pairs)
sys.exit(0 if pairs and all(abs(a - b) <= float(sys.argv[3]) * abs(b) for a, b in pairs) else 1)
P
}

# It trains as the CPU does, in every way of it.
train 1 cpu resnet.ini train.device=cpu
train 1 gpu resnet.ini
close gpu cpu 2e-3
train 2 bf16 resnet.ini train.precision=bf16 ddp.reduce_dtype=bf16
close bf16 cpu 5e-2
train 1 gpt_cpu gpt.ini train.device=cpu
train 2 gpt_gpu gpt.ini ddp.sharded_optimizer=true checkpoint.async=true
close gpt_gpu gpt_cpu 2e-3
train 3 gpt_pieces gpt.ini train.micro_batches=2 model.recompute=true ddp.check_every=1
train 1 gpt_bf16 gpt.ini train.precision=bf16
close gpt_bf16 gpt_cpu 2e-2
train 1 gpt_odd gpt.ini train.precision=bf16 model.vocab=257 train.steps=1

# Where the build has no machine code for the GPUs, one line before the first step says so, and a build without PTX refuses them.
export LOCKSTEP_EMULATED_ARCHITECTURES=80
train 2 compiled gpt.ini train.steps=1
[[ $(grep -c 'rank 0 on .*machine code for sm_80, not for sm_90: the first start.*; build with -D' compiled.log) == 1 ]] || fail "a first start that takes long is not said: $(cat compiled.log)"
export LOCKSTEP_EMULATED_ARCHITECTURES=80-real
refused 2 "sm_90, nor PTX that could be compiled for it; build with -DLOCKSTEP_CUDA_ARCHITECTURES=90, or choose device cpu" \
  ranks 2 train gpt.ini --run no_code
train 1 no_code gpt.ini train.device=auto train.steps=1
grep -q 'computes on CPUs: no GPU can be used: .*nor PTX' no_code.log || fail "a GPU that stands idle is not said: $(cat no_code.log)"
"$LOCKSTEP" doctor --node >doctor.log 2>&1
grep -q 'problem.*gpu: .*nor PTX' doctor.log || fail "doctor on GPUs without code: $(cat doctor.log)"
unset LOCKSTEP_EMULATED_ARCHITECTURES
grep -q 'machine code' gpt_gpu.log && fail "a build with machine code has a note: $(cat gpt_gpu.log)"

# reproducible: the same bits at every world size, killed and resumed or not.
train 1 one resnet.ini train.reproducible=true
train 3 three resnet.ini train.reproducible=true
expect_same one/checkpoints/latest three/checkpoints/latest
train 2 two resnet.ini train.reproducible=true train.steps=3
train 1 two resnet.ini train.reproducible=true
expect_same one/checkpoints/latest two/checkpoints/latest

# The same where each rank sees only its own GPU, as some launchers have it.
cat >sees_its_own <<'P'
#!/bin/sh
CUDA_VISIBLE_DEVICES=${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID} exec "$REAL" "$@"
P
chmod +x sees_its_own
export REAL=$LOCKSTEP
LOCKSTEP=$PWD/sees_its_own LOCKSTEP_SHARE_GPU=0 train 2 own resnet.ini train.reproducible=true
expect_same one/checkpoints/latest own/checkpoints/latest

# Recorded as a graph or not, by one rank (auto) or three.
train 1 plain resnet.ini train.reproducible=true train.cuda_graph=false
expect_same one/checkpoints/latest plain/checkpoints/latest
train 3 graphs resnet.ini train.reproducible=true train.cuda_graph=true train.steps=12
train 1 no_graphs resnet.ini train.reproducible=true train.cuda_graph=false train.steps=12
expect_same graphs/checkpoints/latest no_graphs/checkpoints/latest
! grep -q 'not captured as a graph' gpt_bf16.log || fail "dropout in a graph: $(cat gpt_bf16.log)"
ranks 2 train gpt.ini --run refused --set train.cuda_graph=true --set ddp.sharded_optimizer=true >refused.log 2>err.log
[ $? -eq 2 ] || fail "a graph with a sharded optimizer: $(tail -n 2 err.log)"
one_error "a graph with a sharded optimizer" 'ddp.sharded_optimizer'

# A run moves to the CPU and back.
train 1 moves resnet.ini train.steps=3
train 2 moves resnet.ini train.steps=5 train.device=cpu
train 2 moves resnet.ini train.steps=6
close moves cpu 2e-3
for device in cuda cpu; do
  "$LOCKSTEP" eval moves/checkpoints/latest --device "$device" --json >"$device.json" 2>eval.log || fail "eval: $(cat eval.log)"
done
python3 -c '
import json, sys
a, b = (json.load(open(file)) for file in ("cuda.json", "cpu.json"))
sys.exit(0 if a["samples"] == b["samples"] and abs(a["loss"] - b["loss"]) <= 1e-3 * b["loss"] else 1)' ||
  fail "eval: $(cat cuda.json cpu.json)"

# Tasks with fields of any file: the losses, evaluations and outputs of the CPU.
/usr/bin/python3 - <<'P' || fail "h5py is needed for this test"
import h5py, numpy as np
random = np.random.default_rng(1)
x = random.normal(3, 2, (120, 4))
with h5py.File("rows.h5", "w") as f:
    f["x"], f["flow"], f["kind"] = x, x[:, :1] * 5 + x[:, 1:2] ** 2, (x.sum(1) > 12).astype(np.uint8)
P
printf '%s\n' '[model]' 'name = mlp' 'sizes = 4 8 1' '[task]' 'name = regression' '[data]' 'train = rows.h5' 'eval_fraction = 0.2' \
  'fields = x y:flow' 'normalize = x y' '[train]' 'steps = 6' 'global_batch = 24' 'shards = 3' 'eval_every = 3' 'device = cuda' \
  '[optimizer]' 'name = sgd' 'lr = 0.02' '[log]' 'every = 1' >rows.ini
for task in regression binary; do
  settings=()
  [ "$task" != binary ] || settings=(task.name=binary data.fields='x y:kind' data.normalize=x)
  train 1 "$task" rows.ini "${settings[@]}" train.cuda_graph=true
  train 2 "$task-cpu" rows.ini "${settings[@]}" train.device=cpu
  close "$task" "$task-cpu" 1e-3
  ranks 2 predict "$task/checkpoints/latest" --data rows.h5 --device cuda --out "$task.h5" >predict.log 2>&1 ||
    fail "$task: predict: $(tail -n 3 predict.log)"
  ranks 1 predict "$task/checkpoints/latest" --data rows.h5 --device cpu --out "$task-cpu.h5" >predict.log 2>&1 ||
    fail "$task: predict on the CPU: $(tail -n 3 predict.log)"
  /usr/bin/python3 - "$task.h5" "$task-cpu.h5" <<'P' || fail "$task: the outputs of predict"
import h5py, numpy as np, sys
found, wanted = (h5py.File(name)["output"][:] for name in sys.argv[1:])
np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
P
done

# What is wrong is said by all ranks as one, with its code.
ranks 2 train resnet.ini --run nan --set optimizer.lr=1e30 --set optimizer.clip=0 --set ema.rates= >nan.log 2>err.log
[ $? -eq 4 ] || fail "a run that diverges: $(tail -n 2 err.log)"
ranks 2 train gpt.ini --run outside --set model.vocab=64 >outside.log 2>err.log
[ $? -eq 3 ] || fail "tokens outside the vocabulary: $(tail -n 2 err.log)"
one_error "tokens outside the vocabulary" 'vocab'
CUDA_VISIBLE_DEVICES=0 LOCKSTEP_SHARE_GPU=0 ranks 2 train resnet.ini --run shares >shares.log 2>err.log
[ $? -eq 2 ] || fail "two ranks on one GPU: $(tail -n 2 err.log)"
one_error "two ranks on one GPU" 'GPU'

# A measured step is a graph; of a GPU that no table knows, nothing is said of its limit.
"$LOCKSTEP" bench step --device cuda --set model.layers=1 --steps 1 --json >out.json 2>err.log || fail "bench step: $(cat err.log)"
python3 - <<'P' || fail "bench step: $(cat out.json)"
import json
step = json.load(open("out.json"))
assert step["graph"] and step["peak_device_memory_bytes"] > 1 << 20 and step["tflops"] > 0 and "mfu" not in step, step
P

# Its memory is also that of the accumulation buffers, which shards need and micro-batches do not.
for parts in shards micro-batches; do
  "$LOCKSTEP" bench step --device cuda --set model.layers=1 --steps 1 --$parts 2 --json >$parts.json 2>err.log || fail "bench step: $(cat err.log)"
done
python3 - <<'P' || fail "memory of shards: $(cat shards.json micro-batches.json)"
import json
shards, micro_batches = (json.load(open(name + ".json"))["peak_device_memory_bytes"] for name in ("shards", "micro-batches"))
assert shards > micro_batches + (2 << 20)
P

# Work that is counted instead of done: five layers of a GPT have 15 products a step and pass, all parameters one update a step.
for passes in 1 2; do
  python3 "$LOCKSTEP_SOURCE_DIR/tests/bench/kernel_list.py" --count --steps 1 2 -- "$LOCKSTEP" bench step --device cuda --precision bf16 \
    --set model.layers=1 --shards 2 --set ddp.shards_at_once=$((3 - passes)) >counts 2>log || fail "counts: $(cat log)"
  for row in "$((15 * passes)) .* cublasLtMatmul" '1 .* update_elements<Rule>'; do
    grep -Eq "^ *$row\$" counts || fail "in $passes passes no '$row': $(cat counts)"
  done
done
finish
