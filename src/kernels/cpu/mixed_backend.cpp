// bf16 on the CPU: which operations have a way of their own, and the way of the rest.
#include "kernels/cpu/mixed_backend.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/problems.h"
#include "lockstep/tensor/half.h"

namespace lockstep::kernels {
namespace {

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::bfloat16; }

Tensor as_rows(const char* operation, const Tensor& x) {
  const auto [count, width] = rows_of(operation, x);
  return x.reshape({count, width});
}

BFloat16* halves(const char* operation, const char* name, const Tensor& tensor) {
  return elements<BFloat16>(operation, name, tensor);
}

/// compute(from..., to) on runs of elements, which lie widened in a core's nearest cache: too few for an
/// operation to share among threads.
template <std::size_t inputs, class Compute>
void element_by_element(int threads, std::int64_t count, const std::array<BFloat16*, inputs>& from,
                        BFloat16* to, const Compute& compute) {
  constexpr std::int64_t elements_per_thread = 16384, run = 2048;
  parallel_ranges(threads, count, elements_per_thread, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) float widened[inputs][run], made[run];
    for (std::int64_t at = begin; at < end; at += run) {
      const std::int64_t some = std::min(run, end - at);
      for (std::size_t k = 0; k < inputs; ++k) {
        const BFloat16* const source = from[k] + at;
        float* const wide = widened[k];
#pragma GCC ivdep
        for (std::int64_t i = 0; i < some; ++i) wide[i] = from_bfloat16_bits(source[i].bits);
      }
      const auto part = [some](float* elements) { return Tensor::view(elements, {some}, DType::float32); };
      if constexpr (inputs == 1) {
        compute(part(widened[0]), part(made));
      } else {
        compute(part(widened[0]), part(widened[1]), part(made));
      }
      BFloat16* const target = to + at;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < some; ++i) target[i].bits = bfloat16_bits(made[i]);
    }
  });
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
  by_slices_of(elements_per_thread * threads(), like, unit, body);
}

template <class Body>
void MixedBackend::by_slices_of(std::int64_t elements, const Tensor& like, std::int64_t unit,
                                const Body& body) {
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

template <class Body>
void MixedBackend::sum_over_slices(const Tensor& like, const Tensor& sums, const Body& body) {
  constexpr std::int64_t elements_together = 65536;
  Tensor part;
  by_slices_of(elements_together, like, 1, [&](Float32Copies& c, const auto& slice, bool first) {
    if (first) return body(c, slice, sums);
    if (!part) part = floats_.empty(sums.shape(), DType::float64, 1);
    body(c, slice, part);
    floats_.accumulate(sums, part);
  });
}

// --- memory and elementwise

void MixedBackend::to_layout(const Tensor& from, const Tensor& to) {
  by_copies([&](Float32Copies& c) { floats_.to_layout(c.in(from), c.out(to)); });
}

void MixedBackend::normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                    const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.normalize_images(x, scale, shift, c.out(y)); });
}

void MixedBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  if (!is_bf16(a)) return floats_.add(a, b, y);
  require_alike("add", "b", b, a);
  require_alike("add", "y", y, a);
  element_by_element(threads(), a.stored_numel(), std::array{halves("add", "a", a), halves("add", "b", b)},
                     halves("add", "y", y), [&](const Tensor& left, const Tensor& right, const Tensor& to) {
                       floats_.add(left, right, to);
                     });
}

void MixedBackend::scale(const Tensor& x, float factor, const Tensor& y) {
  if (!is_bf16(x)) return floats_.scale(x, factor, y);
  require_alike("scale", "y", y, x);
  element_by_element(threads(), x.stored_numel(), std::array{halves("scale", "x", x)},
                     halves("scale", "y", y),
                     [&](const Tensor& from, const Tensor& to) { floats_.scale(from, factor, to); });
}

void MixedBackend::activation(Activation kind, const Tensor& x, const Tensor& y) {
  constexpr const char* operation = "activation";
  if (!is_bf16(x)) return floats_.activation(kind, x, y);
  require_alike(operation, "y", y, x);
  element_by_element(threads(), x.stored_numel(), std::array{halves(operation, "x", x)},
                     halves(operation, "y", y),
                     [&](const Tensor& from, const Tensor& to) { floats_.activation(kind, from, to); });
}

void MixedBackend::activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  constexpr const char* operation = "activation_backward";
  if (!is_bf16(x)) return floats_.activation_backward(kind, x, dy, dx);
  require_alike(operation, "dy", dy, x);
  require_alike(operation, "dx", dx, x);
  element_by_element(
      threads(), x.stored_numel(), std::array{halves(operation, "x", x), halves(operation, "dy", dy)},
      halves(operation, "dx", dx), [&](const Tensor& at, const Tensor& from, const Tensor& to) {
        floats_.activation_backward(kind, at, from, to);
      });
}

void MixedBackend::add_rows(const Tensor& x, const Tensor& row, const Tensor& y) {
  by_copies([&](Float32Copies& c) { floats_.add_rows(c.in(x), c.in(row), c.out(y)); });
}

void MixedBackend::sum_rows(const Tensor& x, const Tensor& row, bool accumulate) {
  by_copies([&](Float32Copies& c) { floats_.sum_rows(c.in(x), row, accumulate); });
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

void MixedBackend::channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) {
  by_copies([&](Float32Copies& c) { floats_.channel_sums(c.in(dy), dbias, accumulate); });
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

void MixedBackend::channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) {
  sum_over_slices(x, moments, [&](Float32Copies& c, const auto& of, const Tensor& to) {
    floats_.channel_moments(c.in(of(x)), centre, to);
  });
}

void MixedBackend::batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                              const Tensor& weight, const Tensor& bias, const Tensor& y) {
  require_alike("batch_norm", "y", y, x);
  by_slices(x, 1, [&](Float32Copies& c, const auto& of, bool) {
    floats_.batch_norm(c.in(of(x)), mean, inv_std, weight, bias, c.out(of(y)));
  });
}

void MixedBackend::batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                            const Tensor& inv_std, const Tensor& sums) {
  require_alike("batch_norm_backward_sums", "x", x, dy);
  sum_over_slices(dy, sums, [&](Float32Copies& c, const auto& of, const Tensor& to) {
    floats_.batch_norm_backward_sums(c.in(of(dy)), c.in(of(x)), mean, inv_std, to);
  });
}

void MixedBackend::batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                             const Tensor& inv_std, const Tensor& weight, const Tensor& sums,
                                             const Tensor& count, const Tensor& dx) {
  constexpr const char* operation = "batch_norm_backward_input";
  require_alike(operation, "x", x, dy);
  require_alike(operation, "dx", dx, dy);
  by_slices(dy, 1, [&](Float32Copies& c, const auto& of, bool) {
    floats_.batch_norm_backward_input(c.in(of(dy)), c.in(of(x)), mean, inv_std, weight, sums, count,
                                      c.out(of(dx)));
  });
}

void MixedBackend::batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                   const Tensor& weight, const Tensor& bias, const Tensor& shortcut,
                                   const Tensor& y) {
  constexpr const char* operation = "batch_norm_relu";
  require_alike(operation, "y", y, x);
  if (shortcut) require_alike(operation, "shortcut", shortcut, x);
  by_slices(x, 1, [&](Float32Copies& c, const auto& of, bool) {
    floats_.batch_norm_relu(c.in(of(x)), mean, inv_std, weight, bias, c.in(of(shortcut)), c.out(of(y)));
  });
}

void MixedBackend::batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                                 const Tensor& inv_std, const Tensor& weight,
                                                 const Tensor& bias, const Tensor& sums) {
  require_alike("batch_norm_relu_backward_sums", "x", x, dy);
  sum_over_slices(dy, sums, [&](Float32Copies& c, const auto& of, const Tensor& to) {
    floats_.batch_norm_relu_backward_sums(c.in(of(dy)), c.in(of(x)), mean, inv_std, weight, bias, to);
  });
}

void MixedBackend::batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                                  const Tensor& inv_std, const Tensor& weight,
                                                  const Tensor& bias, const Tensor& sums, const Tensor& count,
                                                  const Tensor& dx) {
  constexpr const char* operation = "batch_norm_relu_backward_input";
  require_alike(operation, "x", x, dy);
  require_alike(operation, "dx", dx, dy);
  by_slices(dy, 1, [&](Float32Copies& c, const auto& of, bool) {
    floats_.batch_norm_relu_backward_input(c.in(of(dy)), c.in(of(x)), mean, inv_std, weight, bias, sums,
                                           count, c.out(of(dx)));
  });
}

// What is stored in between is rounded, as by the operations one by one: a part that is computed again in the
// backward may take them apart (model.recompute).
void MixedBackend::batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                                  const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                                  const Tensor& gated, const Tensor& sums) {
  if (!is_bf16(dy))
    return floats_.batch_norm_gated_backward_sums(dy, beside, y, x, mean, inv_std, gated, sums);
  if (beside) add(dy, beside, gated);
  activation_backward(Activation::relu, y, beside ? gated : dy, gated);
  batch_norm_backward_sums(gated, x, mean, inv_std, sums);
}

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

// --- attention

void MixedBackend::attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                             const Tensor& y, const Tensor& saved) {
  by_copies([&](Float32Copies& c) {
    floats_.attention(c.in(q), c.in(k), c.in(v), heads, causal, c.out(y), saved);
  });
}

void MixedBackend::attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v,
                                      int heads, bool causal, const Tensor& y, const Tensor& saved,
                                      const Columns& dq, const Columns& dk, const Columns& dv) {
  const auto is_whole = [](const Columns& columns) { return columns.count == columns.matrix.size(-1); };
  const bool thirds = dq.matrix.shares_memory_with(dk.matrix) && dq.matrix.shares_memory_with(dv.matrix) &&
                      dq.count + dk.count + dv.count == dq.matrix.size(-1);
  by_copies([&](Float32Copies& c) {
    const auto out = [&](const Columns& columns) { return c.out(columns, thirds || is_whole(columns)); };
    floats_.attention_backward(c.in(dy), c.in(q), c.in(k), c.in(v), heads, causal, c.in(y), saved, out(dq),
                               out(dk), out(dv));
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
