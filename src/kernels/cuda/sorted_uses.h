// Sums over equal indices in a fixed order: the uses of rows, sorted by row.
#pragma once

#include "kernels/cuda/cuda_backend.h"

namespace lockstep::kernels {

/// Space for the row that each use names, and the sort. Row number `rows` takes uses that name none.
class SortedUses {
 public:
  /// UsageError in the operation's name if they are more than the sort can number.
  SortedUses(CudaBackend& gpu, const char* operation, std::int64_t uses, std::int64_t rows);
  /// [uses] each, to be written before the sort: the rows, and 0, 1, 2 ...
  std::int32_t* rows() const { return room_.data<std::int32_t>(); }
  std::int32_t* numbers() const { return rows() + run_; }
  /// Stable.
  void sort();
  const std::int32_t* sorted_rows() const { return numbers() + run_; }
  const std::int32_t* sorted_numbers() const { return sorted_rows() + run_; }

 private:
  CudaBackend& gpu_;
  std::int64_t uses_, run_;
  int bits_ = 1;
  std::size_t sort_bytes_ = 0;
  Tensor room_;
};

}  // namespace lockstep::kernels
