// The emulated cuBLASLt: descriptors, the choice of an algorithm, and the call, checked as documented.
#include "emulated_gpu/cublaslt.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <set>
#include <utility>

#include "emulated_gpu/counting.h"
#include "emulated_gpu/library_functions.h"
#include "emulated_gpu/runtime.h"
#include "emulated_gpu/streams.h"

namespace lockstep::emulated_gpu {
namespace {

constexpr std::uint64_t workspace_alignment = 256, aux_alignment = 16;

/// A descriptor's own type behind cuBLASLt's opaque one.
template <class Own, class Opaque>
Own* own(Opaque* opaque) {
  return reinterpret_cast<Own*>(opaque);
}

template <class Own, class Opaque>
cublasStatus_t create(Opaque** made, const Own& value) {
  if (!made) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<Opaque*>(new Own(value));
  return CUBLAS_STATUS_SUCCESS;
}

template <class Own, class Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete own<Own>(opaque);
  return CUBLAS_STATUS_SUCCESS;
}

template <class Value>
cublasStatus_t set(Value& value, const void* from, std::size_t bytes) {
  if (!from || bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// The arguments of a product that do not change from call to call.
struct Problem {
  const ProductDescription& description;
  const MatrixLayout &a, &b, &c, &d;

  std::uint64_t k() const { return description.transpose_a == CUBLAS_OP_T ? a.rows : a.columns; }
};

bool fits(const MatrixLayout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.stride >= static_cast<std::int64_t>(layout.rows);
}

/// The table of types of a sum in float32: A and B, C and D.
bool types_are_built(const Problem& p) {
  if (p.description.compute != CUBLAS_COMPUTE_32F || p.description.scale != CUDA_R_32F) return false;
  if (p.a.type != p.b.type || p.c.type != p.d.type) return false;
  return (p.a.type == CUDA_R_32F && p.d.type == CUDA_R_32F) ||
         (p.a.type == CUDA_R_16BF && (p.d.type == CUDA_R_16BF || p.d.type == CUDA_R_32F));
}

bool epilogue_is_built(cublasLtEpilogue_t epilogue) {
  const auto built = {
      CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,      CUBLASLT_EPILOGUE_GELU,
      CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
      CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_BGRADA,    CUBLASLT_EPILOGUE_BGRADB};
  return std::find(built.begin(), built.end(), epilogue) != built.end();
}

cublasStatus_t checked(const Problem& p) {
  const ProductDescription& description = p.description;
  for (const MatrixLayout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    if (!fits(*layout) || layout->batch != p.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  constexpr std::int32_t max_in_batch = 65535;  // of a grid's third dimension
  if (p.d.batch > max_in_batch) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.d.batch > 1 && description.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool turned_b = description.transpose_b == CUBLAS_OP_T;
  if ((description.transpose_a == CUBLAS_OP_T ? p.a.columns : p.a.rows) != p.d.rows ||
      (turned_b ? p.b.rows : p.b.columns) != p.d.columns || (turned_b ? p.b.columns : p.b.rows) != p.k() ||
      p.c.rows != p.d.rows || p.c.columns != p.d.columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_are_built(p) || !epilogue_is_built(description.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Of D's elements' type, or left open.
  const auto type_fits = [&](std::int32_t type) { return type == -1 || type == p.d.type; };
  if (!type_fits(description.bias_type) || !type_fits(description.aux_type))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (uses_aux(description.epilogue)) {
    if (description.aux_stride % 8 != 0 || description.aux_stride < static_cast<std::int64_t>(p.d.rows))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (alignment_of(description.aux) < aux_alignment) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// Of everything but addresses.
std::uint64_t number_of(const Problem& p) {
  std::uint64_t number = 0xcbf29ce484222325u;
  const auto add = [&](std::uint64_t part) { number = (number ^ part) * 0x100000001b3u; };
  for (const MatrixLayout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    add(static_cast<std::uint64_t>(layout->type));
    add(layout->rows);
    add(layout->columns);
    add(static_cast<std::uint64_t>(layout->stride));
    add(static_cast<std::uint64_t>(layout->batch));
    add(static_cast<std::uint64_t>(layout->batch_stride));
  }
  add(static_cast<std::uint64_t>(p.description.transpose_a));
  add(static_cast<std::uint64_t>(p.description.transpose_b));
  add(static_cast<std::uint64_t>(p.description.epilogue));
  add(static_cast<std::uint64_t>(p.description.aux_stride));
  return number;
}

/// Problems that an algorithm was checked for: its own and another one.
std::set<std::pair<std::uint64_t, std::uint64_t>>& checked_algorithms() {
  static std::set<std::pair<std::uint64_t, std::uint64_t>> all;
  return all;
}

std::uint64_t workspace_of(const Problem& p, std::uint32_t splits) {
  if (splits < 2) return 0;
  return splits * p.d.rows * p.d.columns * static_cast<std::uint64_t>(p.d.batch) * sizeof(float);
}

/// The worst that is allowed: a sum in pieces, another number of them for another alignment or size, in an
/// order that changes, or rounded in between.
void choose_order(const Problem& p, const MatmulPreference& preference, MatmulAlgorithm& algorithm) {
  const std::uint32_t alignment = std::min(
      {preference.alignment_a, preference.alignment_b, preference.alignment_c, preference.alignment_d, 256u});
  const std::uint64_t results = p.d.rows * p.d.columns * static_cast<std::uint64_t>(p.d.batch);
  const unsigned choice = static_cast<unsigned>(std::countr_zero(alignment) + std::bit_width(results));
  const auto splits = std::min<std::uint64_t>(p.k(), 2 + choice % 3);
  const std::uint64_t bytes = workspace_of(p, static_cast<std::uint32_t>(splits));
  if (bytes > preference.workspace_bytes || splits < 2) return;
  for (const auto scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
                            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) {
    if ((preference.reduction_schemes & static_cast<unsigned>(scheme)) == 0) continue;
    algorithm.reduction_scheme = scheme;
    algorithm.splits = static_cast<std::uint32_t>(splits);
    algorithm.workspace_bytes = bytes;
    return;
  }
}

/// Those have the slowest kernels.
bool is_ragged(const MatrixLayout& matrix) { return matrix.type == CUDA_R_16BF && matrix.stride % 8 != 0; }

bool aligned(const void* address, std::uint16_t alignment) { return alignment_of(address) >= alignment; }

}  // namespace

/// A handle is the device that was current.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle, current_device()); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle && *own<int>(handle) != current_device())
    refuse("a cuBLASLt handle is destroyed while another device than its own is current");
  return destroy<int>(handle);
}

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_?";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "an error of the emulated cuBLASLt";
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(made, ProductDescription{.compute = compute, .scale = scale});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return destroy<ProductDescription>(description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t name, const void* from,
                                              std::size_t bytes) {
  if (!description) return CUBLAS_STATUS_INVALID_VALUE;
  ProductDescription& product = *own<ProductDescription>(description);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(product.transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(product.transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(product.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(product.bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(product.bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(product.aux, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return set(product.aux_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(product.aux_stride, from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return create(made, MatmulPreference{});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<MatmulPreference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* from, std::size_t bytes) {
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
  MatmulPreference& wanted = *own<MatmulPreference>(preference);
  switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(wanted.workspace_bytes, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(wanted.reduction_schemes, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(wanted.alignment_a, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(wanted.alignment_b, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(wanted.alignment_c, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(wanted.alignment_d, from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  return create(made, MatrixLayout{type, rows, columns, stride});
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name, const void* from,
                                                std::size_t bytes) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  MatrixLayout& matrices = *own<MatrixLayout>(layout);
  switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(matrices.batch, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(matrices.batch_stride, from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<MatrixLayout>(layout);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  if (!handle || !description || !a || !b || !c || !d || !preference || requested < 1 || !results || !count)
    return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  if (!faults().fused_products && own<ProductDescription>(description)->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Problem problem{*own<ProductDescription>(description), *own<MatrixLayout>(a), *own<MatrixLayout>(b),
                        *own<MatrixLayout>(c), *own<MatrixLayout>(d)};
  if (const cublasStatus_t status = checked(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  const MatmulPreference& wanted = *own<MatmulPreference>(preference);
  MatmulAlgorithm algorithm{
      .found = MatmulAlgorithm::found_mark,
      .problem = number_of(problem),
      .alignment_a = static_cast<std::uint16_t>(wanted.alignment_a),
      .alignment_b = static_cast<std::uint16_t>(wanted.alignment_b),
      .alignment_c = static_cast<std::uint16_t>(wanted.alignment_c),
      .alignment_d = static_cast<std::uint16_t>(wanted.alignment_d),
      .alignment_bias = static_cast<std::uint16_t>(alignment_of(problem.description.bias)),
      .alignment_aux = static_cast<std::uint16_t>(alignment_of(problem.description.aux))};
  choose_order(problem, wanted, algorithm);
  static_assert(sizeof(MatmulAlgorithm) <= sizeof(cublasLtMatmulAlgo_t));
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/// Takes an algorithm of a problem with other numbers of rows, columns and matrices. As documented, it does
/// not write result.algo.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle || !description || !a || !b || !c || !d || !algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem{*own<ProductDescription>(description), *own<MatrixLayout>(a), *own<MatrixLayout>(b),
                        *own<MatrixLayout>(c), *own<MatrixLayout>(d)};
  if (const cublasStatus_t status = checked(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  const auto algorithm = stored_at<MatmulAlgorithm>(algo, 0);
  if (algorithm.found != MatmulAlgorithm::found_mark) return CUBLAS_STATUS_INVALID_VALUE;
  checked_algorithms().insert({algorithm.problem, number_of(problem)});
  result->workspaceSize = workspace_of(problem, algorithm.splits);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  if (!handle || !description || !alpha || !beta || !a || !b || !c || !d || !a_data || !b_data || !d_data ||
      !algo)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (faults().broken != cudaSuccess || *own<int>(handle) != current_device() ||
      device_of(stream) != current_device())
    return CUBLAS_STATUS_EXECUTION_FAILED;
  require_within_reach({a_data, b_data, c_data, d_data, workspace});
  const Problem problem{*own<ProductDescription>(description), *own<MatrixLayout>(a), *own<MatrixLayout>(b),
                        *own<MatrixLayout>(c), *own<MatrixLayout>(d)};
  if (const cublasStatus_t status = checked(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  const ProductDescription& p = problem.description;
  require_within_reach({p.bias, p.aux});
  const auto algorithm = stored_at<MatmulAlgorithm>(algo, 0);
  const std::uint64_t own_number = number_of(problem);
  if (algorithm.found != MatmulAlgorithm::found_mark ||
      (algorithm.problem != own_number && !checked_algorithms().contains({algorithm.problem, own_number})))
    return CUBLAS_STATUS_INVALID_VALUE;
  Product product{.description = p,
                  .a = problem.a,
                  .b = problem.b,
                  .d = problem.d,
                  .k = problem.k(),
                  .alpha = stored_at<float>(alpha, 0),
                  .beta = stored_at<float>(beta, 0),
                  .a_data = a_data,
                  .b_data = b_data,
                  .c_data = c_data,
                  .d_data = d_data,
                  .reduction_scheme = algorithm.reduction_scheme,
                  .splits = algorithm.splits};
  if (product.beta != 0.0f && !c_data) return CUBLAS_STATUS_INVALID_VALUE;
  if (c_data == d_data && problem.c != problem.d) return CUBLAS_STATUS_INVALID_VALUE;
  if ((adds_bias(p.epilogue) || makes_bias_gradient(p.epilogue)) && !p.bias)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (uses_aux(p.epilogue) && !p.aux) return CUBLAS_STATUS_INVALID_VALUE;
  const std::size_t needed_bytes = workspace_of(problem, algorithm.splits);
  if (needed_bytes > workspace_bytes || (needed_bytes > 0 && !workspace) ||
      alignment_of(workspace) < workspace_alignment)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!aligned(a_data, algorithm.alignment_a) || !aligned(b_data, algorithm.alignment_b) ||
      !aligned(c_data, algorithm.alignment_c) || !aligned(d_data, algorithm.alignment_d) ||
      !aligned(p.bias, algorithm.alignment_bias) || !aligned(p.aux, algorithm.alignment_aux))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (is_ragged(problem.a) || is_ragged(problem.b) || is_ragged(problem.d)) ++counts().ragged_products;
  enqueue(stream, [product, workspace, needed_bytes] {
    if (counting().on()) return counting().call("cublasLtMatmul", operand_bytes(product));
    spoil(workspace, needed_bytes);
    const auto move = [](auto& data, const MatrixLayout& layout, std::int64_t number) {
      using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<std::decay_t<decltype(data)>>>,
                                       const char, char>;
      data = static_cast<Bytes*>(data) +
             number * layout.batch_stride * static_cast<std::int64_t>(bytes_of(element_of(layout.type)));
    };
    for (std::int32_t number = 0; number < product.d.batch; ++number) {
      Product one = product;
      move(one.a_data, one.a, number);
      move(one.b_data, one.b, number);
      move(one.c_data, one.d, number);
      move(one.d_data, one.d, number);
      compute(one);
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace lockstep::emulated_gpu
