// Private to the module: the structure of a checkpoint: conversion of a StateDict to an index and to HDF5,
// and the index as text (/manifest, and the text of the root digest).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "checkpoint/blocks.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::hdf5 {

class File;
}
namespace lockstep::data {
struct Normalization;
}

namespace lockstep::checkpoint {

/// A file in memory for HDF5 to write the structure into; the payload is a hole. The structure is then copied
/// to storage without HDF5, because HDF5 1.10 crashes at exit if storage fails while it closes a file.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// A path that opens it, until unlink(). (HDF5 resolves links, so a path below /proc/self/fd does not
  /// work.)
  const std::string& path() const noexcept { return path_; }
  /// Removes the name, so that the file disappears with the last descriptor, even if this process is killed.
  void unlink() noexcept;
  std::uint64_t size() const;
  /// Writes the bytes [begin, end), except holes, to the same offsets of `file`.
  void copy_to(OpenFile& file, std::uint64_t begin, std::uint64_t end) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// The index of a file that holds `state_dict`, with digests and offsets of 0. UsageError for names with '/'
/// or line ends, duplicate names, and tensors that are not row-major memory of the CPU or of the backend's
/// device.
FileIndex index_of(const StateDict& state_dict);

/// "data/FIELD": the normalisation of a field as tensors `mean` and `deviation`, copies of `now`. A load
/// calls `use` with the file's values.
Section normalization_section(std::string_view field, const data::Normalization& now,
                              std::function<void(data::Normalization)> use);

/// True if it is a valid name of a tensor in HDF5 and the manifest.
bool is_link_name(std::string_view name);

/// The structure of a file, which HDF5 writes to memory, and which is copied to storage when the digests are
/// known.
class Layout {
 public:
  /// Creates everything except the manifest and the root digest, and sets the final offsets of the tensors.
  /// Groups and attributes are in the index's order, so equal state dicts have equal structures.
  explicit Layout(FileIndex& index);
  ~Layout();
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  /// Adds the manifest and the root digest. HDF5 is not called afterwards.
  void finish(const FileIndex& index);
  /// Writes everything except the elements to `file`, and sets its size. Does not call HDF5, so any thread
  /// may call it.
  void copy_to(OpenFile& file) const;

 private:
  MemoryFile memory_;
  std::unique_ptr<hdf5::File> file_;  // open until finish()
  std::vector<FileExtent> elements_;  // in file order
};

/// An upper bound of the size of a file with this index.
std::uint64_t max_file_bytes(const FileIndex& index);

/// Calls use(name, number) with each number of a Position, by its name in files and reports.
void for_position(auto& position, const auto& use) {
  use("step", position.step);
  use("epoch", position.epoch);
  use("samples", position.samples);
  use("shards", position.shards);
  use("seed", position.seed);
}

/// The element types that tensors of a checkpoint may have.
constexpr bool is_storable(DType dtype) {
  return is_floating(dtype) || dtype == DType::int64 || dtype == DType::int32 || dtype == DType::uint8;
}

/// One line a tensor: "DIGEST BYTES DTYPE [EXTENT,EXTENT] /GROUP/NAME".
std::string manifest_text(const std::vector<TensorEntry>& tensors);
/// Inverse of manifest_text, without offsets. DataError naming `file` and the line.
std::vector<TensorEntry> parse_manifest(const std::string& text, const std::string& file);

/// Everything that a resume uses except the elements: position, attributes of groups, configuration,
/// manifest. for_readers: the same in words, with sizes after their texts.
std::string digested_text(const FileIndex& index, bool for_readers = false);
std::uint64_t root_digest(const FileIndex& index);

/// The exact text: equal texts mean equal values.
std::string to_text(const AttributeValue& value);

}  // namespace lockstep::checkpoint
