#include "report/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "report/record_file.h"

namespace lockstep::report {
namespace {

constexpr std::string_view prefix = "events.out.tfevents.", suffix = ".lockstep";

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "host";
  return name.data();
}

/// Names of the files of earlier starts, in order.
std::vector<std::string> earlier_files(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) names.push_back(name);
  }
  if (error) throw_system_error(error.value(), directory, "list the directory");
  std::ranges::sort(names);
  return names;
}

/// A name behind all of them, whatever the clocks of the hosts say.
std::string next_name(const std::vector<std::string>& earlier) {
  auto seconds = static_cast<std::int64_t>(wall_clock_s());
  if (!earlier.empty()) {
    std::int64_t last = 0;
    const std::string_view digits = std::string_view(earlier.back()).substr(prefix.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), last);
    seconds = std::max(seconds, last + 1);
  }
  return fmt::format("{}{:010}.{}{}", prefix, seconds, host_name(), suffix);
}

/// Removes what the run repeats, and what is incomplete. True if an event is left.
bool keep_up_to(const std::string& path, const ResumePoint& point) {
  std::uint64_t kept_bytes = 0, size = 0;
  {
    const OpenFile file(path, OpenFile::Mode::read);
    size = file.size();
    RecordReader records(file);
    while (const std::optional<std::string_view> record = records.next()) {
      const EventView event(*record);
      if (event.has_values && point.keeps(event.step, event.has_tag(metric_of_evaluations)))
        kept_bytes = records.position();
    }
  }
  if (kept_bytes == 0)
    remove_file(path);
  else if (kept_bytes < size)
    OpenFile(path, OpenFile::Mode::write).truncate(kept_bytes);
  return kept_bytes > 0;
}

/// As has_event(). `earlier`: whether a file before this one may hold such an event.
bool holds(const std::string& path, std::int64_t step, std::string_view tag, bool& earlier) {
  const OpenFile file(path, OpenFile::Mode::read);
  RecordReader records(file);
  while (const std::optional<std::string_view> record = records.next()) {
    const EventView event(*record);
    if (!event.has_values) continue;
    earlier = earlier && event.step >= step;
    if (event.step == step && event.has_tag(tag)) return true;
  }
  return false;
}

}  // namespace

bool has_event(const std::string& directory, std::int64_t step, std::string_view tag) {
  const std::vector<std::string> names = earlier_files(directory);
  bool earlier = true;
  for (auto name = names.rbegin(); earlier && name != names.rend(); ++name)
    if (holds(directory + "/" + *name, step, tag, earlier)) return true;
  return false;
}

EventFile::EventFile(const std::string& directory, const ResumePoint& point) {
  make_directories(directory);
  const std::vector<std::string> earlier = earlier_files(directory);
  for (auto name = earlier.rbegin(); name != earlier.rend(); ++name)
    if (keep_up_to(directory + "/" + *name, point)) break;  // those before it have no later steps
  file_ =
      std::make_unique<OpenFile>(directory + "/" + next_name(earlier), OpenFile::Mode::create_or_truncate);
  const double now_s = wall_clock_s();
  file_->append(record_of(encoded_version(now_s)));
  if (!earlier.empty()) file_->append(record_of(encoded_restart(now_s, point.step + 1)));
  sync();
  sync_directory(directory);
}

EventFile::~EventFile() = default;

void EventFile::append(const Event& event) {
  if (!event.empty()) file_->append(record_of(event.encoded(wall_clock_s())));
}

void EventFile::sync() { file_->sync(); }

const std::string& EventFile::path() const { return file_->path(); }

}  // namespace lockstep::report
