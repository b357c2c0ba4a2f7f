// FileIndex: everything in a checkpoint except the tensors' elements: names, types, offsets and digests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep {
class OpenFile;  // base/files.h
}

namespace lockstep::checkpoint {

inline constexpr int format_version = 1;

/// A tensor in a file.
struct TensorEntry {
  std::string group;             ///< "model", "ema/0.999"
  std::string name;              ///< the dotted name, as stored
  DType dtype = DType::float32;  ///< as it is stored
  Shape shape;                   ///< as it is stored
  std::uint64_t offset = 0;      ///< of the first element, from the start of the file
  std::uint64_t bytes = 0;       ///< in the file
  std::uint64_t digest = 0;      ///< XXH3-64 over the digests of its 1 MiB blocks

  /// Its name in the file: "/model/hidden.weight".
  std::string path() const { return "/" + group + "/" + name; }
};

/// A group of tensors with its attributes.
struct GroupEntry {
  std::string path;                                                ///< such as "/ema/0.999"
  std::vector<std::pair<std::string, AttributeValue>> attributes;  ///< sorted by name
};

/// The content of a file except the values of its tensors.
struct FileIndex {
  std::string path;  ///< as passed to read_index()
  /// The file, open on every rank that has the index. Tensors are read from it, even if a link in `path` has
  /// changed or a run has pruned the file. Null for a file to be written.
  std::shared_ptr<const OpenFile> file;
  std::uint64_t file_bytes = 0;  ///< size of the file
  int version = 0;               ///< version of the format
  Position position;             ///< position of the run at the save
  std::int64_t world_size = 0;   ///< of the run that wrote it; for information only
  std::string created;           ///< time of saving, ISO 8601
  std::uint64_t digest = 0;      ///< of the manifest, the configuration and the attributes that a resume uses
  std::string config;            ///< the resolved configuration, as text; empty: none
  Provenance provenance;         ///< facts about its origin
  std::vector<GroupEntry> groups;    ///< in the order of the file
  std::vector<TensorEntry> tensors;  ///< in the order of the manifest

  const GroupEntry* group(std::string_view group_path) const;  ///< null if the file lacks it
  std::uint64_t payload_bytes() const;                         ///< bytes of all tensors
  /// The group of weights to load by default: "model", or the only EMA group if the file has one and lacks
  /// the model's parameters. UsageError if it has several.
  std::string default_weights() const;
};

/// Reads and checks the index: the root digest, and that each tensor of the manifest exists with its dtype
/// and shape and is within the file. DataError, one line with the file and the cause, if it is missing,
/// truncated, empty, not an HDF5 file or not a checkpoint; UsageError if its format is newer. A link such as
/// a run's `latest`, which may change at any time, is resolved once.
FileIndex read_index(const std::string& path);

/// The same, but only rank 0 reads; every rank opens the file of rank 0. Collective; the result or the error
/// is the same on every rank.
FileIndex read_index(const std::string& path, comm::HostGroup& world);

}  // namespace lockstep::checkpoint
