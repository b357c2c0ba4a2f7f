#include "train/hang_judge.h"

namespace lockstep::train {

void HangJudge::see(int rank, const Sight& sight, double now_s) {
  Seen& seen = of(rank);
  if (!seen.known || sight.marks != seen.sight.marks) seen.marked_s = now_s;
  if (!seen.known || sight.beats != seen.sight.beats) seen.beaten_s = now_s;
  if (!seen.known || !sight.polling || sight.looks != seen.sight.looks) seen.looked_s = now_s;
  seen.sight = sight;
  seen.known = true;
}

HangJudge::State HangJudge::state(int rank, double now_s) const {
  if (!known(rank)) return State::fine;
  if (silent_s(rank, now_s) > timeout_s_) return State::silent;
  const Seen& seen = of(rank);
  const bool waits = seen.sight.waiting && now_s - seen.looked_s <= timeout_s_;
  if (!waits && idle_s(rank, now_s) > timeout_s_) return State::stuck;
  return State::fine;
}

bool HangJudge::all_wait(double now_s) const {
  bool any = false;
  for (const Seen& seen : seen_) {
    if (!seen.known) continue;
    if (!seen.sight.waiting || now_s - seen.marked_s <= timeout_s_ + slack_s_) return false;
    any = true;
  }
  return any;
}

}  // namespace lockstep::train
