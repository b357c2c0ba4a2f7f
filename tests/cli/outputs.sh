#!/usr/bin/env bash
# Nothing is overwritten unasked: every verb and log that makes a file refuses one that is there, its own inputs, and what is no
# regular file; files that a run owns are replaced, and never written through a link; a verb that is stopped leaves nothing.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
words words.h5
printf '1.5,2,3,0\n2.5,1,0,1\n' >two.csv
small_mlp 'steps = 4' 'global_batch = 24' 'shards = 2' >good.ini
"$LOCKSTEP" train good.ini --run run >/dev/null 2>&1 || fail "train"
checkpoint=$(readlink -f run/checkpoints/latest)

files() {
  find . -type f ! -name '*.log' -exec sha256sum {} + | sort
  find . ! -type f -printf '%p %y %l\n' | sort
}
# untouched CODE TEXT ARGUMENTS...: ends with CODE and TEXT, and no file in this folder has changed.
untouched() {
  local before
  before=$(files)
  ends "$1" "$2" timeout 60 "$LOCKSTEP" "${@:3}"
  [ "$before" = "$(files)" ] || fail "lockstep ${*:3}: changed files: $(diff <(echo "$before") <(files))"
}

echo precious >notes.h5
mkdir texts
echo text >texts/a.txt
cp two.csv texts/two.csv
mkfifo pipe.h5
ln -s notes.h5 link.h5
ln -s elsewhere.h5 dangling.h5
mknod device.h5 c 1 3 2>/dev/null || rm -f device.h5  # root only

for verb in "prepare csv two.csv --out" "prepare text two.csv --out" "convert $checkpoint" "ema run --sigma-rel 0.1 --out"; do
  # shellcheck disable=SC2086  # several words
  {
    untouched 2 "notes.h5: already exists; --force replaces it" $verb notes.h5
    for force in "" --force; do
      untouched 2 "pipe.h5: is a named pipe, which is never replaced" $verb pipe.h5 $force
      untouched 2 "link.h5: is a symbolic link, which is never replaced" $verb link.h5 $force
      untouched 2 "dangling.h5: is a symbolic link" $verb dangling.h5 $force
      [ ! -e device.h5 ] || untouched 2 "device.h5: is a device, which is never replaced" $verb device.h5 $force
      untouched 2 "there is no directory nowhere" $verb nowhere/new.h5 $force
    done
  }
done
untouched 2 "the name of the output file is empty" prepare csv two.csv --out ''
untouched 2 "two.csv: is an input" prepare csv two.csv --out two.csv --force
untouched 2 "two.csv: is an input" prepare text texts/../two.csv --out ./two.csv --force
untouched 2 "a.txt: is an input" prepare text texts --out texts/a.txt --force
untouched 2 "words.h5: is an input" prepare csv two.csv --statistics words.h5 --out words.h5 --force
untouched 2 "is an input" convert "$checkpoint" "$checkpoint" --force
"$LOCKSTEP" prepare csv two.csv --out notes.h5 --force >/dev/null || fail "prepare --force"
"$LOCKSTEP" convert "$checkpoint" notes.h5 --force >/dev/null || fail "convert --force"

# A log, too; a trace of the run's own is replaced, so that a requeued job goes on.
untouched 2 "two.csv: exists and is not a trace" train good.ini --run traced --set log.trace=two.csv
untouched 2 "pipe.h5: is a named pipe" train good.ini --run traced --set log.trace=pipe.h5
for steps in 4 6; do
  "$LOCKSTEP" train good.ini --run traced --set log.trace=trace.json --set train.steps=$steps >/dev/null 2>&1 ||
    fail "a trace of $steps steps"
done

"$LOCKSTEP" train good.ini --run late --set log.trace=late/config.ini >/dev/null 2>err.log
[ $? -eq 2 ] || fail "a trace in the place of a file that the run has made meanwhile: $(cat err.log)"
grep -q '^\[model\]' late/config.ini || fail "the trace replaced the configuration"

# What a run writes in its directory is not written through links, and pipes do not hold it up.
echo precious >victim
mkdir away
for name in lock metrics.jsonl; do
  mkdir "linked-$name" "piped-$name"
  ln -s "$PWD/victim" "linked-$name/$name"
  mkfifo "piped-$name/$name"
  for kind in linked piped; do
    refused 2 "$name: cannot create: it (is a symbolic link, which Lockstep does not follow|exists and is not a regular file); remove it" \
      timeout 60 "$LOCKSTEP" train good.ini --run "$kind-$name"
  done
done
[ "$(cat victim)" = precious ] || fail "the file that a link leads to was written"
mkdir run-elsewhere
ln -s "$PWD/away" run-elsewhere/checkpoints
"$LOCKSTEP" train good.ini --run run-elsewhere >/dev/null 2>&1 || fail "a run whose checkpoints lie elsewhere"
[ -n "$(ls away)" ] || fail "checkpoints did not go where the directory's link leads"
untouched 3 "pipe.h5: cannot open: .*not a regular file" train good.ini --run piped --set data.train=pipe.h5
untouched 3 "pipe.h5: cannot open: not a regular file" prepare csv pipe.h5 --out new.h5
untouched 3 "/dev/zero: cannot open: not a regular file" prepare text /dev/zero --out new.h5

# A verb that is stopped takes its draft along.
mkdir bench
"$LOCKSTEP" bench checkpoint --directory bench --rounds 1000000 >/dev/null 2>&1 &
for ((tries = 0; tries < 600; ++tries)); do
  [ -z "$(find bench -name '*.h5')" ] || break
  sleep 0.1
done
kill -TERM $!
wait $! 2>/dev/null
[ -z "$(ls -A bench)" ] || fail "bench checkpoint left $(ls -A bench)"
finish
