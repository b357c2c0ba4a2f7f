// bf16 on the CPU: which operations have a way of their own, and the way of the rest.
#include "kernels/cpu/mixed_backend.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::bfloat16; }

Tensor as_rows(const char* operation, const Tensor& x) {
  const auto [count, width] = rows_of(operation, x);
  return x.reshape({count, width});
}

}  // namespace

MixedBackend::MixedBackend(int threads) : floats_(threads), native_(floats_) {}

std::unique_ptr<Backend> make_cpu_backend(int threads) { return std::make_unique<MixedBackend>(threads); }

std::string MixedBackend::why_slow_in_bf16() const {
  if (NativeBfloat16::is_here()) return {};
  return "this processor (" + instruction_set() + ") has neither AVX512-BF16 nor AMX";
}

int MixedBackend::preferred_channel_block(std::int64_t channels, DType dtype) const {
  if (dtype == DType::bfloat16 && NativeBfloat16::is_here())
    return static_cast<int>(std::max<std::int64_t>(1, channels));  // NHWC
  return floats_.preferred_channel_block(channels, dtype);
}

template <class Body>
void MixedBackend::by_copies(const Body& body) {
  Float32Copies copies(floats_);
  body(copies);
  copies.round();
}

template <class Body>
void MixedBackend::by_slices(const Tensor& like, std::int64_t unit, const Body& body) {
  constexpr std::int64_t elements_per_thread = 32768;
  const std::int64_t elements = elements_per_thread * threads();
  const std::int64_t count = like.shape().rank() == 0 ? 1 : like.size(0);
  const std::int64_t unit_elements =
      count == 0 ? 0 : unit * std::max<std::int64_t>(1, like.stored_numel() / count);
  const std::int64_t step = count == 0 ? 1 : unit * std::max<std::int64_t>(1, elements / unit_elements);
  if (!is_bf16(like) || count <= step) {
    return by_copies([&](Float32Copies& c) {
      body(
          c, [](const Tensor& tensor) { return tensor; }, true);
    });
  }
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const std::int64_t end = std::min(count, begin + step);
    const auto slice = [=](const Tensor& tensor) { return tensor ? tensor.rows(begin, end) : tensor; };
    by_copies([&](Float32Copies& c) { body(c, slice, begin == 0); });
  }
}

// --- memory and elementwise

void MixedBackend::to_layout(const Tensor& from, const Tensor& to) {
  by_copies([&](Float32Copies& c) { floats_.to_layout(c.in(from), c.out(to)); });
}

void MixedBackend::normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                    const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.normalize_images(x, scale, shift, c.out(y)); });
}

void MixedBackend::add_rows(const Tensor& x, const Tensor& row, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.add_rows(c.in(x), c.in(row), c.out(y)); });
}

void MixedBackend::dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.dropout(c.in(x), p, key, c.out(y)); });
}

// --- products

void MixedBackend::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  if (native_.linear(x, weight, bias, y)) return;
  by_copies([&](Float32Copies& c) { floats_.linear(c.in(x), c.operand(weight, x), c.in(bias), c.out(y)); });
}

void MixedBackend::linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  if (native_.linear_backward_input(dy, weight, dx)) return;
  by_copies(
      [&](Float32Copies& c) { floats_.linear_backward_input(c.in(dy), c.operand(weight, dy), c.out(dx)); });
}

void MixedBackend::linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                          bool accumulate) {
  if (native_.linear_backward_weight(x, dy, dweight, accumulate)) return;
  by_copies(
      [&](Float32Copies& c) { floats_.linear_backward_weight(c.in(x), c.in(dy), dweight, accumulate); });
}

void MixedBackend::convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const Convolution& geometry, const Tensor& y) {
  if (native_.convolution(x, weight, bias, geometry, y)) return;
  by_copies([&](Float32Copies& c) {
    floats_.convolution(c.in(x), c.operand(weight, x), c.in(bias), geometry, c.out(y));
  });
}

void MixedBackend::convolution_backward_input(const Tensor& dy, const Tensor& weight,
                                              const Convolution& geometry, const Tensor& dx) {
  if (native_.convolution_backward_input(dy, weight, geometry, dx)) return;
  by_copies([&](Float32Copies& c) {
    floats_.convolution_backward_input(c.in(dy), c.operand(weight, dy), geometry, c.out(dx));
  });
}

void MixedBackend::convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                               const Tensor& dweight, bool accumulate) {
  if (native_.convolution_backward_weight(x, dy, geometry, dweight, accumulate)) return;
  by_copies([&](Float32Copies& c) {
    floats_.convolution_backward_weight(c.in(x), c.in(dy), geometry, dweight, accumulate);
  });
}

// --- pooling and resampling

void MixedBackend::max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) {
  by_copies([&](Float32Copies& c) { floats_.max_pool(c.in(x), geometry, c.out(y), winners); });
}

void MixedBackend::max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                                     const Tensor& dx) {
  by_copies([&](Float32Copies& c) { floats_.max_pool_backward(c.in(dy), winners, geometry, c.out(dx)); });
}

void MixedBackend::average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.average_pool(c.in(x), geometry, c.out(y)); });
}

void MixedBackend::average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) {
  by_copies([&](Float32Copies& c) { floats_.average_pool_backward(c.in(dy), geometry, c.out(dx)); });
}

void MixedBackend::global_average_pool(const Tensor& x, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.global_average_pool(c.in(x), c.out(y)); });
}

void MixedBackend::global_average_pool_backward(const Tensor& dy, const Tensor& dx) {
  by_copies([&](Float32Copies& c) { floats_.global_average_pool_backward(c.in(dy), c.out(dx)); });
}

void MixedBackend::upsample_nearest(const Tensor& x, int scale, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.upsample_nearest(c.in(x), scale, c.out(y)); });
}

void MixedBackend::upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) {
  by_copies([&](Float32Copies& c) { floats_.upsample_nearest_backward(c.in(dy), scale, c.out(dx)); });
}

// --- norms

void MixedBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                              const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  if (!is_bf16(x)) return floats_.layer_norm(x, weight, bias, eps, y, mean, inv_std);
  const Tensor from = as_rows("layer_norm", x), to = y.reshape(from.shape());
  const Shape each_row{from.size(0)};
  by_slices(from, 1, [&](Float32Copies& c, const auto& of, bool) {
    floats_.layer_norm(c.in(of(from)), weight, bias, eps, c.out(of(to)), of(mean.reshape(each_row)),
                       of(inv_std.reshape(each_row)));
  });
}

void MixedBackend::add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias,
                                  float eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                                  const Tensor& inv_std) {
  if (!is_bf16(a)) return floats_.add_layer_norm(a, b, weight, bias, eps, sum, y, mean, inv_std);
  add(a, b, sum);
  layer_norm(sum, weight, bias, eps, y, mean, inv_std);
}

void MixedBackend::layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                       const Tensor& mean, const Tensor& inv_std, const Tensor& beside,
                                       const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                                       bool accumulate) {
  constexpr const char* operation = "layer_norm_backward";
  constexpr std::int64_t rows_summed_together = 64;  // by the float32 operation: the bits are as of one call
  if (!is_bf16(x))
    return floats_.layer_norm_backward(dy, x, weight, mean, inv_std, beside, dx, dweight, dbias, accumulate);
  const Tensor from = as_rows(operation, x), upstream = dy.reshape(from.shape()),
               besides = beside ? beside.reshape(from.shape()) : beside, to = dx.reshape(from.shape());
  const Shape each_row{from.size(0)};
  by_slices(from, rows_summed_together, [&](Float32Copies& c, const auto& of, bool first) {
    floats_.layer_norm_backward(c.in(of(upstream)), c.in(of(from)), weight, of(mean.reshape(each_row)),
                                of(inv_std.reshape(each_row)), c.in(of(besides)), c.out(of(to)), dweight,
                                dbias, accumulate || !first);
  });
}

void MixedBackend::group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias,
                              float eps, const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  by_copies([&](Float32Copies& c) {
    floats_.group_norm(c.in(x), groups, weight, bias, eps, c.out(y), mean, inv_std);
  });
}

void MixedBackend::group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                                       const Tensor& mean, const Tensor& inv_std, const Tensor& dx,
                                       const Tensor& dweight, const Tensor& dbias, bool accumulate) {
  by_copies([&](Float32Copies& c) {
    floats_.group_norm_backward(c.in(dy), c.in(x), groups, weight, mean, inv_std, c.out(dx), dweight, dbias,
                                accumulate);
  });
}

// --- embedding and losses

void MixedBackend::embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.embedding(indices, weight, c.out(y)); });
}

void MixedBackend::embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                                      bool accumulate) {
  by_copies([&](Float32Copies& c) { floats_.embedding_backward(c.in(dy), indices, dweight, accumulate); });
}

void MixedBackend::cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                                 const Tensor& log_sum_exp, const Tensor& total) {
  by_copies(
      [&](Float32Copies& c) { floats_.cross_entropy(c.in(logits), targets, options, log_sum_exp, total); });
}

void MixedBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                          const CrossEntropy& options, const Tensor& log_sum_exp,
                                          const Tensor& factor, const Tensor& dlogits) {
  require_shape("cross_entropy_backward", "dlogits", dlogits, logits.shape());
  by_slices(logits, 1, [&](Float32Copies& c, const auto& of, bool) {
    floats_.cross_entropy_backward(c.in(of(logits)), of(targets), options, of(log_sum_exp), factor,
                                   c.out(of(dlogits)));
  });
}

void MixedBackend::count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) {
  by_copies([&](Float32Copies& c) { floats_.count_correct(c.in(logits), targets, correct); });
}

void MixedBackend::squared_error(const Tensor& x, const Tensor& target, const Tensor& total) {
  by_copies([&](Float32Copies& c) { floats_.squared_error(c.in(x), c.in(target), total); });
}

void MixedBackend::squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                                          const Tensor& dx) {
  by_copies(
      [&](Float32Copies& c) { floats_.squared_error_backward(c.in(x), c.in(target), factor, c.out(dx)); });
}

}  // namespace lockstep::kernels
