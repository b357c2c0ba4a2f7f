// The texts of errors in data, the same on every device.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep::kernels {

/// Index number `number` of an embedding is outside its table.
[[noreturn]] inline void throw_index_outside(const char* operation, std::int64_t index, std::int64_t number,
                                             std::int64_t rows) {
  throw DataError("{}: index {} (number {}) is outside the table of {} rows", operation, index, number, rows);
}

/// The target of a row of logits is not a class.
[[noreturn]] inline void throw_target_outside(const char* operation, std::int64_t target, std::int64_t row,
                                              std::int64_t classes) {
  throw DataError("{}: target {} in row {} is not one of the {} classes", operation, target, row, classes);
}

}  // namespace lockstep::kernels
