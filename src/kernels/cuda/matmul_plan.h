// Products of matrices by cuBLASLt: plans by problem, and a workspace.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/memory.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {

/// A row-major matrix, or its transpose: element (i, j) at data[i * stride + j], or data[j * stride + i] if
/// transposed.
struct DeviceMatrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

/// Everything that the choice of an algorithm depends on.
struct MatmulProblem {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::float32, out = DType::float32;
  bool bias = false, accumulate = false;
  std::uint32_t alignment = 0;  ///< in bytes: of all operands

  bool operator==(const MatmulProblem&) const = default;
};

/// C = A B (+ bias to every row, or + C), summed in float32 (never TF32). The same problem takes the same
/// algorithm, and none that sums by atomic operations: bits repeat.
class Matmul {
 public:
  Matmul(int device, StreamPool& pool);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// A: [m, k], B: [k, n] of type `in` (float32 or bf16), C: [m, n] row-major of type `out`; m, n, k > 0.
  /// bias: n elements of type `out`, or null.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, DType in, const DeviceMatrix& a,
                const DeviceMatrix& b, DType out, void* c, const void* bias, bool accumulate);

 private:
  struct Plan;
  struct Hash {
    std::size_t operator()(const MatmulProblem& problem) const noexcept;
  };
  Plan& plan_for(const MatmulProblem& problem, const void* bias);

  int device_;
  StreamPool& pool_;
  cublasLtHandle_t handle_ = nullptr;
  StorageRef workspace_;
  std::unordered_map<MatmulProblem, std::unique_ptr<Plan>, Hash> plans_;
};

}  // namespace lockstep::kernels
