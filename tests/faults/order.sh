#!/usr/bin/env bash
# order.sh [async]: what a kill cannot show, because the system outlives it: that a checkpoint is durable before it is named,
# named before it counts, and that only then an old one goes. The calls of all ranks, by the times at which they began and ended.
source "$(dirname "$0")/faults.sh"

mode "$@"
small_run

for count in 1 2 3; do
  rm -rf subject
  train_with "path=subject trace" "$count" || fail "$count ranks: $(cat err.log)"
  sed -E 's/^fault: rank=([0-9]+) nth=[0-9]+ call=([a-z]+) passed from=([0-9.]+) to=([0-9.]+) path=/\1 \2 \3 \4 /' fault.log |
    sort -s -g -k3,3 >calls.log
  awk -v ranks="$count" '
    function bad(text) { print text " (" path ")"; broken = 1 }
    {
      rank = $1; call = $2; from = $3; to = $4; path = $5; target = $7
      draft = match(path, /step-[0-9]*\.h5\.[^\/]*tmp$/) ? substr(path, RSTART, 17) : ""
    }
    draft != "" && (call == "pwrite" || call == "write" || call == "ftruncate") {
      if (draft in named) bad("written after it was named")
      dirty[draft, rank] = to; writers[draft, rank] = 1
    }
    draft != "" && call == "fsync" {
      if (from < dirty[draft, rank]) bad("rank " rank ": synced while it was written")
      delete dirty[draft, rank]
      if (to > synced[draft]) synced[draft] = to
    }
    call == "rename" && draft != "" {
      for (writer in dirty) {
        split(writer, part, SUBSEP)
        if (part[1] == draft) bad("named before rank " part[2] " synced what it wrote")
      }
      if (from < synced[draft]) bad("named while a rank still synced")
      named[draft] = to; newest = draft; durable = 0; linked = 0; settled = 0; ++saves
      wrote = 0
      for (writer in writers) { split(writer, part, SUBSEP); wrote += part[1] == draft }
      if (wrote != ranks) bad(wrote " of " ranks " ranks wrote")
    }
    call == "fsync" && path ~ /\/checkpoints$/ {
      if (from < named[newest]) bad("its directory synced while it was named")
      if (from < linked) bad("its directory synced while latest was made to name it")
      durable = 1
      settled = linked
    }
    call == "rename" && target ~ /\/latest$/ {
      if (!durable) bad("latest names it before the directory is synced")
      linked = to; ++links
    }
    call == "unlink" && path ~ /\/step-[0-9]*\.h5$/ {
      if (!durable) bad("an old one removed before the new one is durable")
      if (!settled) bad("an old one removed before it is on storage that latest names the new one")
      ++pruned
    }
    END {
      if (saves != 4 || links != 4 || pruned != 2) bad(saves " saves, " links " links, " pruned " pruned: expected 4, 4, 2")
      exit broken
    }' calls.log >order.log || fail "$count ranks: $(sort -u order.log | head -n 5)"
done
finish
