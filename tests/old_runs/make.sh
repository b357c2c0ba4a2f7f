#!/usr/bin/env bash
# make.sh LOCKSTEP FOLDER: how the runs in this folder were made, by the program LOCKSTEP of the version that FOLDER is named after.
# They are of steps 8 to 12 of small models, with what an evaluation and the end of the run were: what a later version has to read,
# evaluate and resume to the same bits (tests/cli/old_runs.sh).
set -euo pipefail
lockstep=$(realpath "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$2"
cd "$2"
export ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1  # the bits of any x86 cluster

zcat "$here/share/data/digits.csv.gz" | sed -n 1,200p >images.csv
"$lockstep" prepare csv images.csv --shape 1,8,8 --out images.h5
head -c 6000 "$here/share/data/words.txt" >text.txt
"$lockstep" prepare text text.txt --out text.h5
rm images.csv text.txt

configuration() {  # configuration MODEL
  case $1 in
    mlp) printf '%s\n' '[model]' 'name = mlp' 'sizes = 64 16 10' 'dropout = 0.1' '[data]' 'train = ../images.h5' ;;
    resnet) printf '%s\n' '[model]' 'name = resnet' 'blocks = 1 1' 'width = 4' 'in_channels = 1' 'classes = 10' \
      '[data]' 'train = ../images.h5' 'augment = crop flip' ;;
    gpt) printf '%s\n' '[model]' 'name = gpt' 'layers = 1' 'heads = 2' 'channels = 16' 'context = 16' 'vocab = 256' \
      '[data]' 'train = ../text.h5' ;;
  esac
  printf '%s\n' 'eval_fraction = 0.2' '[train]' 'steps = 12' 'global_batch = 12' 'shards = 3' 'eval_every = 4' \
    '[optimizer]' 'lr = 0.01' 'schedule = cosine' 'warmup_steps = 2' 'weight_decay = 0.01' 'clip = 1' \
    '[ema]' 'rates = 0.9' 'sigma_rel = 0.1' '[checkpoint]' 'every = 4' 'keep = 2' 'keep_best = eval_loss' '[log]' 'every = 1'
}

for model in mlp resnet gpt; do
  mkdir "$model"
  (
    cd "$model"
    configuration "$model" >run.ini
    "$lockstep" train run.ini --run whole 2>log
    mkdir -p run/checkpoints
    cp whole/checkpoints/step-000000008.h5 run/checkpoints/
    ln -s step-000000008.h5 run/checkpoints/latest
    cp whole/config.ini run/
    python3 - <<'PY'
import json
lines = [line for line in open("whole/metrics.jsonl")]
open("run/metrics.jsonl", "w").writelines(line for line in lines if json.loads(line)["step"] <= 8)
open("end.jsonl", "w").writelines(lines)
PY
    cp whole/checkpoints/step-000000012.h5 end.h5
    "$lockstep" eval end.h5 --json >eval.json
    rm -r whole log
  )
done
