// EventFile: what a run shows in TensorBoard, RUN/tensorboard/events.out.tfevents.*, and its records
// (TFRecord): the length of the data as uint64, its masked CRC32C, the data, and their masked CRC32C; little
// endian.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "report/event.h"

namespace lockstep::report {

/// CRC32C (Castagnoli), not yet masked.
std::uint32_t crc32c(std::string_view data);
/// A record of these data.
std::string record_of(std::string_view data);

/// Reads the records of a file one after the other, through a buffer.
class RecordReader {
 public:
  explicit RecordReader(const OpenFile& file) : file_(file), size_(file.size()) {}

  /// The data of the next record, valid until the next call. None at the end of the file, and at a record
  /// that is incomplete or damaged.
  std::optional<std::string_view> next();
  /// The end of the last record, in bytes from the start of the file.
  std::uint64_t position() const { return position_; }

 private:
  std::optional<std::string_view> at(std::uint64_t offset, std::uint64_t bytes);

  const OpenFile& file_;
  std::uint64_t size_, position_ = 0;
  std::string buffer_;
  std::uint64_t buffer_offset_ = 0;  // of the buffer in the file
};

/// Where a run continues. A killed run may have logged more than its last checkpoint has.
struct ResumePoint {
  std::int64_t step = 0;  ///< of the checkpoint; 0: a new run
  /// The evaluation of this step is done. Otherwise the run repeats it.
  bool evaluated = true;

  bool keeps(std::int64_t record_step, bool is_evaluation) const {
    return record_step < step || (record_step == step && (evaluated || !is_evaluation));
  }
};

/// Every evaluation records this metric, and nothing else does.
inline constexpr const char* metric_of_evaluations = "eval_loss";

/// Each start of a run writes a new file, events.out.tfevents.SECONDS.HOST.lockstep. Their names
/// ascend, and the steps of their events never decrease, also from one file to the next.
class EventFile {
 public:
  /// Makes the directory if need be. Removes the events of earlier starts that the run repeats, and
  /// incomplete ones; then begins a file. Where there are earlier ones it begins with a restart, so that a
  /// TensorBoard that has read what was removed forgets it. Throws as throw_system_error.
  EventFile(const std::string& directory, const ResumePoint& point);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Writes it at once, all or nothing: readers see it, and it outlives the process. Empty ones are left out.
  /// Throws as throw_system_error, also if the file has been removed.
  void append(const Event& event);
  /// All events are on storage when it returns.
  void sync();

  const std::string& path() const;

 private:
  std::unique_ptr<OpenFile> file_;
};

/// Whether the directory's files hold an event of this step with a value of this tag. Throws as OpenFile.
bool has_event(const std::string& directory, std::int64_t step, std::string_view tag);

}  // namespace lockstep::report
