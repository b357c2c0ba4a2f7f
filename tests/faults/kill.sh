#!/usr/bin/env bash
# kill.sh [all|one] [async]: SIGKILL of any rank at the points of a save. Whatever it hits, the newest checkpoint is whole, the
# run resumes on 1 to 4 ranks, ends in the bits of a run without a kill, and leaves no temporary file.
# The points are those of a traced save; a kind of them is a rank, a call and a file. `all`: before, after and in the middle. `one`: in the
# middle of a write.
source "$(dirname "$0")/faults.sh"
fault_step=6

mode "$@"
all=false
if [ "$amount" = all ]; then
  all=true
  export OMPI_MCA_odls_base_sigkill_timeout=1  # the others have time to do something
fi
prepare_base

# strikes RANKS: "RANK NTH WHEN CALL FILE" of each kill: in the save of step 6, with the pruning that follows it.
strikes() {
  points from_base "$1" subject/checkpoints
  awk -v all=$all -v step="step-00000000$fault_step" -v next_step="step-00000000$last_step" '
    index($4, step) { saving[$1] = 1 }
    index($4, next_step) { saving[$1] = 0 }
    saving[$1] && ($1 == 0 || index($4, step)) { line[++lines] = $0 }
    END {
      for (i = 1; i <= lines; ++i) {
        split(line[i], field, " ")
        rank = field[1]; nth = field[2]; what = field[3] " " field[4]
        kind = rank " " what
        if (all == "true" || !(kind in seen)) print rank, nth, "before", what
        if (all == "true" && field[3] ~ /write/) print rank, nth, "middle", what
        if (all == "true") print rank, nth, "after", what
        if (!(kind in seen)) seen[kind] = nth
        last_of[kind] = nth
      }
      if (all == "true") exit
      for (kind in seen) {
        split(kind, field, " ")
        what = field[2] " " field[3]
        if (field[2] == "pwrite") print field[1], int((seen[kind] + last_of[kind] + 1) / 2), "middle", what
        if (field[2] ~ /pwrite|create|rename|symlink|unlink/) print field[1], last_of[kind], "after", what
      }
    }' points.log | LC_ALL=C sort -k1,1n -k3,3 -k5,5 -k4,4 -k2,2n
}

kills=0 turn=0
at() {  # at RANKS: kills runs of that many
  local ranks=$1 rank nth when call file what named
  strikes "$ranks" >strikes.log
  for rank in $(seq 0 $((ranks < 3 ? ranks - 1 : 2))); do
    grep -q "^$rank .* pwrite .step-00000000$fault_step.h5" strikes.log || fail "rank $rank of $ranks writes nothing"
  done
  for what in "create .*tmp" "fsync .*tmp" "rename .*tmp" "fsync checkpoints" "unlink step-000000002.h5"; do
    grep -Eq "^0 .* $what\$" strikes.log || fail "no point '$what' among those of $ranks ranks"
  done
  [ "$amount" != one ] || sed -i -n '/^1 .* middle pwrite/ { p; q }' strikes.log
  while read -r rank nth when call file; do
    taken $((turn++)) || continue
    case="kill $when $call $nth of $file on rank $rank of $ranks"
    ((++kills))
    from_base
    train_with "$(at_point "$rank" "$nth" "$call" "$file") path=subject/checkpoints kill=$when" "$ranks" </dev/null && fail "$case: the run ended well"
    struck killed
    whole_newest
    # What has its name stays: when all is written rank 0 renames it, and then has to do with other files.
    case "$when $call $file" in
      "after rename .step-"*) named=true ;;
      *" .step-"*) named=false ;;
      *) named=true ;;
    esac
    ! $named || [[ ! "$(newest)" < "subject/checkpoints/step-00000000$fault_step.h5" ]] || fail "$case: $(newest) is the newest"
    goes_on $((kills % 4 + 1)) </dev/null
  done <strikes.log
}

at 2
! $all || { at 1; at 3; }
[ "$kills" -gt 0 ] || fail "nothing was killed"
echo "figures: $kills kills"
finish
