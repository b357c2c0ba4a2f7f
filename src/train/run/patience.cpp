#include "train/run/patience.h"

#include <fmt/format.h>

#include "base/text.h"
#include "lockstep/base/option.h"

namespace lockstep::train {

void Patience::add(std::int64_t step, double value) {
  if (step <= last_step_) return;
  last_step_ = step;
  ++count_;
  if (value != value || (best_ && (better_ == Better::lower ? value >= *best_ : value <= *best_))) return;
  count_ = 0;
  best_ = value;
  best_step_ = step;
}

std::string Patience::why() const {
  return fmt::format("{} (train.patience) did not improve {}{}", pluralized(count_, "evaluation"), metric_,
                     best_ ? fmt::format(", {} after step {}", figure(*best_), best_step_) : "");
}

std::string Patience::to_text() const {
  return fmt::format("{} {} {} {} {}", metric_, count_, last_step_, best_step_,
                     best_ ? fmt::to_string(*best_) : "none");
}

void Patience::restore(const std::string& text) {
  const std::vector<std::string> words = option::words_of(text);
  if (words.size() != 5 || words[0] != metric_) return;
  parse_number(words[1], count_);
  parse_number(words[2], last_step_);
  parse_number(words[3], best_step_);
  if (double best = 0; parse_number(words[4], best)) best_ = best;
}

}  // namespace lockstep::train
