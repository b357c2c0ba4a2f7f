#include "report/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lockstep::report {
namespace {

/// The least magnitude of the bucket whose highest bits without the sign are these.
double magnitude_of(std::uint32_t bits, int dropped_bits) {
  const auto value = std::bit_cast<float>(bits << dropped_bits);
  return std::isfinite(value) ? value : std::ldexp(1.0, 128);  // beyond the largest float
}

}  // namespace

void Histogram::add(std::span<const float> values, double divisor) {
  for (const float value : values) {
    const double exact = static_cast<double>(value) / divisor;
    const float rounded = static_cast<float>(exact) + 0.0F;  // -0 becomes 0
    if (!std::isfinite(rounded)) continue;
    ++bucket_[std::bit_cast<std::uint32_t>(rounded) >> dropped_bits];
    ++count_;
    min_ = std::min(min_, exact);
    max_ = std::max(max_, exact);
    sum_ += exact;
    sum_squares_ += exact * exact;
  }
}

Histogram::Buckets Histogram::buckets() const {
  Buckets found;
  const auto take = [&](double low, double high, std::int64_t count) {
    if (count == 0) return;
    if (!found.limits.empty() && found.limits.back() < low) {  // empty ones lie between
      found.limits.push_back(low);
      found.counts.push_back(0);
    }
    found.limits.push_back(high);
    found.counts.push_back(static_cast<double>(count));
  };
  const auto magnitudes = static_cast<std::uint32_t>(bucket_.size() / 2);
  for (std::uint32_t bits = magnitudes - 1; bits-- > 0;)
    take(-magnitude_of(bits + 1, dropped_bits), 0.0 - magnitude_of(bits, dropped_bits),
         bucket_[magnitudes + bits]);
  for (std::uint32_t bits = 0; bits + 1 < magnitudes; ++bits)
    take(magnitude_of(bits, dropped_bits), magnitude_of(bits + 1, dropped_bits), bucket_[bits]);
  return found;
}

}  // namespace lockstep::report
