// The median of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep {

/// The upper of the two middle values of an even number. Not of none.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep
