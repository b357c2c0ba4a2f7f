// Layer norm and RMS norm over the last dimension (Ba, Kiros, Hinton, 2016; Zhang, Sennrich, 2019), and group
// norm over groups of channels of one image (Wu, He, 2018).
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"
#include "ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
/// Weight gradients are summed in blocks of rows, and the blocks in order.
constexpr std::int64_t rows_per_block = 64;

std::int64_t rows_per_thread(std::int64_t width) {
  return elements_per_thread / std::max<std::int64_t>(1, width);
}

/// The inputs of the backward of one row.
struct RowBackward {
  const float* dy;
  const float* x;
  const float* weight;
  const float* residual_grad;  // or null
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
      lane_sum(width,
               [=](const auto& load) { return load(dy) * load(weight) * ((load(x) - mean) * inv_std); }) /
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
  if (!row.residual_grad) return write([](std::int64_t, float own) { return own; });
  write([residual_grad = row.residual_grad](std::int64_t i, float own) { return residual_grad[i] + own; });
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

/// row_of(row) returns the elements of a row of x or of the sum.
template <class RowOf>
void normalise(CpuBackend& cpu, const ops::LayerNorm& op, const RowOf& row_of) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const std::int64_t width = rows.width;
  const float *w = op.weight.data<float>(), *b = op.bias.data<float>();
  float *to = op.y.data<float>(), *means = op.mean.data<float>(), *inverses = op.inv_std.data<float>();
  if (width == 0) return;
  parallel_items(cpu.threads(), rows.count, rows_per_thread(width), [=, eps = op.eps](std::int64_t row) {
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

void layer_norm_in_float32(CpuBackend& cpu, const ops::LayerNorm& op) {
  const float* from = op.x.data<float>();
  if (!op.addend)
    return normalise(cpu, op, [from](std::int64_t row, std::int64_t width) { return from + row * width; });
  const float* more = op.addend.data<float>();
  float* const added = op.sum.data<float>();
  normalise(cpu, op, [=](std::int64_t row, std::int64_t width) {
    const float *left = from + row * width, *right = more + row * width;
    float* const to = added + row * width;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < width; ++i) to[i] = left[i] + right[i];
    return static_cast<const float*>(to);
  });
}

}  // namespace

void layer_norm(CpuBackend& cpu, const ops::LayerNorm& op) {
  if (op.x.dtype() == DType::float32) return layer_norm_in_float32(cpu, op);
  ops::LayerNorm norm = op;
  if (op.addend) {  // the norm of the rounded sum
    cpu.run(ops::add(op.x, op.addend, op.sum));
    norm.x = op.sum;
    norm.addend = norm.sum = {};
  }
  run_on_float32_copies<&layer_norm_in_float32>(cpu, norm, 1);
}

void layer_norm_backward(CpuBackend& cpu, const ops::LayerNormBackward& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const std::int64_t count = rows.count, width = rows.width;
  const float *upstream = op.dy.data<float>(), *from = op.x.data<float>(), *w = op.weight.data<float>(),
              *means = op.mean.data<float>(), *inverses = op.inv_std.data<float>();
  const float* added = op.residual_grad ? op.residual_grad.data<float>() : nullptr;
  float* to = op.dx.data<float>();
  float *weight_sum = op.dweight.data<float>(), *bias_sum = op.dbias.data<float>();
  if (width == 0) return;
  const std::int64_t blocks = (count + rows_per_block - 1) / rows_per_block, stride = 2 * width;
  const Tensor partial_holder = cpu.scratch(blocks * stride);
  float* partial = partial_holder.data<float>();
  parallel_items(cpu.threads(), blocks, rows_per_thread(width) / rows_per_block, [=](std::int64_t block) {
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
  sum_blocks(cpu.threads(), blocks, stride, width, partial, op.accumulate, weight_sum);
  sum_blocks(cpu.threads(), blocks, stride, width, partial + width, op.accumulate, bias_sum);
}

void rms_norm(CpuBackend& cpu, const ops::RmsNorm& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const std::int64_t width = rows.width;
  const float *from = op.x.data<float>(), *w = op.weight.data<float>();
  float *to = op.y.data<float>(), *inverses = op.inv_rms.data<float>();
  if (width == 0) return;
  parallel_items(cpu.threads(), rows.count, rows_per_thread(width), [=, eps = op.eps](std::int64_t row) {
    const float* const x = from + row * width;
    float* const y = to + row * width;
    const float inverse = 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + eps);
    inverses[row] = inverse;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < width; ++i) y[i] = (x[i] * inverse) * w[i];
  });
}

void rms_norm_backward(CpuBackend& cpu, const ops::RmsNormBackward& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const std::int64_t count = rows.count, width = rows.width;
  const float *dys = op.dy.data<float>(), *xs = op.x.data<float>(), *w = op.weight.data<float>(),
              *inverses = op.inv_rms.data<float>();
  const float* const added = op.residual_grad ? op.residual_grad.data<float>() : nullptr;
  float* const to = op.dx.data<float>();
  if (width == 0) return;
  const std::int64_t blocks = (count + rows_per_block - 1) / rows_per_block;
  const Tensor partial = cpu.empty({op.dweight ? blocks : 0, width});
  float* const sums = op.dweight ? partial.data<float>() : nullptr;
  parallel_items(cpu.threads(), blocks, rows_per_thread(width) / rows_per_block, [=](std::int64_t block) {
    if (sums) std::fill_n(sums + block * width, width, 0.0f);
    for (std::int64_t row = block * rows_per_block; row < std::min(count, (block + 1) * rows_per_block);
         ++row) {
      const float *const dy = dys + row * width, *const x = xs + row * width, inverse = inverses[row];
      const float mean =  // of the gradient of x / rms times x / rms
          lane_sum(width, [=](const auto& load) { return load(dy) * load(w) * (load(x) * inverse); }) /
          static_cast<float>(width);
      if (sums) {
        float* const sum = sums + block * width;
#pragma GCC ivdep
        for (std::int64_t i = 0; i < width; ++i) sum[i] += dy[i] * (x[i] * inverse);
      }
      const float* const residual_grad = added ? added + row * width : nullptr;
      float* const dx = to + row * width;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < width; ++i) {
        const float own = inverse * (dy[i] * w[i] - (x[i] * inverse) * mean);
        dx[i] = residual_grad ? residual_grad[i] + own : own;
      }
    }
  });
  if (op.dweight) cpu.run(ops::SumRows{partial, op.dweight, op.accumulate});
}

namespace {

std::int64_t groups_per_thread(const ops::GroupSizes& sizes) {
  return elements_per_thread / std::max<std::int64_t>(1, sizes.group_elements());
}

/// Sum of dy * (x - mean) * inv_std over one channel of one image.
float sum_of_products(const float* dy, const float* x, float mean, float inv_std, std::int64_t positions) {
  return lane_sum(positions, [=](const auto& load) { return load(dy) * ((load(x) - mean) * inv_std); });
}

}  // namespace

void group_norm(CpuBackend& cpu, const ops::GroupNorm& op) {
  const ops::GroupSizes sizes = op.sizes();
  const float *from = op.x.data<float>(), *w = op.weight.data<float>(), *b = op.bias.data<float>();
  float *to = op.y.data<float>(), *means = op.mean.data<float>(), *inverses = op.inv_std.data<float>();
  const std::int64_t elements = sizes.group_elements();
  const float eps = op.eps;
  if (elements == 0) return;
  parallel_items(
      cpu.threads(), sizes.images * sizes.groups, groups_per_thread(sizes), [=](std::int64_t item) {
        const float* group = from + item * elements;
        const float centre = sum(group, elements) / static_cast<float>(elements);
        const float variance = sum_of_squares_about(group, centre, elements) / static_cast<float>(elements);
        const float inverse = 1.0f / std::sqrt(variance + eps);
        means[item] = centre;
        inverses[item] = inverse;
        const std::int64_t first_channel = item % sizes.groups * sizes.channels_per_group;
        for (std::int64_t c = 0; c < sizes.channels_per_group; ++c) {
          const float factor = w[first_channel + c], shift = b[first_channel + c];
          const float* source = group + c * sizes.positions;
          float* target = to + item * elements + c * sizes.positions;
#pragma GCC ivdep
          for (std::int64_t i = 0; i < sizes.positions; ++i)
            target[i] = std::fma((source[i] - centre) * inverse, factor, shift);
        }
      });
}

void group_norm_backward(CpuBackend& cpu, const ops::GroupNormBackward& op) {
  const ops::GroupSizes sizes = op.sizes();
  const float *upstream = op.dy.data<float>(), *from = op.x.data<float>(), *w = op.weight.data<float>(),
              *means = op.mean.data<float>(), *inverses = op.inv_std.data<float>();
  float *to = op.dx.data<float>(), *weight_sum = op.dweight.data<float>(), *bias_sum = op.dbias.data<float>();
  const std::int64_t channels = sizes.channels, positions = sizes.positions,
                     elements = sizes.group_elements();

  // Per image and channel: the sum of dy and the sum of dy times the normalised x.
  const Tensor sums_holder = cpu.scratch(2 * sizes.images * channels);
  float *sums = sums_holder.data<float>(), *products = sums + sizes.images * channels;
  parallel_items(
      cpu.threads(), sizes.images * sizes.groups, groups_per_thread(sizes), [=](std::int64_t item) {
        const std::int64_t first_channel = item % sizes.groups * sizes.channels_per_group;
        const float centre = means[item], inverse = inverses[item];
        float mean_g = 0, mean_gx = 0;
        for (std::int64_t c = 0; c < sizes.channels_per_group; ++c) {
          const std::int64_t channel = item * sizes.channels_per_group + c, at = channel * positions;
          sums[channel] = sum(upstream + at, positions);
          products[channel] = sum_of_products(upstream + at, from + at, centre, inverse, positions);
          mean_g += w[first_channel + c] * sums[channel];
          mean_gx += w[first_channel + c] * products[channel];
        }
        mean_g /= static_cast<float>(elements);
        mean_gx /= static_cast<float>(elements);
        for (std::int64_t c = 0; c < sizes.channels_per_group; ++c) {
          const std::int64_t at = (item * sizes.channels_per_group + c) * positions;
          const float factor = w[first_channel + c];
#pragma GCC ivdep
          for (std::int64_t i = at; i < at + positions; ++i) {
            to[i] = inverse * (upstream[i] * factor - mean_g - (from[i] - centre) * inverse * mean_gx);
          }
        }
      });
  for (std::int64_t c = 0; c < channels; ++c) {
    float dweight_c = 0, dbias_c = 0;
    for (std::int64_t image = 0; image < sizes.images; ++image) {
      dweight_c += products[image * channels + c];
      dbias_c += sums[image * channels + c];
    }
    weight_sum[c] = op.accumulate ? weight_sum[c] + dweight_c : dweight_c;
    bias_sum[c] = op.accumulate ? bias_sum[c] + dbias_c : dbias_c;
  }
}

void enter_norm(CpuBackend& cpu) {
  cpu.enter<&layer_norm>();
  cpu.enter<&layer_norm_backward>(Computes::in_float32,
                                  rows_per_block);  // summed together, with the same bits as all rows
  cpu.enter<&rms_norm>(Computes::in_float32, 1);
  cpu.enter<&rms_norm_backward>(Computes::in_float32, rows_per_block);
  cpu.enter<&group_norm, &group_norm_backward>(Computes::in_float32);
}

}  // namespace lockstep::kernels
