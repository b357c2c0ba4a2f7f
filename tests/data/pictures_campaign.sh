#!/usr/bin/env bash
# pictures_campaign.sh COUNT: COUNT pictures of every kind (make_pictures.py, by $PYTHON with Pillow), trained from the folder and from the
# packed file to the same bits at 1, 2 and 3 ranks, killed and resumed; broken ones are refused by name, or left out and named.
source "$(dirname "$0")/../support/cli.sh"

broken=$("$PYTHON" "$LOCKSTEP_SOURCE_DIR/tests/data/make_pictures.py" pictures "$1") || fail "making pictures"
cat >run.ini <<'INI'
[model]
name = resnet
blocks = 1 1
width = 8
in_channels = 3
classes = 10
[data]
train = pictures
size = 32
skip_bad = true
augment = random_resized_crop flip color_jitter=0.4
[train]
steps = 60
global_batch = 48
shards = 6
[optimizer]
lr = 0.01
[checkpoint]
every = 20
keep = 9
INI
refused 3 "pictures/wave.*(truncated|empty|not a picture|neither)" ranks 2 prepare images pictures --out refused.h5
ranks 2 prepare images pictures --out packed.h5 --files 3 --skip-bad >prepare.log 2>&1 || fail "prepare: $(tail -n 3 prepare.log)"
[ "$(grep -c 'left out: ' prepare.log)" -ge 1 ] || fail "prepare names no broken picture"
train_to_end folder 1
[ "$(grep -c 'left out: ' log-folder)" -eq "$broken" ] || fail "of $broken broken pictures $(grep -c 'left out: ' log-folder) are named"
packed=$(echo packed-*.h5)
train_to_end packed 2 data.train="$packed" data.skip_bad=false
expect_same folder/checkpoints/latest packed/checkpoints/latest
train_to_end three 3 data.train="$packed" data.skip_bad=false data.threads=2 data.ahead=3
expect_same folder/checkpoints/latest three/checkpoints/latest
kill_when killed/checkpoints/step-000000020.h5 2 train run.ini --run killed
train_to_end killed 3
expect_same folder/checkpoints/latest killed/checkpoints/latest
finish
