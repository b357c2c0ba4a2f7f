// FileIndex: all of a checkpoint but its tensors' elements: what there is, where it is, and its digests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep {
class OpenFile;  // base/files.h
}

namespace lockstep::checkpoint {

inline constexpr int format_version = 1;

struct TensorEntry {
  std::string group;  ///< "model", "ema/0.999"
  std::string name;   ///< the dotted name, as stored
  DType dtype = DType::float32;
  Shape shape;
  std::uint64_t offset = 0;  ///< of the first element, from the start of the file
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;

  std::string path() const { return "/" + group + "/" + name; }
};

struct GroupEntry {
  std::string path;
  std::vector<std::pair<std::string, AttributeValue>> attributes;  ///< sorted by name
};

struct FileIndex {
  std::string path;  ///< as it was given
  /// What was read, held open on every rank that has the index: tensors are read from it, though a link in
  /// `path` may lead elsewhere by then, or a run may have pruned the file. None of a file to be written.
  std::shared_ptr<const OpenFile> file;
  std::uint64_t file_bytes = 0;
  int version = 0;
  Position position;
  std::int64_t world_size = 0;  ///< of the run that wrote it; information only
  std::string created;
  std::uint64_t digest = 0;  ///< over manifest, configuration and the attributes that resume uses
  std::string config;
  Provenance provenance;
  std::vector<GroupEntry> groups;
  std::vector<TensorEntry> tensors;  ///< in the order of the manifest

  const GroupEntry* group(std::string_view group_path) const;  ///< null if there is none
  std::uint64_t payload_bytes() const;
  /// The group of weights when none is asked for: "model"; but of a file that has one average, and of the
  /// model nothing but buffers at most, that average.
  std::string default_weights() const;
};

/// Reads the index and checks it against itself: the root digest, and that each tensor of the manifest is
/// there with its dtype and shape and is within the file. DataError, one line with the file and what is
/// wrong with it, if it is missing, truncated, empty, no HDF5 file, no checkpoint, or of a newer format. A
/// link such as a run's `latest`, which may move at any time, is followed once.
FileIndex read_index(const std::string& path);

/// The same, read by rank 0 only; every rank holds the file open that rank 0 read. Collective; the result or
/// the error is the same on every rank.
FileIndex read_index(const std::string& path, comm::HostGroup& communicator);

}  // namespace lockstep::checkpoint
