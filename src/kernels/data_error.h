// The texts of errors in data, the same on every device.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep::kernels {

/// Index number `number` names none of the `extent` rows of a table, or places of an axis.
[[noreturn]] inline void throw_index_outside(const char* operation, std::int64_t index, std::int64_t number,
                                             std::int64_t extent) {
  throw DataError("{}: index {} (number {}) is outside [0, {})", operation, index, number, extent);
}

/// The target of a row of logits is not a class.
[[noreturn]] inline void throw_target_outside(const char* operation, std::int64_t target, std::int64_t row,
                                              std::int64_t classes) {
  throw DataError("{}: target {} in row {} is not one of the {} classes", operation, target, row, classes);
}

/// Losses that are added have counted different samples.
[[noreturn]] inline void throw_counts_differ(std::int64_t a, std::int64_t b) {
  throw UsageError(
      "loss: a + b adds losses over the same samples, but these count {} and {}; append(a, b) is one "
      "sample set after another",
      a, b);
}

}  // namespace lockstep::kernels
