#!/usr/bin/env bash
# lockstep predict: the outputs of every sample, in order, the same bytes at any number of ranks and after a stop, from files without
# targets; log probabilities of text; and what cannot be.
source "$(dirname "$0")/../support/cli.sh"

/usr/bin/python3 - <<'PY' || fail "h5py is needed for this test"
import h5py, numpy as np
random = np.random.default_rng(1)
x = random.normal(5, 3, (3000, 12)) + 100
y = (x.sum(1) > np.median(x.sum(1))).astype(np.int16)
with h5py.File("train.h5", "w") as f:
    f["fields/density"], f["fields/kind"] = x, y
with h5py.File("inputs.h5", "w") as f:  # no targets
    f["fields/density"] = x[:1500]
with h5py.File("renamed.h5", "w") as f:
    f["d"] = x[:1500]
with h5py.File("flow.h5", "w") as f:
    f["flow"] = x
with h5py.File("images.h5", "w") as f:
    f["x"] = random.integers(0, 256, (300, 1, 8, 8), np.uint8)
with h5py.File("many-images.h5", "w") as f:
    f["x"] = random.integers(0, 256, (100000, 1, 8, 8), np.uint8)
with h5py.File("large.h5", "w") as f:
    f["fields/density"] = random.normal(5, 3, (2000000, 12)).astype(np.float32)
PY
cat >run.ini <<'INI'
[model]
name = mlp
sizes = 12 8 2
[data]
train = train.h5
fields = x:/fields/density y:/fields/kind
normalize = x
[train]
steps = 20
global_batch = 24
shards = 2
[ema]
rates = 0.9
INI
ranks 2 train run.ini --run run >log 2>&1 || fail "training: $(tail -n 3 log)"
saved=run/checkpoints/latest

for count in 1 2 3; do
  ranks "$count" predict "$saved" --data inputs.h5 --out "out-$count.h5" >log 2>&1 || fail "$count ranks: $(tail -n 3 log)"
  if [ -e "out-$count.h5.part" ] || [ -e "out-$count.h5.part.json" ]; then fail "$count ranks: .part is still there"; fi
  cmp out-1.h5 "out-$count.h5" || fail "other bytes on $count ranks"
done
/usr/bin/python3 - <<'PY' || fail "the outputs are not the model's"
import h5py, numpy as np
with h5py.File("run/checkpoints/latest") as f, h5py.File("inputs.h5") as d, h5py.File("out-1.h5") as o:
    assert list(o) == ["label", "output", "probability", "row"] and o["output"].dtype == np.float32, list(o)
    x = (d["fields/density"][:].astype(np.float32) - f["data/x/mean"][:]) / f["data/x/deviation"][:]
    m = f["model"]
    names = sorted(k for k in m if k.endswith("weight"))
    for i, name in enumerate(names):
        x = x @ m[name][:].T + m[name[:-6] + "bias"][:]
        if i + 1 < len(names): x = np.maximum(x, 0)
    np.testing.assert_allclose(o["output"][:], x, atol=1e-4)
PY
"$LOCKSTEP" predict "$saved" --data renamed.h5 --fields x:d --out renamed-out.h5 >log 2>&1 || fail "--fields: $(cat log)"
cmp out-1.h5 renamed-out.h5 || fail "--fields: other outputs"
"$LOCKSTEP" predict "$saved" --data inputs.h5 --weights ema/0.9 --out ema.h5 >log 2>&1 || fail "--weights: $(cat log)"
if cmp -s out-1.h5 ema.h5; then fail "--weights has no effect"; fi

# A stop keeps OUT.part, and the same command continues it at another number of ranks; so it does after SIGKILL.
"$LOCKSTEP" predict "$saved" --data large.h5 --out whole.h5 >log 2>&1 || fail "large: $(cat log)"
for how in USR2:75 INT:76 KILL:137; do
  signal=${how%%:*} code=${how##*:}
  "$LOCKSTEP" predict "$saved" --data large.h5 --out part.h5 >log 2>&1 &
  job=$!
  until_there part.h5.part "$job"
  kill -"$signal" "$job"
  wait "$job" 2>/dev/null
  got=$?
  [ "$got" -eq "$code" ] || fail "SIG$signal: exit $got, expected $code: $(cat log)"
  if [ ! -e part.h5.part ] || [ -e part.h5 ]; then fail "SIG$signal: not part.h5.part alone is left"; fi
  # The lock of what was killed goes, so this folder does not stay as it was.
  ends 2 'part.h5.part: was begun with another weights \("model", now "ema/0.9"\)' \
    ranks 1 predict "$saved" --data large.h5 --weights ema/0.9 --out part.h5
  ONEDNN_MAX_CPU_ISA=SSE41 refused 2 'part.h5.part: was begun with another instruction set \(".*", now "sse41"\)' \
    ranks 1 predict "$saved" --data large.h5 --out part.h5
  ranks 2 predict "$saved" --data ./large.h5 --out part.h5 >log 2>&1 || fail "SIG$signal, continued: $(cat log)"
  [ "$signal" = KILL ] || grep -q "part.h5.part: continues after [1-9][0-9]* of 2000000 samples" log || fail "SIG$signal: it began again: $(cat log)"
  cmp whole.h5 part.h5 || fail "SIG$signal: other bytes than without a stop"
  rm -f part.h5
done

# OUT that appears meanwhile is not replaced, and --force publishes what is done.
"$LOCKSTEP" predict "$saved" --data large.h5 --out part.h5 >out.log 2>err.log &
job=$!
until_there part.h5.part "$job"
echo "another's" >part.h5
wait "$job"
[ $? -eq 2 ] || fail "OUT that appears meanwhile: $(cat err.log)"
one_error "OUT that appears meanwhile" "part.h5: already exists; --force replaces it"
[ "$(cat part.h5)" = "another's" ] || fail "OUT that appears meanwhile was replaced"
"$LOCKSTEP" predict "$saved" --data large.h5 --out part.h5 --force >log 2>&1 || fail "--force: $(cat log)"
grep -q "continues after 2000000 of 2000000 samples" log || fail "--force began again: $(cat log)"
cmp whole.h5 part.h5 || fail "--force: other bytes than without a stop"

# stopped_at_start SIGNAL CODE CHECKPOINT DATA OUT: the signal comes while the checkpoint or the data are opened.
stopped_at_start() {
  local signal=$1 code=$2 file=$3 data=$4 out=$5 job descriptor got
  "$LOCKSTEP" predict "$file" --data "$data" --out "$out" >log 2>&1 &
  job=$!
  while kill -0 "$job" 2>/dev/null; do
    for descriptor in "/proc/$job/fd/"*; do
      if [ "$descriptor" -ef "$file" ] || [ "$descriptor" -ef "$data" ]; then break 2; fi
    done
  done
  kill -"$signal" "$job"
  wait "$job" 2>/dev/null
  got=$?
  [ "$got" -eq "$code" ] || fail "SIG$signal at the start: exit $got, expected $code: $(cat log)"
  [ -e "$out.part" ] || fail "SIG$signal at the start: no $out.part"
}
for how in USR2:75 TERM:75 INT:76; do
  rm -f part.h5*
  stopped_at_start "${how%%:*}" "${how##*:}" "$saved" large.h5 part.h5
done

# An unfinished file is of the same data: a byte in the middle that changes is seen.
printf 'lock' | dd of=large.h5 bs=1 seek=48000000 conv=notrunc 2>dd.log || fail "large.h5 cannot be changed: $(cat dd.log)"
refused 2 "part.h5.part: was begun with another data file" ranks 1 predict "$saved" --data large.h5 --out part.h5
rm -f part.h5.part.json
refused 2 "part.h5.part: is not an unfinished file of lockstep predict; remove it" ranks 1 predict "$saved" --data large.h5 --out part.h5

# Images without labels, and text.
digits digits.h5
small_mlp 'steps = 4' 'global_batch = 16' >digits.ini
"$LOCKSTEP" train digits.ini --run digits >log 2>&1 || fail "digits: $(tail -n 3 log)"
"$LOCKSTEP" predict digits/checkpoints/latest --data images.h5 --out images-out.h5 >log 2>&1 || fail "images without labels: $(cat log)"
stopped_at_start USR2 75 digits/checkpoints/latest many-images.h5 images.part.h5
refused 2 "images.part.h5.part: was begun with another normalisation of images" \
  ranks 1 predict digits/checkpoints/latest --data many-images.h5 --out images.part.h5 --own-statistics
words words.h5
printf '%s\n' '[model]' 'name = gpt' 'layers = 1' 'heads = 2' 'channels = 16' 'context = 32' 'vocab = 256' '[data]' 'train = words.h5' \
  '[train]' 'steps = 4' 'global_batch = 4' >gpt.ini
"$LOCKSTEP" train gpt.ini --run gpt >log 2>&1 || fail "gpt: $(tail -n 3 log)"
for output in logits logprobs; do
  ranks 2 predict gpt/checkpoints/latest --data words.h5 --output "$output" --out "$output.h5" >log 2>&1 || fail "$output: $(cat log)"
done
"$LOCKSTEP" eval gpt/checkpoints/latest --data words.h5 --json >eval.json || fail "eval of text"
/usr/bin/python3 - <<'PY' || fail "log probabilities are not those of the logits"
import h5py, json, numpy as np
tokens = h5py.File("words.h5")["tokens"][:].astype(int)
logits, found = h5py.File("logits.h5")["output"][:].astype(float), h5py.File("logprobs.h5")["output"][:]
n, t, v = logits.shape
targets = np.stack([tokens[i * t + 1:i * t + t + 1] for i in range(n)])
wanted = np.take_along_axis(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), targets[..., None], -1)[..., 0]
np.testing.assert_allclose(found, wanted, atol=1e-5)
np.testing.assert_allclose(-found.mean(dtype=float), json.load(open("eval.json"))["loss"], rtol=1e-5)
PY

# no_output CODE TEXT ARGUMENTS...
no_output() {
  refused "$1" "$2" ranks 2 predict "${@:3}"
}
no_output 2 "predict: --out FILE is missing" "$saved" --data inputs.h5
no_output 2 "predict: --data FILE is missing" "$saved" --out o.h5
no_output 2 "out-1.h5: already exists; --force replaces it" "$saved" --data inputs.h5 --out out-1.h5
no_output 2 "nowhere" "$saved" --data inputs.h5 --out nowhere/o.h5
no_output 2 "--output logprobs: needs a language model" "$saved" --data inputs.h5 --out o.h5 --output logprobs
no_output 2 "--output \"likely\": must be logits, logprobs or network" "$saved" --data inputs.h5 --out o.h5 --output likely
no_output 3 "gone.h5" "$saved" --data gone.h5 --out o.h5
no_output 3 "flow.h5: /fields/density is missing; the file has flow" "$saved" --data flow.h5 --out o.h5
no_output 3 "flow.h5: .*no field" "$saved" --data flow.h5 --fields z:flow --out o.h5
# What is read is never replaced, by whatever name.
cp inputs.h5 precious.h5
ln precious.h5 hard.h5
ln precious.h5 near.h5.part
ln -s precious.h5 soft.h5
cp "$saved" kept.h5
for out in precious.h5 ./precious.h5 hard.h5; do
  no_output 2 "is an input, which is never replaced" "$saved" --data precious.h5 --out "$out" --force
done
no_output 2 "precious.h5: is an input" "$saved" --data soft.h5 --out precious.h5 --force
no_output 2 "soft.h5: is a symbolic link" "$saved" --data precious.h5 --out soft.h5 --force
no_output 2 "near.h5.part: is an input" "$saved" --data precious.h5 --out near.h5 --force
no_output 2 "kept.h5: is an input" kept.h5 --data inputs.h5 --out kept.h5 --force
no_output 2 "digits.h5: is an input" digits/checkpoints/latest --data images.h5 --out digits.h5 --force
cmp inputs.h5 precious.h5 || fail "an input was changed"
cmp "$saved" kept.h5 || fail "a checkpoint was changed"
echo no >o.h5.part
no_output 2 "o.h5.part: is not an unfinished file of lockstep predict; remove it" "$saved" --data inputs.h5 --out o.h5
(ulimit -f 20; exec "$LOCKSTEP" predict "$saved" --data large.h5 --out full.h5) >out.log 2>err.log
case $? in 2 | 3 | 5) ;; *) fail "a file that may not grow: $(cat err.log)" ;; esac
one_error "a file that may not grow" "full.h5.*cannot"
[ ! -e full.h5 ] || fail "a file that may not grow left full.h5"
# Two at once: the second is told who writes the file, and tears nothing.
"$LOCKSTEP" predict "$saved" --data large.h5 --out shared.h5 >first.log 2>&1 &
first=$!
until [ -s shared.h5.part.lock ] || ! kill -0 "$first" 2>/dev/null; do sleep 0.01; done
kill -STOP "$first"
refused 2 "shared.h5.part.lock: another run holds shared.h5: pid $first on " \
  timeout 120 "$LOCKSTEP" predict "$saved" --data large.h5 --out shared.h5
kill -CONT "$first"
wait "$first" || fail "the first predict: $(cat first.log)"
[ -z "$(find . -name 'shared.h5.part*')" ] || fail "left: $(find . -name 'shared.h5.part*')"
finish
