// Private to the module: zip archives of stored entries, as torch.save writes them. The bytes of an entry are
// read directly from the file into a tensor, so a reader needs their offset, and a writer chooses it:
// packaged libraries hide both. The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files.h"

namespace lockstep::checkpoint {

struct ZipEntry {
  std::string name;          ///< relative, without ".."
  std::uint64_t offset = 0;  ///< of its first byte in the file
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// An open archive. Reading keeps no state.
class ZipFile {
 public:
  /// DataError if the file is not a complete archive on one disk, entries overlap, share a name or have one
  /// that leads out of a folder, are compressed or encrypted, or if directory and entries disagree. Memory in
  /// proportion to the directory, which has 64 MiB at most.
  explicit ZipFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::uint64_t file_bytes() const { return file_bytes_; }
  /// In the order of their bytes.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  std::optional<std::size_t> find(std::string_view name) const;

  /// Bytes of entries()[entry] from `offset` on; they must be within it.
  void read(std::size_t entry, std::uint64_t offset, std::span<std::byte> out) const;
  /// All bytes of an entry, checked. DataError if it is larger than `max_bytes`.
  std::string text(std::size_t entry, std::uint64_t max_bytes) const;
  /// DataError if an entry's CRC-32 does not match its bytes. An archive whose CRCs are all zero has none
  /// (torch.serialization.set_crc32_options(False)), and passes.
  void check(std::size_t entry) const;
  /// The same for bytes in memory.
  void check(std::size_t entry, std::span<const std::byte> bytes) const;

 private:
  void check(const ZipEntry& entry, std::uint32_t crc32) const;

  OpenFile file_;
  std::uint64_t file_bytes_ = 0;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  bool has_checksums_ = false;
};

/// Writes an archive from the beginning of a file.
class ZipWriter {
 public:
  explicit ZipWriter(OpenFile& file) : file_(file) {}
  /// An entry whose bytes begin at a multiple of 64 in the file. The name is UTF-8, and new.
  void add(const std::string& name, std::span<const std::byte> bytes);
  /// The directory; the archive is then complete.
  void finish();

 private:
  struct Added {
    ZipEntry entry;
    std::uint64_t header_offset;
  };

  void write(std::string_view bytes);

  OpenFile& file_;
  std::uint64_t end_ = 0;
  std::vector<Added> added_;
};

}  // namespace lockstep::checkpoint
