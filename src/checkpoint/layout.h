// Private to the module: the structure of a checkpoint: its index as text (/manifest, and what the root
// digest is taken over), and from contents to HDF5.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "checkpoint/blocks.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/index.h"

namespace lockstep::hdf5 {

class File;
}

namespace lockstep::checkpoint {

/// HDF5 1.10 cannot recover from storage that fails while it closes a file: the library's own shutdown then
/// crashes. So the structure is made here, and what HDF5 wrote (payload is a hole) is copied out with our own
/// calls, whose errors are plain.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// A path that opens it, until unlink(). (HDF5 resolves links, so one below /proc/self/fd would not do.)
  const std::string& path() const noexcept { return path_; }
  /// Removes the name: the file then disappears with the last descriptor, even if this process is killed.
  void unlink() noexcept;
  std::uint64_t size() const;
  /// Writes the bytes [begin, end), except holes, to the same offsets of `file`.
  void copy_to(OpenFile& file, std::uint64_t begin, std::uint64_t end) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// What the index of a file with these contents will be; digests and offsets are 0. UsageError, naming it,
/// for what a file cannot hold: names with '/' or line ends, two of a name, tensors that are not plain CPU
/// memory.
FileIndex index_of(const Contents& contents);

/// True if HDF5 and the manifest can hold it as the name of one tensor.
bool is_link_name(std::string_view name);

/// The structure of a file while its elements are on their way: made in memory by HDF5, copied out when the
/// digests are known.
class Layout {
 public:
  /// Makes everything but the manifest and the root digest, and sets the tensors' offsets, which are final.
  /// Groups and attributes are in the index's order, so equal contents make equal structures.
  explicit Layout(FileIndex& index);
  ~Layout();
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  /// Adds what depends on the digests. HDF5 is not called afterwards.
  void finish(const FileIndex& index);
  /// Gives `file` its size and everything except the elements. Does not call HDF5, so any thread may.
  void copy_to(OpenFile& file) const;

 private:
  MemoryFile memory_;
  std::unique_ptr<hdf5::File> file_;  // open until finish()
  std::vector<FileExtent> elements_;  // in file order
};

/// An upper bound of the size of a file with this index.
std::uint64_t most_file_bytes(const FileIndex& index);

/// The counts of a Position by the names that files and reports give them; `seed` comes after them.
struct PositionCount {
  const char* name;
  std::int64_t Position::*value;
};
inline constexpr std::array<PositionCount, 4> position_counts{{{"step", &Position::step},
                                                               {"epoch", &Position::epoch},
                                                               {"samples", &Position::samples},
                                                               {"shards", &Position::shards}}};

/// The element types that tensors of a checkpoint may have.
constexpr bool is_storable(DType dtype) {
  return is_floating(dtype) || dtype == DType::int64 || dtype == DType::int32 || dtype == DType::uint8;
}

/// One line a tensor: "DIGEST BYTES DTYPE [EXTENT,EXTENT] /GROUP/NAME".
std::string manifest_text(const std::vector<TensorEntry>& tensors);
/// Inverse of manifest_text, without offsets. DataError naming `file` and the line.
std::vector<TensorEntry> parse_manifest(const std::string& text, const std::string& file);

/// Everything that resume uses, except the elements: position, attributes of groups, configuration,
/// manifest.
std::string digested_text(const FileIndex& index);
std::uint64_t root_digest(const FileIndex& index);

/// Exact: equal texts mean equal values.
std::string to_text(const AttributeValue& value);

}  // namespace lockstep::checkpoint
