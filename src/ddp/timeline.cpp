#include "lockstep/ddp/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::ddp {
namespace {

constexpr std::string_view file_start = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

}  // namespace

Timeline::Timeline(std::string path, comm::Communicator& communicator)
    : path_(std::move(path)), communicator_(communicator) {
  comm::together(communicator, [&] {
    if (communicator.rank() == 0) check_writable();  // better now than at the end of the run
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
  std::string all, text;
  std::int64_t dropped = 0;
  bool any = !spans_.empty();
  communicator_.broadcast(&any, sizeof any, 0);
  if (!any) return 0;  // a run that was over already keeps the trace it has
  for (int rank = 0; rank < communicator_.size(); ++rank) {  // one after another: only rank 0 keeps them
    text = communicator_.rank() == rank ? as_json() : "";
    std::int64_t sizes[] = {static_cast<std::int64_t>(text.size()), dropped_};
    communicator_.broadcast(sizes, sizeof sizes, rank);
    text.resize(static_cast<std::size_t>(sizes[0]));
    communicator_.broadcast(text.data(), text.size(), rank);
    dropped += sizes[1];
    if (communicator_.rank() == 0) all += text;
  }
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    all.erase(all.find_last_of(','));
    replace_file(all);
  });
  return dropped;
}

std::string Timeline::temporary_path() const { return path_ + ".tmp"; }

void Timeline::check_writable() const {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path directory = fs::path(path_).parent_path();
  if (!directory.empty() && !fs::is_directory(directory, none))
    throw UsageError("{}: there is no directory {} to write a trace in; make it", path_, directory.string());
  if (fs::exists(path_, none)) {
    std::string start(file_start.size(), '\0');
    const bool is_file = fs::is_regular_file(path_, none);  // nothing else is opened: a pipe would not answer
    if (is_file) std::ifstream(path_).read(start.data(), static_cast<std::streamsize>(start.size()));
    if (!is_file || start != file_start)
      throw UsageError("{}: is there already and is no trace; give the trace a name of its own", path_);
  }
  const std::string temporary = temporary_path();
  if (!std::ofstream(temporary, std::ios::app)) throw_system_error(errno, temporary, "write");
  std::remove(temporary.c_str());
}

void Timeline::replace_file(const std::string& events) const {
  const std::string temporary = temporary_path();
  std::ofstream file(temporary, std::ios::trunc);
  if (!(file << file_start << events << "\n]}\n" << std::flush))
    throw_system_error(errno, temporary, "write");
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) throw_system_error(errno, path_, "replace");
}

}  // namespace lockstep::ddp
