#!/usr/bin/env bash
# A step of sampling beside PyTorch's, eager and compiled: ms for 16 samples of unet-cpu's model on one thread, in alternating rounds.
#
# sampling.sh [-r ROUNDS]        default: 3 rounds
#
# Ours is `lockstep sample` with 25 steps of ddim less the same with 5, over 20; theirs sampling.py. Peers as in pytorch.sh. Exit code 77:
# there is no PyTorch.
set -euo pipefail
# shellcheck source=tests/bench/peers/pytorch.sh
source "$(dirname "${BASH_SOURCE[0]}")/pytorch.sh"

rounds=3
while getopts r: option; do
  case $option in
    r) rounds=$OPTARG ;;
    *) exit 2 ;;
  esac
done
find_pytorch
unset "python[debian]"
[ ${#python[@]} -gt 0 ] || { say "no PyTorch of today here"; exit 77; }

"${python[newest]}" "$folder/sampling.py" --data "$scratch/images.h5"
cat >"$scratch/config.ini" <<INI
[model]
name = unet
image_size = 32
in_channels = 3
model_channels = 64
out_channels = 3
num_res_blocks = 2
attention_resolutions = 2
channel_mult = 1 2 2
num_heads = 4
use_scale_shift_norm = true
[task]
name = diffusion
[diffusion]
schedule = linear
predict = eps
[data]
train = $scratch/images.h5
[train]
steps = 1
global_batch = 1
shards = 1
[optimizer]
name = adamw
lr = 1e-4
INI
"$lockstep" train "$scratch/config.ini" --run "$scratch/run" >"$scratch/error" 2>&1 || { say "$(tail -n 3 "$scratch/error")"; exit 1; }
checkpoint=$(echo "$scratch"/run/checkpoints/step-*.h5)

# ms of `lockstep sample` with that many steps
sample_ms() {
  local begin end
  begin=$(date +%s%N)
  "$lockstep" sample "$checkpoint" --out "$scratch/samples.h5" --force --count 16 --sampler ddim --steps "ddim$1" --device cpu >"$scratch/error" 2>&1 ||
    { say "$(tail -n 3 "$scratch/error")"; exit 1; }
  end=$(date +%s%N)
  echo $(((end - begin) / 1000000))
}

for round in $(seq "$rounds"); do
  say "round $round of $rounds"
  long=$(sample_ms 25)
  short=$(sample_ms 5)
  echo "ours $(((long - short) / 20))" >>"$scratch/times"
  for mode in eager compiled; do
    options=()
    [ $mode = eager ] || options=(--compile)
    "${python[newest]}" "$folder/sampling.py" "$checkpoint" "${options[@]}" 2>"$scratch/error" >"$scratch/figures" ||
      { say "$mode: left out: $(tail -n 1 "$scratch/error")"; continue; }
    echo "$mode $(sed 's/.*"step_ms": \([0-9.]*\).*/\1/' "$scratch/figures")" >>"$scratch/times"
  done
done

say_versions
python3 - "$scratch/times" "$rounds" <<'PY'
import collections
import statistics
import sys

times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, ms = line.split()
    times[who].append(float(ms))
print(f"ms a step of ddim with 16 samples on one thread; medians of {sys.argv[2]} rounds; ratio: median over rounds of theirs / ours")
for who, theirs in times.items():
    ratio = statistics.median(b / a for a, b in zip(times["ours"], theirs))
    print(f"{who:<12}{statistics.median(theirs):>9.1f}" + (f"{ratio:>8.2f}x" if who != "ours" else ""))
PY
