// File: an HDF5 file on the serial driver. A file is also its root group.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/hdf5/group.h"

namespace lockstep::hdf5 {

struct CreateOptions {
  enum class Existing { refuse, replace };
  Existing existing = Existing::refuse;
  /// Superblock version 3 with checksummed metadata (HDF5 1.10 and later read it); otherwise the oldest
  /// format that serves.
  bool checksummed = false;
  std::uint64_t alignment_bytes = 1;  ///< objects of at least alignment_from_bytes start at multiples of this
  std::uint64_t alignment_from_bytes = 1;
};

/// HDF5's file locking follows HDF5_USE_FILE_LOCKING. Where that is not set, a file system without locks does
/// not stop a read-only opening; a lock that somebody holds does.
class File : public Group {
 public:
  /// Opens for reading. DataError if it is missing, empty, not HDF5, truncated or open for writing.
  static File open(const std::string& path);
  /// Opens for reading and writing.
  static File open_for_writing(const std::string& path);
  static File create(const std::string& path, const CreateOptions& options = {});

  File(File&&) noexcept = default;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Hands everything written so far to the system (not fsync).
  void flush();
  /// Closes the file and every object of it; what could not be written is an error here, while the destructor
  /// is quiet.
  void close();

 private:
  File(Handle file, const std::string& path);
  Handle file_;
};

}  // namespace lockstep::hdf5
