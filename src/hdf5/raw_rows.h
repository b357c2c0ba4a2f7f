// RawRows: rows of a dataset that are read by system calls, by several threads at once: HDF5 reads under one
// lock. The addresses of all chunks are looked up once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "lockstep/hdf5/dataset.h"

namespace lockstep::hdf5 {

class RawRows {
 public:
  /// file: the dataset's, which must stay open; HDF5 need not keep it open. None unless the elements are
  /// little-endian numbers, contiguous or in chunks without filters, in a file that HDF5 itself reads by
  /// system calls. Nor if HDF5 before 1.14, which looks up one chunk among n in a time of n, would need long
  /// for all. The dataset has passed check_stored().
  static std::optional<RawRows> of(const Dataset& dataset, const OpenFile& file);

  /// Rows [begin, begin + count), which exist, in the dataset's own type. False if the file ends before them.
  bool read(std::int64_t begin, std::int64_t count, std::byte* out) const;
  /// Lets the system begin to read such rows from storage: one thread keeps several reads going.
  void expect(std::int64_t begin, std::int64_t count) const;

 private:
  template <class Use>
  bool for_each_part(std::int64_t begin, std::int64_t count, const Use& use) const;
  std::uint64_t offset_of(std::size_t chunk, std::int64_t row) const {
    return offsets_[chunk] + static_cast<std::uint64_t>(row) * chunk_strides_[0];
  }
  explicit RawRows(const Dataset& dataset);
  bool find(const Dataset& dataset);
  bool find_chunks(const Dataset& dataset);
  std::size_t chunk_at(const std::vector<std::uint64_t>& first_element) const;
  bool read_chunk(std::size_t chunk, std::int64_t first_row, std::int64_t rows, std::byte* out) const;
  void place(std::size_t chunk, std::size_t dimension, const std::byte* from, std::byte* to) const;
  bool read_bytes(std::uint64_t offset, std::byte* out, std::size_t bytes) const;

  std::string path_;
  int descriptor_ = -1;
  std::vector<std::int64_t> shape_;         // of the dataset
  std::vector<std::int64_t> chunk_;         // extents of a chunk; of what is contiguous: the shape
  std::vector<std::int64_t> grid_;          // chunks along each dimension
  std::vector<std::size_t> chunk_strides_;  // bytes from one index to the next in a chunk, by dimension
  std::vector<std::size_t> strides_;        // the same in the dataset
  std::vector<std::uint64_t> offsets_;      // of chunks in the file, in row-major order
};

}  // namespace lockstep::hdf5
