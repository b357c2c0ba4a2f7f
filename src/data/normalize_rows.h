// Rows of a field, normalised.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/data/arrays.h"

namespace lockstep::data {

/// Throws unless the field can have this normalisation: UsageError for numbers of rows, DataError otherwise.
/// where: file and array.
void check_normalization(const std::string& where, const Field& field, const Normalization& by);

/// The first row with a value that is not finite, and the channel of that value. If there is none, `row` is
/// the number of rows.
struct Unusable {
  std::int64_t row = 0;
  std::size_t channel = 0;
};

/// out = (stored - mean) / deviation of rows of this shape, computed as Number. any_float: stored values need
/// not be finite; padded: neither need the results.
template <class Number, class Stored>
Unusable normalize_rows(const Stored* stored, const Normalization& by, const Shape& shape, std::int64_t rows,
                        bool any_float, bool padded, float* out) {
  const std::size_t means = by.mean.size(), elements = static_cast<std::size_t>(shape.numel()),
                    block = static_cast<std::size_t>(normalization_block(shape, std::ssize(by.mean))),
                    blocks = elements / block;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t b = 0; b < blocks; ++b, stored += block, out += block) {
      const std::size_t c = b % means;
      const auto mean = static_cast<Number>(by.mean[c]), deviation = static_cast<Number>(by.deviation[c]);
      bool usable = true;
      for (std::size_t i = 0; i < block; ++i) {
        const auto value = static_cast<Number>(stored[i]);
        out[i] = static_cast<float>((value - mean) / deviation);
        usable &= std::isfinite(out[i]) || (any_float && !std::isfinite(value));
      }
      if (!usable && !padded) return {row, c};
    }
  }
  return {rows, 0};
}

}  // namespace lockstep::data
