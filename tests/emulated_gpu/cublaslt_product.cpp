// The arithmetic of the emulated cuBLASLt.
#include <atomic>
#include <vector>

#include "emulated_gpu/cublaslt.h"

namespace lockstep::emulated_gpu {
namespace {

using Floats = std::vector<float>;

/// op(matrix) [rows, columns], column by column.
Floats operand(const void* data, const MatrixLayout& layout, bool transposed) {
  const std::size_t rows = transposed ? layout.columns : layout.rows,
                    columns = transposed ? layout.rows : layout.columns,
                    stride = static_cast<std::size_t>(layout.stride);
  const Element type = element_of(layout.type);
  Floats floats(rows * columns);
  for (std::size_t j = 0; j < columns; ++j) {
    for (std::size_t i = 0; i < rows; ++i)
      floats[j * rows + i] = load(type, data, transposed ? i * stride + j : j * stride + i);
  }
  return floats;
}

/// Adds the part of A B with k in [first, end).
void add_product(const Floats& a, const Floats& b, std::size_t m, std::size_t n, std::size_t k,
                 std::size_t first, std::size_t end, Floats& sums) {
  for (std::size_t j = 0; j < n; ++j) {
    float* const column = &sums[j * m];
    for (std::size_t l = first; l < end; ++l) {
      const float factor = b[j * k + l];
      const float* const from = &a[l * m];
      for (std::size_t i = 0; i < m; ++i) column[i] += from[i] * factor;
    }
  }
}

/// A B, in pieces of k as the reduction scheme says: in place they are added in the order in which they come,
/// and in the output's type they are rounded before.
Floats summed(const Product& product, const Floats& a, const Floats& b) {
  const std::size_t m = product.d.rows, n = product.d.columns, k = product.k, splits = product.splits;
  Floats sums(m * n);
  if (splits <= 1) {
    add_product(a, b, m, n, k, 0, k, sums);
    return sums;
  }
  static std::atomic<bool> backwards{false};
  const bool in_place = product.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE,
             turned = in_place && backwards.exchange(!backwards),
             rounds = product.reduction_scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const Element type = element_of(product.d.type);
  for (std::size_t split = 0; split < splits; ++split) {
    const std::size_t piece = turned ? splits - 1 - split : split;
    Floats part(m * n);
    add_product(a, b, m, n, k, piece * k / splits, (piece + 1) * k / splits, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      sums[i] += rounds ? rounded(type, part[i]) : part[i];
      if (in_place) sums[i] = rounded(type, sums[i]);
    }
  }
  return sums;
}

// GELU by tanh: x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float gelu_scale = 0.7978845608f, gelu_cubic = 0.044715f;

float gelu(float x) { return 0.5f * x * (1.0f + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x))); }

float gelu_slope(float x) {
  const float tanh = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
  const float inner = gelu_scale * (1.0f + 3.0f * gelu_cubic * x * x);
  return 0.5f * (1.0f + tanh) + 0.5f * x * (1.0f - tanh * tanh) * inner;
}

void store_bias_gradient(const Product& product, const Floats& a, const Floats& b) {
  const ProductDescription& p = product.description;
  const bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  const std::size_t m = product.d.rows, k = product.k, count = of_a ? m : product.d.columns;
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (std::size_t l = 0; l < k; ++l) sum += of_a ? a[l * m + i] : b[i * k + l];
    store(element_of(product.d.type), p.bias, i, sum);
  }
}

}  // namespace

void compute(const Product& product) {
  const ProductDescription& p = product.description;
  const Floats a = operand(product.a_data, product.a, p.transpose_a == CUBLAS_OP_T),
               b = operand(product.b_data, product.b, p.transpose_b == CUBLAS_OP_T);
  const Floats sums = summed(product, a, b);
  const Element type = element_of(product.d.type);
  const std::size_t m = product.d.rows, stride = static_cast<std::size_t>(product.d.stride),
                    aux_stride = static_cast<std::size_t>(p.aux_stride);
  const bool biased = adds_bias(p.epilogue), is_gelu = has(p.epilogue, CUBLASLT_EPILOGUE_GELU),
             is_slope = has(p.epilogue, CUBLASLT_EPILOGUE_DGELU), with_aux = uses_aux(p.epilogue);
  for (std::size_t j = 0; j < product.d.columns; ++j) {
    for (std::size_t i = 0; i < m; ++i) {
      float value = product.alpha * sums[j * m + i];
      if (product.beta != 0.0f) value += product.beta * load(type, product.c_data, j * stride + i);
      if (biased) value += load(type, p.bias, i);
      if (is_slope) {
        value *= gelu_slope(load(type, p.aux, j * aux_stride + i));
      } else if (is_gelu) {
        if (with_aux) store(type, p.aux, j * aux_stride + i, value);
        value = gelu(value);
      }
      store(type, product.d_data, j * stride + i, value);
    }
  }
  if (makes_bias_gradient(p.epilogue)) store_bias_gradient(product, a, b);
}

}  // namespace lockstep::emulated_gpu
