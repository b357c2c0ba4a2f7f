// Private to the module: the rows of one HDF5 dataset, held in memory if there is room and read as asked
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// Reading is safe from several threads.
class RowStore {
 public:
  /// Rows are read as elements of type `as`. Takes their bytes off memory_left_bytes if it loads them.
  RowStore(hdf5::File file, hdf5::Dataset dataset, DType as, std::int64_t& memory_left_bytes);

  const std::string& path() const { return path_; }
  std::int64_t rows() const { return rows_; }
  DType dtype() const { return dtype_; }  ///< as rows are read
  bool in_memory() const { return !dataset_; }

  /// Calls use(const std::byte*) with rows [begin, begin + count) as dtype(). The memory is good during the
  /// call.
  template <class Use>
  void with_rows(std::int64_t begin, std::int64_t count, const Use& use) const {
    if (in_memory()) return use(memory_.get() + static_cast<std::size_t>(begin) * row_bytes_);
    const std::lock_guard lock(scratch_mutex_);
    use(load_rows(begin, count));
  }

 private:
  const std::byte* load_rows(std::int64_t begin, std::int64_t count) const;

  std::string path_;
  DType dtype_;
  std::int64_t rows_;
  std::size_t row_bytes_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<hdf5::File> file_;
  std::unique_ptr<hdf5::Dataset> dataset_;
  mutable std::mutex scratch_mutex_;
  mutable std::vector<std::byte> scratch_;  // grows to the largest piece asked, once
};

}  // namespace lockstep::data
