#include "report/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "base/processor.h"

namespace lockstep::report {
namespace {

constexpr std::size_t length_bytes = sizeof(std::uint64_t), crc_bytes = sizeof(std::uint32_t);

template <class Number>
void append_number(std::string& to, Number number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

/// The checksum as records store it. It is masked, because the CRC of data that contain CRCs is a weak one.
std::uint32_t masked_crc32c(std::string_view data) {
  const std::uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xffffffffU;
  std::size_t done = 0;
  for (std::uint64_t word = 0; done + sizeof word <= data.size(); done += sizeof word) {
    std::memcpy(&word, data.data() + done, sizeof word);
    crc = crc32c_with_word(crc, word);
  }
  for (; done < data.size(); ++done) crc = crc32c_with_byte(crc, static_cast<std::uint8_t>(data[done]));
  return ~crc;
}

std::string record_of(std::string_view data) {
  std::string record;
  record.reserve(length_bytes + crc_bytes + data.size() + crc_bytes);
  append_number(record, static_cast<std::uint64_t>(data.size()));
  append_number(record, masked_crc32c(record));
  record += data;
  append_number(record, masked_crc32c(data));
  return record;
}

std::optional<std::string_view> RecordReader::at(std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t min_bytes = 1 << 20;
  if (offset > size_ || bytes > size_ - offset) return std::nullopt;
  if (offset < buffer_offset_ || offset + bytes > buffer_offset_ + buffer_.size()) {
    buffer_.resize(std::min(std::max(bytes, min_bytes), size_ - offset));
    file_.read_at(offset, buffer_.data(), buffer_.size());
    buffer_offset_ = offset;
  }
  return std::string_view(buffer_).substr(offset - buffer_offset_, bytes);
}

std::optional<std::string_view> RecordReader::next() {
  constexpr std::size_t head_bytes = length_bytes + crc_bytes;
  const std::optional<std::string_view> head = at(position_, head_bytes);
  if (!head || number_at<std::uint32_t>(*head, length_bytes) != masked_crc32c(head->substr(0, length_bytes)))
    return std::nullopt;
  const auto bytes = number_at<std::uint64_t>(*head, 0);
  if (bytes > size_) return std::nullopt;
  const std::optional<std::string_view> body = at(position_ + head_bytes, bytes + crc_bytes);
  if (!body || number_at<std::uint32_t>(*body, bytes) != masked_crc32c(body->substr(0, bytes)))
    return std::nullopt;
  position_ += head_bytes + bytes + crc_bytes;
  return body->substr(0, bytes);
}

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

/// File names of earlier starts, sorted.
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

/// A name that sorts after all earlier ones, even if the clocks of hosts differ.
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

/// Removes events that the run repeats, and incomplete ones. True if events remain.
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

/// Like has_event(), for one file. `earlier`: whether an earlier file may hold such an event.
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
    if (keep_up_to(directory + "/" + *name, point)) break;  // earlier files have no later steps
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
