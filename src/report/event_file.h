// EventFile: the events of a run for TensorBoard, RUN/tensorboard/events.out.tfevents.*, as records
// (TFRecord): the length of the data as uint64, the length's masked CRC32C, the data, and the data's masked
// CRC32C; little endian.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "report/event.h"

namespace lockstep::report {

/// CRC32C (Castagnoli), unmasked.
std::uint32_t crc32c(std::string_view data);
/// The record that holds `data`.
std::string record_of(std::string_view data);

/// Reads the records of a file in order, through a buffer.
class RecordReader {
 public:
  explicit RecordReader(const OpenFile& file) : file_(file), size_(file.size()) {}

  /// The data of the next record, valid until the next call. None at the end of the file, or if the record is
  /// incomplete or damaged.
  std::optional<std::string_view> next();
  /// The end of the last record, in bytes from the start of the file.
  std::uint64_t position() const { return position_; }

 private:
  std::optional<std::string_view> at(std::uint64_t offset, std::uint64_t bytes);

  const OpenFile& file_;
  std::uint64_t size_, position_ = 0;
  std::string buffer_;
  std::uint64_t buffer_offset_ = 0;  // in the file
};

/// Where a run continues. A killed run may have logged steps after its last checkpoint.
struct ResumePoint {
  std::int64_t step = 0;  ///< of the checkpoint; 0: a new run
  /// Whether the evaluation of this step is done; if not, the run repeats it.
  bool evaluated = true;

  bool keeps(std::int64_t record_step, bool is_evaluation) const {
    return record_step < step || (record_step == step && (evaluated || !is_evaluation));
  }
};

/// Every evaluation records this metric, and no other event does.
inline constexpr const char* metric_of_evaluations = "eval_loss";

/// Each start of a run writes a new file, events.out.tfevents.SECONDS.HOST.lockstep. File names ascend, and
/// the steps of events never decrease, within a file and from file to file.
class EventFile {
 public:
  /// Creates the directory if it is missing, removes incomplete events and events that the run repeats from
  /// earlier files, and begins a new file. If earlier files exist, it begins with a restart, so that
  /// TensorBoard discards the removed events. Throws as throw_system_error.
  EventFile(const std::string& directory, const ResumePoint& point);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Writes the event immediately and completely or not at all: readers see it, and it outlives the process.
  /// Ignores an empty event. Throws as throw_system_error, also if the file was removed.
  void append(const Event& event);
  /// Returns when all events are on storage.
  void sync();

  const std::string& path() const;

 private:
  std::unique_ptr<OpenFile> file_;
};

/// Whether a file of the directory holds an event of this step with this tag. Throws as OpenFile.
bool has_event(const std::string& directory, std::int64_t step, std::string_view tag);

}  // namespace lockstep::report
