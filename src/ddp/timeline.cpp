#include "lockstep/ddp/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/system_error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::ddp {

Timeline::Timeline(std::string path, comm::Communicator& communicator)
    : path_(std::move(path)), communicator_(communicator) {
  comm::together(communicator, [&] {
    if (communicator.rank() == 0) replace_file("");  // better now than at the end of the run
  });
  spans_.reserve(most_spans);
  communicator.barrier();
  zero_s_ = monotonic_s();
  if (communicator.topology().nodes() == 1) communicator.broadcast(&zero_s_, sizeof zero_s_, 0);
}

void Timeline::add(const char* name, int row, std::int64_t step, double start_s, double end_s) {
  if (spans_.size() == most_spans) {
    ++dropped_;
    return;
  }
  spans_.push_back({name, row, step, start_s, end_s});
}

/// This rank's events, a line each, every line with a comma behind: names are our own, so none needs escapes.
std::string Timeline::as_json() const {
  const int rank = communicator_.rank();
  std::string text = fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}},)"
                                 "\n",
                                 rank, rank);
  int rows = 0;
  for (const Span& span : spans_) rows = std::max(rows, span.row + 1);
  for (int row = 0; row < rows; ++row) {
    const std::string name = row == Row::steps     ? "step"
                             : row == Row::compute ? "compute"
                                                   : fmt::format("bucket {}", row - Row::buckets);
    fmt::format_to(std::back_inserter(text),
                   R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
                   "\n",
                   rank, row, name);
  }
  for (const Span& span : spans_) {
    fmt::format_to(
        std::back_inserter(text),
        R"({{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.1f},"dur":{:.1f},"args":{{"step":{}}}}},)"
        "\n",
        span.name, rank, span.row, (span.start_s - zero_s_) * 1e6,
        std::max(0.0, span.end_s - span.start_s) * 1e6, span.step);
  }
  return text;
}

std::int64_t Timeline::write() const {
  const std::vector<std::string> texts = communicator_.all_gather_texts(as_json());
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    std::string all;
    for (const std::string& text : texts) all += text;
    all.erase(all.find_last_of(','));
    replace_file(all);
  });
  return dropped_;
}

void Timeline::replace_file(const std::string& events) const {
  const std::string temporary = path_ + ".tmp";
  std::ofstream file(temporary, std::ios::trunc);
  if (!(file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" << events << "\n]}\n" << std::flush))
    throw_system_error(errno, temporary, "write");
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) throw_system_error(errno, path_, "replace");
}

}  // namespace lockstep::ddp
