// Products of matrices by cuBLASLt: plans by problem, and a workspace.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/memory.h"
#include "kernels/plan_cache.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {

/// A row-major matrix, or its transpose: element (i, j) at data[i * stride + j], or data[j * stride + i] if
/// transposed. The first of a batch, whose matrices begin `step` elements apart (0: one matrix for all).
struct DeviceMatrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
  std::int64_t step = 0;
};

/// The number of products, and the elements from one C to the next.
struct Batch {
  std::int64_t count = 1, step = 0;

  static constexpr std::int64_t max_count = 65535;  ///< of one call

  bool operator==(const Batch&) const = default;
};

/// Further operations in the kernels of a product. GELU is the one by tanh.
struct Epilogue {
  enum class Kind {
    none,
    bias,        ///< + a bias of n elements to every row
    gelu,        ///< the GELU of the product and its bias
    gelu_slope,  ///< times the slope of the GELU at `before`
  };
  Kind kind = Kind::none;
  void* bias = nullptr;    ///< of type `out`. May be null with a GELU
  void* before = nullptr;  ///< [m, n] of type `out`: the input of the GELU. gelu writes it, unless it is null
};

/// Everything that the choice of an algorithm depends on.
struct MatmulProblem {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  std::int64_t a_step = 0, b_step = 0;
  Batch batch;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::float32, out = DType::float32;
  Epilogue::Kind epilogue = Epilogue::Kind::none;
  bool bias = false, before = false, accumulate = false;
  std::uint32_t alignment = 0;           ///< in bytes, 64 at most: of the three matrices
  std::uint32_t epilogue_alignment = 0;  ///< the same of bias and `before`
  int parts = 1;                         ///< of the product

  /// The problem of one part.
  MatmulProblem alone() const;

  std::size_t hash() const;
  bool operator==(const MatmulProblem&) const = default;
};

/// C = A B (and an epilogue, or + C). A: [m, k], B: [k, n] of type `in` (float32 or bf16), C: [m, n]
/// row-major of type `out`; m, n, k > 0. A batch has no epilogue.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  DType in = DType::float32;
  DeviceMatrix a, b;
  DType out = DType::float32;
  void* c = nullptr;
  std::int64_t c_stride = n;  ///< elements from one row of C to the next
  Epilogue epilogue = {};
  bool accumulate = false;
  Batch batch = {};
  /// The batch, or, if it has one product, the rows of A: so many parts, each with the bits that it has
  /// alone.
  int parts = 1;
};

/// Products summed in float32 (never TF32). The same problem always has the same algorithm, without atomic
/// sums, so that bits repeat.
class Matmul {
 public:
  Matmul(int device, StreamPool& pool);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Whether cuBLASLt has a kernel for it. Operands without an address count as aligned to 64 bytes.
  bool has_kernel(const Product& product);
  /// Returns false without any effect if cuBLASLt has no kernel.
  bool try_multiply(const Product& product);

 private:
  struct Plan;
  Plan& plan_of(const Product& product);
  Plan& plan_of(const MatmulProblem& problem);

  int device_;
  StreamPool& pool_;
  Owned<cublasLtHandle_t, cublasLtDestroy> handle_;
  StorageRef workspace_;
  PlanCache<MatmulProblem, Plan> plans_;
};

}  // namespace lockstep::kernels
