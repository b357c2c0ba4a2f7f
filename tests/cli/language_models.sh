#!/usr/bin/env bash
# From a folder of Hugging Face to a tuned one and back; the same bits at 1 to 4 ranks and after a kill, with documents apart and together;
# texts at any number of ranks, of special tokens, and beyond the context; what does not fit is one line.
source "$(dirname "$0")/../support/cli.sh"

words=$LOCKSTEP_SOURCE_DIR/share/data/words.txt
mkdir texts
split -n l/150 "$words" texts/part- || fail "split"
mkdir texts/.cache && echo "a hidden file" >texts/.cache/part && cp texts/.cache/part texts/.part
"$LOCKSTEP" prepare text texts --train-tokenizer 400 --out mine.h5 >prepared 2>&1 || fail "prepare text: $(cat prepared)"
grep -q 'vocabulary 400, 150 documents' prepared || fail "prepare text says: $(cat prepared)"

# A folder, as Hugging Face has them.
cat >first.ini <<'INI'
[model]
name = llama
layers = 2
heads = 4
kv_heads = 2
channels = 32
hidden = 64
context = 48
vocab = 402
tied = true
[data]
train = mine.h5
eval_fraction = 0.2
documents = mask
[train]
steps = 6
global_batch = 8
shards = 4
eval_every = 3
[optimizer]
lr = 1e-3
[sample]
every = 3
prompts = "The king " a
tokens = 12
[checkpoint]
every = 3
INI
"$LOCKSTEP" train first.ini --run first >log 2>&1 || fail "train: $(tail -n 2 log)"
[ -s first/samples/step-000000006-model.txt ] || fail "no texts in RUN/samples"
grep -q '"eval_bits_a_byte":' first/metrics.jsonl || fail "no bits a byte"
"$LOCKSTEP" convert first/checkpoints/latest folder --layout huggingface >log 2>&1 || fail "to a folder: $(cat log)"
for file in config.json model.safetensors tokenizer.json tokenizer_config.json; do
  [ -s "folder/$file" ] || fail "the folder lacks $file"
done
grep -q '"eos_token_id"' folder/config.json || fail "config.json does not say how documents end"
"$LOCKSTEP" convert first/checkpoints/latest folder --layout huggingface >log 2>&1 && fail "a folder was replaced without --force"

# From the folder and back: what the configuration does not say, config.json says.
"$LOCKSTEP" prepare text texts --tokenizer folder --out tuned.h5 >log 2>&1 || fail "the folder's tokenizer: $(cat log)"
cat >tuned.ini <<'INI'
[model]
name = llama
context = 32
[data]
train = tuned.h5
[train]
init = folder
steps = 6
global_batch = 12
shards = 6
[checkpoint]
every = 2
INI
for documents in cross mask; do
  for ranks in 1 2 3 4; do
    ranks $ranks train tuned.ini --run $documents-$ranks --set data.documents=$documents >log 2>&1 || fail "$documents on $ranks: $(tail -n 2 log)"
    "$LOCKSTEP" diff $documents-1/checkpoints/latest $documents-$ranks/checkpoints/latest >log 2>&1 ||
      fail "$documents on $ranks ranks has other bits: $(cat log)"
  done
  # Killed on 2 ranks, continued on 3.
  kill_when $documents-killed/checkpoints/step-000000002.h5 2 train tuned.ini --run $documents-killed --set data.documents=$documents \
    --set train.steps="$endless_steps" --set checkpoint.keep=1000000
  find $documents-killed/checkpoints -name 'step-*.h5' | sort | tail -n +3 | xargs -r rm -f  # it may have got beyond the six steps
  ranks 3 train tuned.ini --run $documents-killed --set data.documents=$documents >log 2>&1 || fail "$documents after a kill: $(tail -n 2 log)"
  "$LOCKSTEP" diff $documents-1/checkpoints/latest $documents-killed/checkpoints/latest >log 2>&1 ||
    fail "$documents: killed and resumed, it has other bits"
done
"$LOCKSTEP" diff cross-1/checkpoints/latest mask-1/checkpoints/latest >log 2>&1 && fail "documents = mask changes nothing"

"$LOCKSTEP" convert mask-1/checkpoints/latest back --layout huggingface >log 2>&1 || fail "back: $(cat log)"
cmp -s folder/tokenizer.json back/tokenizer.json || fail "another tokenizer came back"

# Texts.
for prompt in "The king " a "Once upon a time" "The " b c d e f g; do echo "$prompt"; done >prompts
generate() { ranks "$1" generate mask-1/checkpoints/latest --prompts prompts --tokens 60 --temperature 0.9 --top-k 50 --top-p 0.95 --seed 3 "${@:2}"; }
for ranks in 1 2 3; do generate $ranks --json >texts-$ranks 2>log || fail "generate on $ranks: $(tail -n 2 log)"; done
for ranks in 2 3; do cmp -s texts-1 texts-$ranks || fail "other texts on $ranks ranks"; done
"$LOCKSTEP" generate mask-1/checkpoints/latest --prompt "The king " --tokens 60 --temperature 0 >one 2>log || fail "generate: $(cat log)"
grep -q 'tokens/s' log || fail "generate does not say how fast it was"
"$LOCKSTEP" generate mask-1/checkpoints/latest --prompt "The king " --tokens 60 --temperature 0.0 --json 2>/dev/null | grep -q '"prompt"' || fail "--json"

# What does not fit.
"$LOCKSTEP" prepare text texts --out bytes.h5 >/dev/null 2>&1
ends 3 'tokenizer' "$LOCKSTEP" eval mask-1/checkpoints/latest --data bytes.h5
ends 3 'end_of_document' "$LOCKSTEP" train tuned.ini --run none --set data.train=bytes.h5 --set data.documents=mask
mkdir gemma && echo '{"model_type": "gemma2"}' >gemma/config.json
ends 2 'model_type is "gemma2"' "$LOCKSTEP" train tuned.ini --run none --set train.init=gemma
ends 3 'neither model.safetensors nor' "$LOCKSTEP" convert gemma out.h5
ends 2 'top-p' "$LOCKSTEP" generate mask-1/checkpoints/latest --top-p 0
finish
