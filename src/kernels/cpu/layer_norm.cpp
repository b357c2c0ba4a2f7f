// Layer norm over the last dimension (Ba, Kiros, Hinton, 2016).
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr std::int64_t rows_per_block =
    64;  // weight gradients are summed in blocks of rows, and the blocks in order

std::int64_t rows_per_thread(std::int64_t width) {
  return elements_per_thread / std::max<std::int64_t>(1, width);
}

/// What the backward of one row needs.
struct RowBackward {
  const float* dy;
  const float* x;
  const float* weight;
  const float* beside;  // or null
  float mean, inv_std;
  std::int64_t width;
};

/// dx of one row, and its part of the parameters' gradients added to dweight and dbias.
void backward_row(const RowBackward row, float* dx, float* dweight, float* dbias) {
  const float *const dy = row.dy, *const x = row.x, *const weight = row.weight;
  const float mean = row.mean, inv_std = row.inv_std;
  const std::int64_t width = row.width;
  const float mean_g = dot(dy, weight, width) / static_cast<float>(width);
  const float mean_gx =
      lane_sum(
          width,
          [=](std::int64_t i) {
            return load_floats(dy + i) * load_floats(weight + i) * ((load_floats(x + i) - mean) * inv_std);
          },
          [=](std::int64_t i, std::int64_t n) {
            return load_first(dy + i, n) * load_first(weight + i, n) *
                   ((load_first(x + i, n) - mean) * inv_std);
          }) /
      static_cast<float>(width);
  const auto write = [=](const auto& added) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < width; ++i) {
      const float normal = (x[i] - mean) * inv_std, upstream = dy[i];
      dweight[i] += upstream * normal;
      dbias[i] += upstream;
      dx[i] = added(i, inv_std * (upstream * weight[i] - mean_g - normal * mean_gx));
    }
  };
  if (!row.beside) return write([](std::int64_t, float own) { return own; });
  write([beside = row.beside](std::int64_t i, float own) { return beside[i] + own; });
}

/// to (+)= the sum of `blocks` rows of partial, in order.
void sum_blocks(int threads, std::int64_t blocks, std::int64_t stride, std::int64_t width,
                const float* partial, bool accumulate, float* to) {
  parallel_ranges(threads, width, elements_per_thread / std::max<std::int64_t>(1, blocks),
                  [=](std::int64_t begin, std::int64_t end) {
                    if (!accumulate) std::fill(to + begin, to + end, 0.0f);
                    for (std::int64_t block = 0; block < blocks; ++block) {
#pragma GCC ivdep
                      for (std::int64_t i = begin; i < end; ++i) to[i] += partial[block * stride + i];
                    }
                  });
}

/// The arguments of a forward but what is normalised.
struct Normalised {
  const Tensor &weight, &bias;
  float eps;
  const Tensor &y, &mean, &inv_std;
};

/// row_of(row) -> the elements of a row of a tensor like `x`, ready to be read.
template <class RowOf>
void normalise(const char* operation, int threads, const Tensor& x, const Normalised& with,
               const RowOf& row_of) {
  const auto [count, width_bound] = rows_of(operation, x);
  const std::int64_t width = width_bound;
  require_shape(operation, "y", with.y, x.shape());
  require_numel(operation, "weight", with.weight, width);
  require_numel(operation, "bias", with.bias, width);
  require_numel(operation, "mean", with.mean, count);
  require_numel(operation, "inv_std", with.inv_std, count);
  const float *w = plain_floats(operation, "weight", with.weight),
              *b = plain_floats(operation, "bias", with.bias);
  float *to = plain_floats(operation, "y", with.y), *means = plain_floats(operation, "mean", with.mean),
        *inverses = plain_floats(operation, "inv_std", with.inv_std);
  if (width == 0) return;
  parallel_items(threads, count, rows_per_thread(width), [=, eps = with.eps](std::int64_t row) {
    const float* source = row_of(row, width);
    float* target = to + row * width;
    const float centre = sum(source, width) / static_cast<float>(width);
    const float variance = sum_of_squares_about(source, centre, width) / static_cast<float>(width);
    const float inverse = 1.0f / std::sqrt(variance + eps);
    means[row] = centre;
    inverses[row] = inverse;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < width; ++i) target[i] = std::fma((source[i] - centre) * inverse, w[i], b[i]);
  });
}

}  // namespace

void CpuBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                            const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  const float* from = plain_floats("layer_norm", "x", x);
  normalise("layer_norm", threads_, x, {weight, bias, eps, y, mean, inv_std},
            [from](std::int64_t row, std::int64_t width) { return from + row * width; });
}

void CpuBackend::add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias,
                                float eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                                const Tensor& inv_std) {
  constexpr const char* operation = "add_layer_norm";
  require_shape(operation, "b", b, a.shape());
  require_shape(operation, "the sum", sum, a.shape());
  const float *left = plain_floats(operation, "a", a), *right = plain_floats(operation, "b", b);
  float* const added = plain_floats(operation, "the sum", sum);
  normalise(operation, threads_, a, {weight, bias, eps, y, mean, inv_std},
            [=](std::int64_t row, std::int64_t width) {
              const float *from_a = left + row * width, *from_b = right + row * width;
              float* const to = added + row * width;
#pragma GCC ivdep
              for (std::int64_t i = 0; i < width; ++i) to[i] = from_a[i] + from_b[i];
              return static_cast<const float*>(to);
            });
}

void CpuBackend::layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                     const Tensor& mean, const Tensor& inv_std, const Tensor& beside,
                                     const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                                     bool accumulate) {
  constexpr const char* operation = "layer_norm_backward";
  const auto [count_bound, width_bound] = rows_of(operation, x);
  const std::int64_t count = count_bound, width = width_bound;
  require_shape(operation, "dy", dy, x.shape());
  require_shape(operation, "dx", dx, x.shape());
  require_numel(operation, "weight", weight, width);
  require_numel(operation, "dweight", dweight, width);
  require_numel(operation, "dbias", dbias, width);
  require_numel(operation, "mean", mean, count);
  require_numel(operation, "inv_std", inv_std, count);
  const float *upstream = plain_floats(operation, "dy", dy), *from = plain_floats(operation, "x", x),
              *w = plain_floats(operation, "weight", weight), *means = plain_floats(operation, "mean", mean),
              *inverses = plain_floats(operation, "inv_std", inv_std);
  const float* added = beside ? plain_floats(operation, "beside", beside) : nullptr;
  if (beside) require_shape(operation, "beside", beside, x.shape());
  float* to = plain_floats(operation, "dx", dx);
  float *weight_sum = plain_floats(operation, "dweight", dweight),
        *bias_sum = plain_floats(operation, "dbias", dbias);
  if (width == 0) return;
  const std::int64_t blocks = (count + rows_per_block - 1) / rows_per_block, stride = 2 * width;
  const Tensor partial_holder = scratch(blocks * stride);
  float* partial = partial_holder.data<float>();
  parallel_items(threads_, blocks, rows_per_thread(width) / rows_per_block, [=](std::int64_t block) {
    float *block_weight = partial + block * stride, *block_bias = block_weight + width;
    std::fill(block_weight, block_weight + stride, 0.0f);
    for (std::int64_t row = block * rows_per_block; row < std::min(count, (block + 1) * rows_per_block);
         ++row) {
      const std::int64_t at = row * width;
      backward_row(
          {upstream + at, from + at, w, added ? added + at : nullptr, means[row], inverses[row], width},
          to + at, block_weight, block_bias);
    }
  });
  sum_blocks(threads_, blocks, stride, width, partial, accumulate, weight_sum);
  sum_blocks(threads_, blocks, stride, width, partial + width, accumulate, bias_sum);
}

}  // namespace lockstep::kernels
