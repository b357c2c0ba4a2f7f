#include "kernels/cuda/matmul_plan.h"

#include <algorithm>

#include "kernels/cuda/error.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

cudaDataType_t cublas_type(DType dtype) {
  if (dtype == DType::float32) return CUDA_R_32F;
  if (dtype == DType::bfloat16) return CUDA_R_16BF;
  throw UsageError("matrices of {} are not multiplied on a GPU; only float32 and bfloat16 are built",
                   to_string(dtype));
}

/// Of every tensor, wherever it is: in the pool or in an arena, whose plan may be remade. What an address
/// is a multiple of beyond that must not choose the algorithm, and with it the bits.
constexpr std::uint32_t tensor_alignment = 64;

/// The largest power of two, tensor_alignment at most, that the address is a multiple of, and those `step`
/// bytes further on.
std::uint32_t alignment_of(const void* address, std::uintptr_t step = 0) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | step | tensor_alignment;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace

// cuBLASLt's matrices are column-major, so it is told C' = B' A': a row-major matrix is its own transpose
// there.
struct Matmul::Plan {
  Plan(const MatmulProblem& problem, cublasLtHandle_t handle, int device) : device_(device) {
    try {
      describe(problem);
      usable = choose(handle, problem.alignment);
    } catch (...) {
      free();
      throw;
    }
  }
  ~Plan() { free(); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;  // B', A', C'
  cublasLtMatmulAlgo_t algorithm{};
  bool usable = false;  ///< there is an algorithm

  /// Bias and `before`, which are not part of the problem.
  void point_to(const Epilogue& epilogue) {
    if (epilogue.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias);
    if (epilogue.before) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.before);
  }

 private:
  static cublasLtEpilogue_t epilogue_of(const MatmulProblem& p) {
    switch (p.epilogue) {
      case Epilogue::Kind::none:
        break;
      case Epilogue::Kind::bias:
        return CUBLASLT_EPILOGUE_BIAS;
      case Epilogue::Kind::gelu:
        if (p.before) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      case Epilogue::Kind::gelu_slope:
        return CUBLASLT_EPILOGUE_DGELU;
      case Epilogue::Kind::bias_gradient:
        return CUBLASLT_EPILOGUE_BGRADB;  // our A is cuBLASLt's B
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
  }

  void describe(const MatmulProblem& p) {
    check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
          device_);
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b_transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a_transposed));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
    if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cublas_type(p.out));
    if (p.before) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cublas_type(p.out));
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
    }
    // An algorithm is found for the alignment of these addresses: those of all calls are multiples of this.
    void* const least_aligned = reinterpret_cast<void*>(std::uintptr_t{p.alignment});
    point_to({.bias = p.bias ? least_aligned : nullptr, .before = p.before ? least_aligned : nullptr});
    // As they are in memory: rows of `stride` elements are columns there.
    layout(left, p.in, p.b_transposed ? p.k : p.n, p.b_transposed ? p.n : p.k, p.b_stride,
           {p.batch.count, p.b_step});
    layout(right, p.in, p.a_transposed ? p.m : p.k, p.a_transposed ? p.k : p.m, p.a_stride,
           {p.batch.count, p.a_step});
    layout(result, p.out, p.n, p.m, p.n, p.batch);
  }

  /// Whether there is an algorithm.
  bool choose(cublasLtHandle_t handle, std::uint32_t alignment) {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", device_);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Not in place, whose order of additions is that of time, nor in the output's type, which rounds parts of
    // a sum to bf16.
    const auto reductions = static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    for (const auto name :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(name, alignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, product, left, right, result, result,
                                                                 preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
    check(status, "cublasLtMatmulAlgoGetHeuristic", device_);
    algorithm = found.algo;
    return count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t name, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(product, name, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", device_);
  }

  void layout(cublasLtMatrixLayout_t& made, DType dtype, std::int64_t rows, std::int64_t columns,
              std::int64_t stride, const Batch& batch) {
    check(cublasLtMatrixLayoutCreate(&made, cublas_type(dtype), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), stride),
          "cublasLtMatrixLayoutCreate", device_);
    if (batch.count == 1) return;
    const auto set_layout = [&](cublasLtMatrixLayoutAttribute_t name, const auto& value) {
      check(cublasLtMatrixLayoutSetAttribute(made, name, &value, sizeof value),
            "cublasLtMatrixLayoutSetAttribute", device_);
    };
    set_layout(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch.count));
    set_layout(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch.step);
  }

  void free() noexcept {
    for (cublasLtMatrixLayout_t made : {left, right, result}) {
      if (made) cublasLtMatrixLayoutDestroy(made);
    }
    if (product) cublasLtMatmulDescDestroy(product);
  }

  int device_;
};

std::size_t Matmul::Hash::operator()(const MatmulProblem& p) const noexcept {
  return hash_of(p.m, p.n, p.k, p.a_stride, p.b_stride, p.a_step, p.b_step, p.batch.count, p.batch.step,
                 p.a_transposed, p.b_transposed, p.in, p.out, p.epilogue, p.bias, p.before, p.accumulate,
                 p.alignment);
}

Matmul::Matmul(int device, StreamPool& pool)
    : device_(device), pool_(pool), workspace_(pool.allocate(workspace_bytes)) {
  check(cublasLtCreate(&handle_), "cublasLtCreate", device);
}

Matmul::~Matmul() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

Matmul::Plan& Matmul::plan_for(const MatmulProblem& problem) {
  const auto found = plans_.find(problem);
  if (found != plans_.end()) return *found->second;
  return *plans_.emplace(problem, std::make_unique<Plan>(problem, handle_, device_)).first->second;
}

void Matmul::multiply(std::int64_t m, std::int64_t n, std::int64_t k, DType in, const DeviceMatrix& a,
                      const DeviceMatrix& b, DType out, void* c, const Epilogue& epilogue, bool accumulate,
                      const Batch& batch) {
  if (try_multiply(m, n, k, in, a, b, out, c, epilogue, accumulate, batch)) return;
  throw FailureError("cuBLASLt on cuda:{} has no kernel for [{}, {}] by [{}, {}] of {} into {}", device_, m,
                     k, k, n, to_string(in), to_string(out));
}

bool Matmul::try_multiply(std::int64_t m, std::int64_t n, std::int64_t k, DType in, const DeviceMatrix& a,
                          const DeviceMatrix& b, DType out, void* c, const Epilogue& epilogue,
                          bool accumulate, const Batch& batch) {
  const auto alignment_if = [](const void* address) {
    return address ? alignment_of(address) : tensor_alignment;
  };
  const auto bytes = [](std::int64_t elements, DType type) {
    return static_cast<std::uintptr_t>(elements) * bytes_of(type);
  };
  const std::uint32_t alignment = std::min(
      {alignment_of(a.data, bytes(a.step, in)), alignment_of(b.data, bytes(b.step, in)),
       alignment_of(c, bytes(batch.step, out)), alignment_if(epilogue.bias), alignment_if(epilogue.before)});
  Plan& plan = plan_for({.m = m,
                         .n = n,
                         .k = k,
                         .a_stride = a.stride,
                         .b_stride = b.stride,
                         .a_step = a.step,
                         .b_step = b.step,
                         .batch = batch,
                         .a_transposed = a.transposed,
                         .b_transposed = b.transposed,
                         .in = in,
                         .out = out,
                         .epilogue = epilogue.kind,
                         .bias = epilogue.bias != nullptr,
                         .before = epilogue.before != nullptr,
                         .accumulate = accumulate,
                         .alignment = alignment});
  if (!plan.usable) return false;
  plan.point_to(epilogue);
  const float alpha = 1, beta = accumulate ? 1.0f : 0.0f;
  check(cublasLtMatmul(handle_, plan.product, &alpha, b.data, plan.left, a.data, plan.right, &beta, c,
                       plan.result, c, plan.result, &plan.algorithm, workspace_->data, workspace_bytes,
                       pool_.stream()),
        "cublasLtMatmul", device_);
  return true;
}

}  // namespace lockstep::kernels
