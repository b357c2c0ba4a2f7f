// Inspect: a table of what a checkpoint holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

struct TensorSummary {
  TensorEntry entry;
  double norm = 0;          ///< Euclidean, in float64; over finite elements, as min and max
  double min = 0, max = 0;  ///< 0 without finite elements
  std::int64_t not_finite = 0;
  bool digest_right = true;
};

struct Inspection {
  FileIndex index;
  std::vector<TensorSummary> tensors;  ///< in the order of index.tensors
};

/// Reads the whole file. DataError if it is not a readable checkpoint; a wrong digest is shown, not thrown.
Inspection inspect(const std::string& path);

}  // namespace lockstep::checkpoint
