// What operations move and compute, as a profile counts it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

inline double bytes_in(const Tensor& tensor) { return tensor ? static_cast<double>(tensor.bytes()) : 0; }
inline double bytes_in(const Columns& columns) {
  const Tensor& matrix = columns.matrix;
  const std::int64_t rows = matrix.size(matrix.shape().rank() - 1) == 0
                                ? 0
                                : matrix.numel() / matrix.size(matrix.shape().rank() - 1);
  return static_cast<double>(rows * columns.count) * static_cast<double>(bytes_of(matrix.dtype()));
}
inline double bytes_in(std::span<const EmaTarget> targets) {
  double bytes = 0;
  for (const EmaTarget& target : targets) bytes += bytes_in(target.average);
  return bytes;
}

/// Of one direction.
inline double bytes_in(const Transfer& transfer) { return bytes_in(transfer.from); }

inline double bytes_in(const AdamWUpdate& update) {
  return bytes_in(update.value) + bytes_in(update.gradient) / 2 + bytes_in(update.exp_avg) +
         bytes_in(update.exp_avg_sq) + bytes_in(update.ema);
}
inline double bytes_in(const SgdUpdate& update) {
  return bytes_in(update.value) + bytes_in(update.gradient) / 2 + bytes_in(update.momentum_buffer) +
         bytes_in(update.ema);
}
/// Of one direction: all is read and written but an update's gradient, which is only read.
template <class Moved>
inline double bytes_in(std::span<const Moved> all) {
  double bytes = 0;
  for (const Moved& moved : all) bytes += bytes_in(moved);
  return bytes;
}

/// What a product does: how it is called in a table, and its arithmetic.
struct Work {
  std::string name;
  double flops = 0;
};

inline Work dense(const char* name, const Tensor& x, std::int64_t in, std::int64_t out) {
  const std::int64_t rows = in == 0 ? 0 : x.numel() / in;
  return {fmt::format("{} {} x {} -> {}", name, rows, in, out),
          2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out)};
}

/// `large` is the tensor on the input's side, `small` the one on the output's.
inline Work convolving(const char* name, const Tensor& large, const Shape& weight,
                       const Convolution& geometry, const Tensor& small) {
  const double terms =
      static_cast<double>(weight[0]) * static_cast<double>(weight[1] * weight[2] * weight[3]);
  const double places =
      static_cast<double>(small.size(0)) * static_cast<double>(small.size(2) * small.size(3));
  return {fmt::format("{} {} x {} x {} x {} -> {}, {} x {}{}", name, large.size(0), large.size(1),
                      large.size(2), large.size(3), weight[0], weight[2], weight[3],
                      geometry.stride == 1 ? "" : fmt::format(" / {}", geometry.stride)),
          2 * terms * places};
}

/// `products` of [time, time, width] for each head; under a causal mask half of each is needed.
inline Work attending(const char* name, const Columns& q, int heads, bool causal, int products) {
  const auto batch = static_cast<double>(q.matrix.size(0)), time = static_cast<double>(q.matrix.size(1));
  return {fmt::format("{} {} x {} x {}, {} heads", name, q.matrix.size(0), q.matrix.size(1), q.count, heads),
          products * 2 * batch * time * time * static_cast<double>(q.count) * (causal ? 0.5 : 1)};
}

}  // namespace lockstep::kernels
