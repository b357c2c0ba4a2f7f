// Batched products of matrices, and those of dense layers.
#include <omp.h>

#include "kernels/compositions.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/native_bfloat16.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "ops/matmul.h"

namespace lockstep::kernels {
namespace {

// Batched products: the algorithm of one depends only on its own size, so its bits do too.

constexpr double flops_of_one_thread = 1 << 22;  ///< larger products use all threads together

struct Operands {
  Matrix a, b;
  const float* bias;
  float* y;
};

Operands operands_at(const ops::MatMul& op, const std::array<std::int64_t, 3>& each,
                     const std::array<std::int64_t, 3>& summed) {
  return {{op.a.data<float>() + each[0] + summed[0], op.a.size(-1), op.transposed == ops::Transposed::a},
          {op.b.data<float>() + each[1] + summed[1], op.b.size(-1), op.transposed == ops::Transposed::b},
          op.bias ? op.bias.data<float>() : nullptr,
          op.y.data<float>() + each[2]};
}

/// One product by all threads.
void multiply_alone(CpuBackend& cpu, const ops::MatMulSizes& sizes, const Operands& of, bool accumulate) {
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k;
  if (of.a.transposed) return cpu.gemm().sum_of_outer(m, n, k, of.a.data, of.b.data, accumulate, of.y);
  if (!accumulate) return cpu.gemm().rows(m, n, k, of.a, of.b, of.bias, of.y);
  const Tensor product = cpu.scratch(m * n);
  cpu.gemm().rows(m, n, k, of.a, of.b, nullptr, product.data<float>());
  cpu.run(ops::Accumulate{Tensor::view(of.y, product.shape(), DType::float32), product});
}

/// All products of an operation without an activation or a bias's gradient.
void multiply_all(CpuBackend& cpu, const ops::MatMul& op) {
  const ops::MatMulSizes sizes = op.sizes();
  const std::int64_t count = sizes.each.count(), terms = sizes.summed.count();
  if (sizes.sums_nothing()) {
    if (!op.accumulate) cpu.run(ops::Fill{op.y, 0});
    if (op.bias) cpu.run(ops::add_rows(op.y, op.bias, op.y));
    return;
  }
  const auto for_terms = [&](std::int64_t index, const auto& product) {
    for (std::int64_t term = 0; term < terms; ++term)
      product(operands_at(op, sizes.each.offsets(index), sizes.summed.offsets(term)),
              op.accumulate || term > 0);
  };
  const double flops = sizes.flops() / static_cast<double>(std::max<std::int64_t>(1, count * terms));
  if (sizes.one_matrix || flops > flops_of_one_thread) {
    for (std::int64_t index = 0; index < count; ++index)
      for_terms(index,
                [&](const Operands& of, bool accumulate) { multiply_alone(cpu, sizes, of, accumulate); });
    return;
  }
  omp_set_num_threads(1);  // gemm.h
  const auto products_per_thread =
      static_cast<std::int64_t>((1 << 17) / (flops * static_cast<double>(terms))) + 1;
  parallel_items(cpu.threads(), count, products_per_thread, [&](std::int64_t index) {
    for_terms(index, [&](const Operands& of, bool accumulate) {
      multiply(sizes.m, sizes.n, sizes.k, of.a, of.b, accumulate ? 1.0f : 0.0f, of.y, sizes.n);
    });
  });
}

/// y = a b' + bias with few rows of a, each product of two rows by itself: b is read once, at memory's speed.
void multiply_few_rows(CpuBackend& cpu, const ops::MatMul& op) {
  const std::int64_t rows = op.a.size(0), width = op.a.size(1), columns = op.b.size(0);
  constexpr std::int64_t products_per_thread = 1 << 16;
  const Tensor a = cpu.scratch(rows * width).reshape(op.a.shape());
  cpu.copy(op.a, a);
  by_type_of(op.b, [&]<class E>(E) {
    parallel_items(cpu.threads(), columns, products_per_thread / std::max<std::int64_t>(1, rows * width),
                   [&, b = op.b.data<E>()](std::int64_t j) {
                     for (std::int64_t i = 0; i < rows; ++i) {
                       const float value = dot(a.data<float>() + i * width, b + j * width, width) +
                                           (op.bias ? op.bias.data<float>()[j] : 0.0f);
                       by_type_of(op.y, [&]<class Y>(Y) { store(op.y.data<Y>()[i * columns + j], value); });
                     }
                   });
  });
}

void matmul(CpuBackend& cpu, const ops::MatMul& op) {
  if (op.activation || op.dbias) return matmul_by_steps(cpu, op);
  if (op.few_rows && op.transposed == ops::Transposed::b && op.b.shape().rank() == 2)
    return multiply_few_rows(cpu, op);
  product<&multiply_all>(cpu, op);
}

}  // namespace

void enter_matmul(CpuBackend& cpu) { cpu.enter<&matmul>(); }

}  // namespace lockstep::kernels
