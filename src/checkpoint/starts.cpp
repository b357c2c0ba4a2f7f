#include "checkpoint/starts.h"

#include <fmt/format.h>

#include <sstream>

#include "base/output.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

void Starts::add(std::int64_t step) {
  Counts counts = read();
  ++counts[step];
  write(counts);
}

void Starts::take_back(std::int64_t step) {
  Counts counts = read();
  const auto found = counts.find(step);
  if (found == counts.end()) return;
  if (--found->second <= 0) counts.erase(found);
  write(counts);
}

void Starts::forget_up_to(std::int64_t step) {
  Counts counts = read();
  if (counts.empty() || counts.begin()->first > step) return;
  counts.erase(counts.begin(), counts.upper_bound(step));
  write(counts);
}

/// A file that is not there, or is not ours, counts nothing: it is advice.
Starts::Counts Starts::read() const {
  Counts counts;
  try {
    if (!exists(path_)) return counts;
    std::istringstream lines(read_text(path_));
    std::int64_t step = 0;
    for (int starts = 0; lines >> step >> starts;) counts[step] = starts;
  } catch (const Error&) {
  }
  return counts;
}

void Starts::write(const Counts& counts) const {
  if (counts.empty()) return remove_file(path_);
  std::string text;
  for (const auto& [step, starts] : counts) text += fmt::format("{} {}\n", step, starts);
  write_text_atomically(path_, text);
}

}  // namespace lockstep::checkpoint
