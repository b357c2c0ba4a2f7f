#!/usr/bin/env bash
# storage.sh [all|one] [async]: a call on a file of the run fails on one rank, once or from then on, with ENOSPC, EDQUOT,
# EROFS or EIO. Every rank ends with the same one line and exit 3 (5 for EIO), earlier checkpoints are untouched, and the next
# start goes on to the bits of a run without a fault, with nothing temporary left.
# The calls are those of a traced run, the errors come in turn, once or from then on; `all`: both. `one`: a full disk.
source "$(dirname "$0")/faults.sh"

mode "$@"
all=false
[ "$amount" != all ] || all=true
prepare_base

declare -A text_of=([ENOSPC]="No space left on device" [EDQUOT]="Disk quota exceeded" [EROFS]="Read-only file system"
  [EIO]="Input/output error")
errors=(ENOSPC EDQUOT EROFS EIO) durations=(always once)

# ended CODE ERROR: as a run whose storage fails must end.
ended() {
  local expected=3
  [ "$2" != EIO ] || expected=5
  [ "$1" -eq $expected ] || fail "$case: exit $1, expected $expected: $(grep '^lockstep: ' err.log | head -n 3)"
  one_error "$case" "subject.*${text_of[$2]}"
}

# survived CODE [TEXT]: a run that need not mind what failed.
survived() {
  [ "$1" -eq 0 ] || fail "$case: exit $1, expected 0: $(grep '^lockstep: ' err.log)"
  [ -z "${2:-}" ] || grep -q "warning: .*$2" err.log || fail "$case: no warning '$2': $(cat err.log)"
}

# complete CODE: what failed came after the last checkpoint, and is no part of the run: its report, the record of its end.
complete() {
  survived "$1"
  expect_same reference.h5 subject/checkpoints/latest
}

cases=0 resume_ranks=2
! $all || resume_ranks=4
# strike PLACE RANKS RANK NTH CALL FILE ERROR DURATION: one case; the duration is once or always.
strike() {
  local place=$1 ranks=$2 rank=$3 nth=$4 call=$5 file=$6 error=$7 duration=$8 code
  [[ "$call" != open ]] || error=EIO  # the others are no reasons not to open a file for reading
  case="$error $duration from $call $nth of $file on rank $rank of $ranks ($place)"
  ((++cases))
  "$place"
  train_with "$(at_point "$rank" "$nth" "$call" "$file") path=subject errno=$error ${duration/once/}" "$ranks"
  code=$?
  struck failed
  case "$place $duration $call $file" in
    "from_base once mkdir "* | *" unlink lock" | *" once open starts")  # there already; the next start copes; advice only
      survived "$code" ;;
    *" once unlink step-"*)
      survived "$code" "an old checkpoint stays" ;;
    *" once pwrite metrics.jsonl" | *" once pwrite events.out.tfevents."*)  # logs; at its start the run ends
      if [ "$code" -eq 0 ]; then survived "$code" "the run continues, and what it logs"; else ended "$code" "$error"; fi ;;
    *" once fsync metrics.jsonl" | *" once fsync events.out.tfevents."*)
      if [ "$code" -eq 0 ]; then survived "$code" "the run continues, and what it logs"; else ended "$code" "$error"; fi ;;
    *" once "*" .exit.json.tmp") complete "$code" ;;  # the open record of the start, or that of the end
    *" .exit.json.tmp") if [ "$code" -eq 0 ]; then complete "$code"; else ended "$code" "$error"; fi ;;
    *" .report.html.tmp" | *" open report.html" | *" open samples" | *" open metrics.jsonl") complete "$code" ;;  # the report
    # The record of how the last start ended, which is only told, and the open record of this one.
    *" open exit.json" | *" once open lock" | *" once open subject" | *" once fsync subject" | *" once unlink exit.json" | \
      *" open step-000000008.h5")
      if [ "$code" -eq 0 ]; then complete "$code"; else ended "$code" "$error"; fi ;;
    *) ended "$code" "$error" ;;
  esac
  [ "$place" = from_nothing ] || [ "$code" -eq 0 ] || whole_newest
  goes_on $((cases % resume_ranks + 1))
}

# sweep PLACE RANKS: the calls of a run from there; from nothing, those before the first checkpoint.
sweep() {
  local place=$1 ranks=$2 rank nth call file point=0 turn=0 duration
  points "$place" "$ranks" subject
  awk -v all=$all -v place="$place" '
    { kind = $1 " " $3 " " $4 }
    place == "from_nothing" && /step-/ { exit }
    place == "from_nothing" && all == "false" && $3 != "mkdir" && $4 !~ /config/ { next }
    all == "true" || !(kind in seen) { print }
    { seen[kind] = 1 }' points.log | LC_ALL=C sort -k1,1n -k4,4 -k3,3 -k2,2n >strikes.log
  [ "$amount" != one ] || sed -i -n '/^1 .* pwrite/ { p; q }' strikes.log
  while read -r rank nth call file; do
    taken $((point++)) || continue
    for duration in once always; do
      $all || [ $duration = "${durations[turn / 4 % 2]}" ] || continue
      strike "$place" "$ranks" "$rank" "$nth" "$call" "$file" "${errors[turn % 4]}" "$duration" </dev/null
    done
    ((++turn))
  done <strikes.log
}

sweep from_base 2
[ "$cases" -gt 0 ] || fail "nothing failed"
[ "$amount" != one ] || { finish; exit; }
sweep from_nothing 2

# A write may take only some of the bytes: that is no error, until the next one takes none.
case="short writes"
from_base
train_with "call=write,pwrite path=subject/checkpoints short" 2 || fail "$case: exit $?: $(cat err.log)"
struck shortened
expect_same reference.h5 subject/checkpoints/latest
case="a short write, then a full disk"
from_base
train_with "rank=1 nth=3 call=pwrite path=subject/checkpoints short errno=ENOSPC" 2
ended $? ENOSPC
struck failed
whole_newest
goes_on 2

# A network file system may show another rank the name of a draft late.
case="a draft that is seen late"
from_base
train_with "rank=1 call=open path=subject/checkpoints/.step- errno=ENOENT" 2 || fail "$case: exit $?: $(cat err.log)"
struck failed
expect_same reference.h5 subject/checkpoints/latest

# What reads asks for no write: a run on storage that became read-only can be looked at.
from_base
read_only="call=create,write,pwrite,mkdir,unlink,rename,symlink,ftruncate path=subject errno=EROFS always"
for words in "verify subject/checkpoints/latest" "inspect subject/checkpoints/latest" \
  "eval subject/checkpoints/latest --data digits.h5" \
  "diff subject/checkpoints/latest subject/checkpoints/step-000000002.h5"; do
  case="$words on read-only storage"
  # shellcheck disable=SC2086
  LD_PRELOAD=$LOCKSTEP_FAULT_LIBRARY LOCKSTEP_FAULT="$read_only" "$LOCKSTEP" $words >out.log 2>err.log
  code=$?
  [ "$code" -eq 0 ] || { [ "$code" -eq 1 ] && [ "${words%% *}" = diff ]; } || fail "$case: exit $code: $(cat err.log)"
done
echo "figures: $cases cases"
finish
