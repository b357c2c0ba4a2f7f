#include "lockstep/ddp/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/output.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::ddp {
namespace {

constexpr std::string_view file_start = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

}  // namespace

Timeline::Timeline(std::string path, comm::HostGroup& group) : path_(std::move(path)), group_(group) {
  const comm::NamedCall call(group, "makes a Timeline");
  comm::run_on_all(group, [&] {
    if (group.rank() == 0) check_writable();  // before the run, not after it
  });
  spans_.reserve(max_spans);
  group.barrier();
  zero_s_ = monotonic_s();
  if (group.topology().nodes() == 1) group.broadcast(&zero_s_, sizeof zero_s_, 0);
}

void Timeline::add(const char* name, int row, std::int64_t step, double start_s, double end_s) {
  if (spans_.size() == max_spans) {
    ++dropped_;
    return;
  }
  spans_.push_back({name, row, step, start_s, end_s});
}

/// This rank's events, one a line, each followed by a comma. No name needs escapes.
std::string Timeline::as_json() const {
  const int rank = group_.rank();
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
  const comm::NamedCall call(group_, "calls Timeline::write");
  std::string all, text;
  std::int64_t dropped = 0;
  bool any = !spans_.empty();
  group_.broadcast(&any, sizeof any, 0);
  if (!any) return 0;  // a run without steps does not replace an existing trace
  for (int rank = 0; rank < group_.size();
       ++rank) {  // one rank after another, as only rank 0 needs memory for all
    text = group_.rank() == rank ? as_json() : "";
    std::int64_t sizes[] = {static_cast<std::int64_t>(text.size()), dropped_};
    group_.broadcast(sizes, sizeof sizes, rank);
    text.resize(static_cast<std::size_t>(sizes[0]));
    group_.broadcast(text.data(), text.size(), rank);
    dropped += sizes[1];
    if (group_.rank() == 0) all += text;
  }
  comm::run_on_all(group_, [&] {
    if (group_.rank() != 0) return;
    check_writable();  // the file may have changed since the start
    all.erase(all.find_last_of(','));
    write_text_atomically(path_, fmt::format("{}{}\n]}}\n", file_start, all));
  });
  return dropped;
}

void Timeline::check_writable() const {
  check_output(path_, {.replace = true});  // a requeued job replaces its own trace
  if (!exists(path_)) return;
  const OpenFile file(path_, OpenFile::Mode::read);
  std::string start(std::min<std::uint64_t>(file_start.size(), file.size()), '\0');
  file.read_at(0, start.data(), start.size());
  if (start != file_start)
    throw UsageError("{}: exists and is not a trace; choose another name for the trace", path_);
}

}  // namespace lockstep::ddp
