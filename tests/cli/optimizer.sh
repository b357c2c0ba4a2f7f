#!/usr/bin/env bash
# convert --optimizer: the state of PyTorch's AdamW. A run that began there and goes on here ends where it ends there; every parameter has
# its own state, whatever the order of groups; nothing is guessed. Folders of several files are named, with the command that gathers them.
source "$(dirname "$0")/../support/cli.sh"
python=/usr/bin/python3
$python -c 'import h5py, numpy' || fail "h5py is needed for this test"
made=$LOCKSTEP_SOURCE_DIR/tests/checkpoint/optimizer_files

cat >run.ini <<'INI'
[model]
name = mlp
sizes = 3 4 4 2
[task]
name = regression
[data]
train = data.h5
format = arrays
[train]
steps = 10
global_batch = 20
shards = 2
[optimizer]
name = adamw
lr = 0.01
betas = 0.9 0.95
weight_decay = 0.1
INI
$python - <<'PY' || fail "data.h5"
import h5py, numpy as np
i = np.arange(60).reshape(20, 3)
with h5py.File("data.h5", "w") as file:
    file["x"], file["y"] = (i * 37 % 101 / 101).astype("f4"), (i[:, :2] * 53 % 97 / 97).astype("f4")
PY

# taken FILE.pt [ARGUMENTS...]: FILE.h5 with weights and state of FILE.pt.
taken() {
  "$LOCKSTEP" convert "$made/$1.pt" "$1.h5" --config run.ini --optimizer "$made/$1.pt" "${@:2}" >out.log 2>"$1.log" || fail "$1: $(cat "$1.log")"
}

# 5 steps there and 5 here are 10 there: weights and state.
taken half
grep -q "half.pt: the state of AdamW after step 5, by the order of 6 parameters" half.log || fail "convert: $(cat half.log)"
"$LOCKSTEP" inspect half.h5 | has_line '^step 5; ' || fail "inspect: $("$LOCKSTEP" inspect half.h5 | head -n 2)"
"$LOCKSTEP" verify half.h5 >/dev/null || fail "verify half.h5"
taken whole
for words in "1" "2" "2 --set ddp.sharded_optimizer=true"; do
  # shellcheck disable=SC2086
  ranks ${words%% *} train run.ini --run "run-${words%% *}" --fork half.h5 ${words#?} >log 2>&1 || fail "train --fork on $words: $(tail -n 2 log)"
  $python - "run-${words%% *}/checkpoints/latest" <<'PY' || fail "5 steps there and 5 here, $words"
import sys, h5py, numpy as np
with h5py.File(sys.argv[1]) as ours, h5py.File("whole.h5") as theirs, h5py.File("half.h5") as before:
    assert ours.attrs["step"] == 10 and ours["optimizer"].attrs["step"] == 10
    for name in theirs["model"]:
        for group in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq", "optimizer/step"):
            a, b, c = (file[group][name][()] for file in (ours, theirs, before))
            assert np.abs(a - b).max() < 1e-6 and not np.array_equal(a, c), (group, name, a, b)
PY
  rm -rf "run-${words%% *}"
done

# with_own_state FILE [ZEROS]: every moment is of its own parameter, which was the gradient; there is none of ZEROS.
with_own_state() {
  $python - "$1.h5" "${2-}" <<'PY' || fail "$1: the state is another parameter's"
import sys, h5py, numpy as np
with h5py.File(sys.argv[1]) as file:
    assert file.attrs["step"] == 1 and file["optimizer"].attrs["algorithm"].decode() == "adamw"
    assert set(file["optimizer"]) == {"exp_avg", "exp_avg_sq", "step"}
    names = set(file["model"])
    for slot, expected in (("exp_avg", lambda w: 0.1 * w), ("exp_avg_sq", lambda w: 0.001 * w * w), ("step", lambda w: 1)):
        assert set(file["optimizer"][slot]) == names, slot
        for name in names:
            w, state = file["model"][name][()], file["optimizer"][slot][name][()]
            assert np.allclose(state, 0 if name == sys.argv[2] else expected(w), rtol=1e-6, atol=0), (slot, name, w, state)
PY
}
for file in vectors_first old head_first; do
  taken $file
  with_own_state $file
done
taken one_unused
with_own_state one_unused net.2.bias
"$LOCKSTEP" convert "$made/old.pt" alone.h5 --config run.ini --optimizer "$made/alone.pt" >/dev/null 2>&1 || fail "a state_dict() alone"
with_own_state alone
sed 's/^sizes.*/sizes = 3 3 3/' run.ini >square.ini
"$LOCKSTEP" convert "$made/named.pt" named.h5 --config square.ini --optimizer "$made/named.pt" >/dev/null 2>log || fail "names: $(cat log)"
with_own_state named
grep -q "by the names of" log || fail "names: $(cat log)"
sed 's/^steps.*/&\nfrozen = net.0.*/' run.ini >frozen.ini
"$LOCKSTEP" convert "$made/half.pt" frozen.h5 --config frozen.ini --optimizer "$made/half.pt" >/dev/null 2>log || fail "frozen: $(cat log)"
"$LOCKSTEP" train frozen.ini --run frozen --fork frozen.h5 >log 2>&1 || fail "frozen parameters: $(tail -n 2 log)"
"$LOCKSTEP" convert "$made/half.pt" averaged.h5 --config run.ini --optimizer "$made/half.pt" --ema 0.9=half.h5 >/dev/null 2>&1 || fail "--ema"
$python -c 'import h5py; assert h5py.File("averaged.h5")["ema/0.9"].attrs["updates"] == 5' || fail "updates of an average"

# What does not fit is an error, and writes nothing.
# not_taken CODE TEXT FILE [CONFIG WEIGHTS]
not_taken() {
  refused "$1" "$2" "$LOCKSTEP" convert "${5-half.h5}" no.h5 --config "${4-run.ini}" --optimizer "$3"
}
not_taken 3 'sgd.pt: holds "momentum_buffer"; the state of AdamW and Adam, without amsgrad, is exp_avg, exp_avg_sq, step' "$made/sgd.pt"
not_taken 3 'amsgrad.pt: holds "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"; the state of AdamW and Adam, without amsgrad' "$made/amsgrad.pt"
not_taken 3 'two.pt: holds the state of 2 optimizers, not of one' "$made/two.pt"
not_taken 3 'new.pt: holds no state: was it saved before the first step' "$made/new.pt"
not_taken 3 'training.pt: holds the state of 2 parameters, but the model has 6' "$made/../pytorch_files/training.pt"
not_taken 3 'tensors.pt: holds the state of 0 optimizers' "$made/../pytorch_files/tensors.pt"
not_taken 3 'half.h5: ' half.h5
not_taken 3 'nowhere.pt: ' nowhere.pt
cp "$made/half.pt" state.h5
refused 2 'is an input, which is never replaced' "$LOCKSTEP" convert half.h5 state.h5 --config run.ini --optimizer state.h5 --force
refused 2 '--optimizer: needs OUT.h5, and --config CONFIG.ini' "$LOCKSTEP" convert "$made/half.pt" no.h5 --optimizer "$made/half.pt"
refused 2 '--optimizer: needs OUT.h5, and --config CONFIG.ini' \
  "$LOCKSTEP" convert "$made/half.pt" no.pt --config run.ini --optimizer "$made/half.pt"
refused 2 '--optimizer: the file name is missing' "$LOCKSTEP" convert "$made/half.pt" no.h5 --config run.ini --optimizer ''
weights() {
  sed "s/^sizes.*/sizes = $1/" run.ini >other.ini
  $python - "$1" <<'PY' || fail "weights of $1"
import sys, h5py, numpy as np
sizes = [int(size) for size in sys.argv[1].split()]
with h5py.File("other.h5", "w") as file:
    for layer, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        file[f"model/net.{2 * layer}.weight"], file[f"model/net.{2 * layer}.bias"] = np.zeros((outputs, inputs), "f4"), np.zeros(outputs, "f4")
PY
}
weights "3 4 2 4"
not_taken 3 'old.pt: .*: net.2.weight is \[2, 4\] in the model, next in the groups: "2" \[4, 4\]; .* param_names' "$made/old.pt" other.ini other.h5
weights "3 3 3"
not_taken 3 'either.pt: .*: net.0.weight is \[3, 3\] in the model, next in the groups: "0" \[3, 3\], "2" \[3, 3\]; .* param_names' \
  "$made/either.pt" other.ini other.h5
weights "3 4 3"
not_taken 3 'named.pt: exp_avg of net.0.weight is float32 \[3, 3\], not floats \[4, 3\]' "$made/named.pt" other.ini other.h5
sed -i 's/^name = adamw/name = sgd/; /^betas/d' run.ini
"$LOCKSTEP" convert "$made/half.pt" for_sgd.h5 --config run.ini --optimizer "$made/half.pt" >/dev/null 2>log || fail "for sgd: $(cat log)"
grep -q 'the state is of optimizer.name = adamw, but run.ini has sgd' log || fail "for sgd: $(cat log)"
refused 2 'half.h5: holds the state of adamw, but optimizer.name = sgd' "$LOCKSTEP" train run.ini --run sgd --fork half.h5

# Folders of several files.
mkdir dcp zero zero/global_step5
touch dcp/.metadata dcp/__0_0.distcp zero/zero_to_fp32.py zero/global_step5/mp_rank_00_model_states.pt
for path in dcp dcp/__0_0.distcp dcp/.metadata; do
  text="$path: is a checkpoint of torch.distributed.checkpoint; .*: python -m torch.distributed.checkpoint.format_utils dcp_to_torch dcp model.pt"
  for words in "convert $path no.h5" "eval $path" "inspect $path" "train square.ini --run no --set train.init=$path" "train square.ini --run no --fork $path" \
    "convert other.h5 no.h5 --config other.ini --optimizer $path"; do
    # shellcheck disable=SC2086
    refused 3 "$text" "$LOCKSTEP" $words
  done
done
for path in zero zero/global_step5; do
  refused 3 "$path: is a checkpoint of DeepSpeed; .*: python zero/zero_to_fp32.py zero OUT" "$LOCKSTEP" convert $path no.h5
done
finish
