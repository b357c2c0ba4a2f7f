// Dense layers, and batched products of matrices. Activations are float32 or bf16; weights are converted to
// that type first, and weight gradients are float32 sums of products in it.
#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/compositions.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "ops/matmul.h"
#include "ops/strided_copy.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
constexpr std::size_t max_workspace_bytes_of_parts = std::size_t{1} << 30;

cudaDataType_t cublas_type(DType dtype) {
  if (dtype == DType::float32) return CUDA_R_32F;
  if (dtype == DType::bfloat16) return CUDA_R_16BF;
  throw UsageError("matrices of {} cannot be multiplied on a GPU; only float32 and bfloat16 are supported",
                   to_string(dtype));
}

/// The alignment of every tensor in the pool or in a flat buffer, whose plan may change. A larger alignment
/// must not affect the algorithm, and with it the bits.
constexpr std::uint32_t tensor_alignment = 64;

/// The largest power of two, tensor_alignment at most, that divides the address and `steps`, which are bytes
/// or several such numbers, or-ed.
std::uint32_t alignment_of(const void* address, std::uintptr_t steps = 0) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | steps | tensor_alignment;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace

// cuBLASLt's matrices are column-major, so it computes C' = B' A': there a row-major matrix is its own
// transpose.
struct Matmul::Plan {
  Plan(const MatmulProblem& problem, cublasLtHandle_t handle, int device) : device_(device) {
    describe(problem);
    usable = choose(handle, problem.alignment);
  }
  /// With the algorithm of one part.
  Plan(const MatmulProblem& problem, const Plan& alone, cublasLtHandle_t handle, int device)
      : device_(device) {
    describe(problem);
    cublasLtMatmulHeuristicResult_t needs{};
    algorithm = alone.algorithm;
    usable = alone.usable &&
             cublasLtMatmulAlgoCheck(handle, product.get(), left.get(), right.get(), result.get(),
                                     result.get(), &algorithm, &needs) == CUBLAS_STATUS_SUCCESS &&
             needs.workspaceSize <= max_workspace_bytes_of_parts;
    needed_bytes = std::max(needed_bytes, needs.workspaceSize);
  }

  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout left, right, result;  // B', A', C'
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t needed_bytes = workspace_bytes;  ///< of working memory; parts may need more than one
  bool usable = false;                         ///< there is an algorithm

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
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
  }

  void describe(const MatmulProblem& p) {
    make(
        product, [](auto* out) { return cublasLtMatmulDescCreate(out, CUBLAS_COMPUTE_32F, CUDA_R_32F); },
        "cublasLtMatmulDescCreate", device_);
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b_transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a_transposed));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
    if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cublas_type(p.out));
    if (p.before) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cublas_type(p.out));
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
    }
    // The algorithm is chosen for this alignment, which divides the addresses of all calls.
    void* const min_aligned = reinterpret_cast<void*>(std::uintptr_t{p.epilogue_alignment});
    point_to({.bias = p.bias ? min_aligned : nullptr, .before = p.before ? min_aligned : nullptr});
    // The matrices in memory: rows of `stride` elements are columns there.
    layout(left, p.in, p.b_transposed ? p.k : p.n, p.b_transposed ? p.n : p.k, p.b_stride,
           {p.batch.count, p.b_step});
    layout(right, p.in, p.a_transposed ? p.m : p.k, p.a_transposed ? p.k : p.m, p.a_stride,
           {p.batch.count, p.a_step});
    layout(result, p.out, p.n, p.m, p.c_stride, p.batch);
  }

  /// Whether there is an algorithm.
  bool choose(cublasLtHandle_t handle, std::uint32_t alignment) {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    make(preference, cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate", device_);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Not in place, which adds in the order of time, nor in the output's type, which rounds parts of a sum to
    // bf16.
    const auto reductions = static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    for (const auto name :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(name, alignment);
    cublasLtMatmulHeuristicResult_t heuristic{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, product.get(), left.get(), right.get(), result.get(),
                                       result.get(), preference.get(), 1, &heuristic, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
    check(status, "cublasLtMatmulAlgoGetHeuristic", device_);
    algorithm = heuristic.algo;
    return count > 0 && heuristic.state == CUBLAS_STATUS_SUCCESS;
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t name, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(product.get(), name, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", device_);
  }

  void layout(Layout& matrix, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride,
              const Batch& batch) {
    const auto create = [&](auto* out) {
      return cublasLtMatrixLayoutCreate(out, cublas_type(dtype), static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), stride);
    };
    make(matrix, create, "cublasLtMatrixLayoutCreate", device_);
    if (batch.count == 1) return;
    const auto set_layout = [&](cublasLtMatrixLayoutAttribute_t name, const auto& value) {
      check(cublasLtMatrixLayoutSetAttribute(matrix.get(), name, &value, sizeof value),
            "cublasLtMatrixLayoutSetAttribute", device_);
    };
    set_layout(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch.count));
    set_layout(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch.step);
  }

  int device_;
};

std::size_t MatmulProblem::hash() const {
  return hash_of(m, n, k, a_stride, b_stride, c_stride, a_step, b_step, batch.count, batch.step, a_transposed,
                 b_transposed, in, out, epilogue, bias, before, accumulate, alignment, epilogue_alignment,
                 parts);
}

MatmulProblem MatmulProblem::alone() const {
  MatmulProblem one = *this;
  one.parts = 1;
  if (batch.count > 1) {
    one.batch = {};
    one.a_step = one.b_step = 0;
  } else {
    one.m /= parts;
  }
  return one;
}

Matmul::Matmul(int device, StreamPool& pool)
    : device_(device), pool_(pool), workspace_(pool.allocate(workspace_bytes)) {
  make(handle_, cublasLtCreate, "cublasLtCreate", device);
}

Matmul::~Matmul() = default;

Matmul::Plan& Matmul::plan_of(const Product& p) {
  // The sizes of the matrices limit the alignment, too, because a part of a batch begins at a multiple of
  // them. So it gets the algorithm, and the bits, that it gets alone, where it begins a tensor.
  const auto matrix = [](const void* data, std::int64_t rows, std::int64_t stride, std::int64_t step,
                         DType type) {
    const std::size_t bytes = bytes_of(type);
    return alignment_of(
        data, static_cast<std::size_t>(rows * stride) * bytes | static_cast<std::size_t>(step) * bytes);
  };
  const bool rows_are_parts = p.batch.count == 1;
  const std::int64_t m = rows_are_parts ? p.m / p.parts : p.m;
  const std::uint32_t alignment =
      std::min({matrix(p.a.data, p.a.transposed ? p.k : m, p.a.stride, p.a.step, p.in),
                matrix(p.b.data, p.b.transposed ? p.n : p.k, p.b.stride, p.b.step, p.in),
                matrix(p.c, m, p.c_stride, p.batch.step, p.out)});
  const MatmulProblem problem{.m = p.m,
                              .n = p.n,
                              .k = p.k,
                              .a_stride = p.a.stride,
                              .b_stride = p.b.stride,
                              .c_stride = p.c_stride,
                              .a_step = p.a.step,
                              .b_step = p.b.step,
                              .batch = p.batch,
                              .a_transposed = p.a.transposed,
                              .b_transposed = p.b.transposed,
                              .in = p.in,
                              .out = p.out,
                              .epilogue = p.epilogue.kind,
                              .bias = p.epilogue.bias != nullptr,
                              .before = p.epilogue.before != nullptr,
                              .accumulate = p.accumulate,
                              .alignment = alignment,
                              .epilogue_alignment = std::min(alignment_of(p.epilogue.bias),
                                                             matrix(p.epilogue.before, m, p.n, 0, p.out)),
                              .parts = p.parts};
  return plan_of(problem);
}

Matmul::Plan& Matmul::plan_of(const MatmulProblem& problem) {
  return *plans_.get(problem, [&] {
    return problem.parts == 1
               ? std::make_unique<Plan>(problem, handle_.get(), device_)
               : std::make_unique<Plan>(problem, plan_of(problem.alone()), handle_.get(), device_);
  });
}

bool Matmul::has_kernel(const Product& product) { return plan_of(product).usable; }

bool Matmul::try_multiply(const Product& p) {
  Plan& plan = plan_of(p);
  if (!plan.usable) return false;
  plan.point_to(p.epilogue);
  const StorageRef workspace =
      plan.needed_bytes > workspace_bytes ? pool_.allocate(plan.needed_bytes) : workspace_;
  const float alpha = 1, beta = p.accumulate ? 1.0f : 0.0f;
  check(cublasLtMatmul(handle_.get(), plan.product.get(), &alpha, p.b.data, plan.left.get(), p.a.data,
                       plan.right.get(), &beta, p.c, plan.result.get(), p.c, plan.result.get(),
                       &plan.algorithm, workspace->data, plan.needed_bytes, pool_.stream()),
        "cublasLtMatmul", device_);
  return true;
}

namespace {

constexpr std::int64_t pack = 8;  // elements of bf16 in 16 bytes

/// A matrix of bf16 [rows, columns], and a copy of it with rows of whole packs.
struct PaddedCopy {
  PaddedCopy(CudaBackend& gpu, const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride)
      : matrix(Tensor::view(const_cast<void*>(data), {rows, columns}, DType::bfloat16, gpu.device())),
        padded(gpu.empty({rows, stride}, DType::bfloat16)),
        copy(ops::StridedView(padded).narrowed(1, 0, columns)) {}

  Tensor matrix, padded;
  ops::StridedView copy;
};

/// As Matmul::try_multiply(). cuBLASLt is several times slower if rows of bf16 are not aligned to 16 bytes:
/// with a vocabulary of 50257, a step of GPT-2 124M took 56 ms on an H200, and 30 ms with one of 50304. If
/// all sides are long enough to pay for it, this multiplies copies with padded rows. Both products of a
/// layer's backward share the copy of dy.
bool try_multiply(CudaBackend& gpu, const Product& product) {
  constexpr std::int64_t long_side = 256;
  const std::int64_t runs = product.parts > 1 ? product.batch.count : 1;  // in a batch of parts
  const std::int64_t rows = runs > 1 ? product.m : product.m / product.parts;
  const bool pays =
      product.batch.count == runs && rows >= long_side && product.n >= long_side && product.k >= long_side;
  const auto is_ragged = [&](DType type, std::int64_t columns, std::int64_t stride) {
    return pays && type == DType::bfloat16 && stride == columns && stride % pack != 0;
  };
  Product p = product;
  const auto pad = [](auto& data, std::int64_t& stride) {
    data = nullptr;  // the copy is aligned
    stride = (stride + pack - 1) / pack * pack;
  };
  const std::int64_t a_columns = p.a.transposed ? p.m : p.k, b_columns = p.b.transposed ? p.k : p.n;
  if (is_ragged(p.in, a_columns, p.a.stride)) pad(p.a.data, p.a.stride);
  if (is_ragged(p.in, b_columns, p.b.stride)) pad(p.b.data, p.b.stride);
  if (is_ragged(p.out, p.n, p.c_stride) && !p.accumulate) pad(p.c, p.c_stride);
  if (!gpu.matmul().has_kernel(p)) return false;
  std::optional<PaddedCopy> a_copy, b_copy, c_copy;
  const auto read_padded = [&](std::optional<PaddedCopy>& copy, const DeviceMatrix& from,
                               std::int64_t rows_of_one, std::int64_t columns, DeviceMatrix& to) {
    if (to.data) return;
    if (runs > 1) to.step = rows_of_one * to.stride;
    const std::int64_t all_rows = rows_of_one * runs;
    Tensor* const shared = gpu.shared_copy(from.data, all_rows * columns);
    if (shared && *shared) {
      to.data = shared->raw();
      return;
    }
    copy.emplace(gpu, from.data, all_rows, columns, to.stride);
    gpu.run(ops::StridedCopy{ops::StridedView(copy->matrix), copy->copy});
    to.data = copy->padded.raw();
    if (shared) *shared = copy->padded;
  };
  read_padded(a_copy, product.a, p.a.transposed ? p.k : p.m, a_columns, p.a);
  read_padded(b_copy, product.b, p.b.transposed ? p.n : p.k, b_columns, p.b);
  if (!p.c) p.c = c_copy.emplace(gpu, product.c, p.m, p.n, p.c_stride).padded.raw();
  if (!gpu.matmul().try_multiply(p)) return false;
  if (c_copy) gpu.run(ops::StridedCopy{c_copy->copy, ops::StridedView(c_copy->matrix)});
  return true;
}

void multiply(CudaBackend& gpu, const Product& p) {
  if (try_multiply(gpu, p)) return;
  throw FailureError("cuBLASLt on {} has no kernel for [{}, {}] by [{}, {}] of {} into {}",
                     to_string(gpu.device()), p.m, p.k, p.k, p.n, to_string(p.in), to_string(p.out));
}

/// Whether cuBLASLt's GELU can replace ours. It is the one by tanh, an approximation within bf16's rounding,
/// and needs rows of packs. Its ReLU hides a NaN, which ours keeps, so that the loss shows it.
bool gelu_fits(ops::Activation kind, const Tensor& to) {
  return kind == ops::Activation::gelu_tanh && to.dtype() == DType::bfloat16 && to.size(-1) % 8 == 0;
}

/// The first of the operation's products. b: the second operand in the type of a.
Product first_product(const ops::MatMul& op, const ops::MatMulSizes& sizes, const Tensor& b,
                      const Tensor& y) {
  return {.m = sizes.m,
          .n = sizes.n,
          .k = sizes.k,
          .in = op.a.dtype(),
          .a = {op.a.raw(), op.a.size(-1), op.transposed == ops::Transposed::a},
          .b = {b.raw(), b.size(-1), op.transposed == ops::Transposed::b},
          .out = y.dtype(),
          .c = y.raw(),
          .accumulate = op.accumulate};
}

/// A product of one matrix, of all parts, with its whole epilogue in one call; false if cuBLASLt has no such
/// call. first: part 0 of the operation.
bool matmul_in_one(CudaBackend& gpu, const ops::MatMul& op, const ops::MatMul& first, int parts) {
  const ops::MatMulSizes sizes = first.sizes();
  const bool has_gelu = op.activation && gelu_fits(*op.activation, op.y);
  if (op.y.numel() == 0 || sizes.sums_nothing() || sizes.each.count() * sizes.summed.count() != 1 ||
      op.dbias || (op.activation && !has_gelu) || (parts > 1 && !sizes.one_matrix))
    return false;
  const Tensor b = gpu.in_type(op.b, op.a.dtype()),
               bias = op.bias ? gpu.in_type(op.bias, op.y.dtype()) : Tensor();
  Product product = first_product(op, sizes, b, op.y);
  product.parts = parts;
  if (parts > 1 && op.transposed == ops::Transposed::a) {
    product.batch = {parts, first.y.numel()};
    product.a.step = first.a.numel();
    product.b.step = first.b.numel();
  } else {
    product.m *= parts;
  }
  if (op.slope_at)
    product.epilogue = {.kind = Epilogue::Kind::gelu_slope, .before = op.slope_at.raw()};
  else if (op.activation)
    product.epilogue = {.kind = Epilogue::Kind::gelu, .bias = bias.raw(), .before = op.before.raw()};
  else if (op.bias)
    product.epilogue = {.kind = Epilogue::Kind::bias, .bias = bias.raw()};
  return try_multiply(gpu, product);
}

void matmul(CudaBackend& gpu, const ops::MatMul& op) {
  if (op.activation || op.dbias) {
    if (!matmul_in_one(gpu, op, op, 1)) matmul_by_steps(gpu, op);
    return;
  }
  const ops::MatMulSizes sizes = op.sizes();
  if (op.y.numel() == 0) return;
  if (sizes.sums_nothing()) {
    if (!op.accumulate) gpu.fill(op.y, 0);
    if (op.bias) gpu.run(ops::add_rows(op.y, op.bias, op.y));
    return;
  }
  const Tensor b = gpu.in_type(op.b, op.a.dtype());
  if (op.bias) {
    const Tensor bias = gpu.in_type(op.bias, op.y.dtype());
    Product product = first_product(op, sizes, b, op.y);
    product.epilogue = {.kind = Epilogue::Kind::bias, .bias = bias.raw()};
    if (try_multiply(gpu, product)) return;
  }
  const std::int64_t terms = sizes.summed.count();
  // A sum is rounded once.
  const bool in_place = terms == 1 || op.y.dtype() == DType::float32;
  const Tensor y = in_place ? op.y : gpu.empty(op.y.shape());
  // One call computes the innermost dimension; the others are loops of calls.
  const auto outer = sizes.each.without(0);
  const bool has_inner = sizes.each.rank > 0;
  const std::int64_t inner = has_inner ? sizes.each.size[0] : 1;
  const auto step = has_inner ? sizes.each.stride[0] : std::array<std::int64_t, 3>{};
  const auto at = [](const Tensor& tensor, std::int64_t element) {
    return static_cast<void*>(static_cast<char*>(tensor.raw()) +
                              static_cast<std::size_t>(element) * bytes_of(tensor.dtype()));
  };
  Product product = first_product(op, sizes, b, y);
  product.a.step = step[0];
  product.b.step = step[1];
  for (std::int64_t index = 0, calls = outer.count(); index < calls; ++index) {
    const auto each = outer.offsets(index);
    for (std::int64_t term = 0; term < terms; ++term) {
      const auto summed = sizes.summed.offsets(term);
      for (std::int64_t first = 0; first < inner; first += Batch::max_count) {
        product.a.data = at(op.a, each[0] + summed[0] + first * step[0]);
        product.b.data = at(b, each[1] + summed[1] + first * step[1]);
        product.c = at(y, each[2] + first * step[2]);
        product.accumulate = op.accumulate || term > 0;
        product.batch = {std::min(Batch::max_count, inner - first), step[2]};
        multiply(gpu, product);
      }
    }
  }
  if (!in_place) gpu.copy(y, op.y);
  // If cuBLASLt has no such epilogue, y is rounded before the bias is added, and once more after.
  if (op.bias) gpu.run(ops::add_rows(op.y, op.bias, op.y));
}

void matmul_of_parts(CudaBackend& gpu, const ops::MatMul& op, int parts) {
  if (parts == 1) return matmul(gpu, op);
  const ops::AnyOperation any(op);
  const auto in_one = [&] {
    bool done = false;
    any.with_part(0, parts, [&](const ops::AnyOperation& first) {
      done = matmul_in_one(gpu, op, ops::detail::as<ops::MatMul>(first.get()), parts);
    });
    return done;
  };
  if (in_one()) return;
  if (op.activation || op.dbias) return matmul_by_steps(gpu, op, parts);
  gpu.run_each_part(any, parts);
}

}  // namespace

void enter_matmul(CudaBackend& gpu) { gpu.enter_parts<&matmul_of_parts>(); }

}  // namespace lockstep::kernels
