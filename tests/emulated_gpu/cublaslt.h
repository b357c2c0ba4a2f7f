// The parts of the emulated cuBLASLt: what its opaque descriptors hold, and the product that they describe.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

#include "emulated_gpu/library_memory.h"

namespace lockstep::emulated_gpu {

/// Column-major; the first of a batch.
struct MatrixLayout {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t stride = 0;
  std::int32_t batch = 1;
  std::int64_t batch_stride = 0;

  bool operator==(const MatrixLayout&) const = default;
};

struct ProductDescription {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  std::int32_t bias_type = -1;
  void* aux = nullptr;
  std::int64_t aux_stride = 0;
  std::int32_t aux_type = -1;
};

struct MatmulPreference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

/// What cublasLtMatmulAlgo_t holds: it works for the problem and the alignments that it was found for.
struct MatmulAlgorithm {
  std::uint32_t found = 0;  ///< found_mark, or nobody has asked for it
  std::uint32_t reduction_scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::uint32_t splits = 1;  ///< pieces of k
  std::uint64_t problem = 0, workspace_bytes = 0;
  std::uint16_t alignment_a = 0, alignment_b = 0, alignment_c = 0, alignment_d = 0;
  std::uint16_t alignment_bias = 0, alignment_aux = 0;

  static constexpr std::uint32_t found_mark = 0x600df00d;
};

/// op(A) is [m, k], op(B) [k, n], D [m, n].
struct Product {
  ProductDescription description;
  MatrixLayout a, b, d;
  std::uint64_t k = 0;
  float alpha = 1, beta = 0;
  const void *a_data = nullptr, *b_data = nullptr, *c_data = nullptr;
  void* d_data = nullptr;
  std::uint32_t reduction_scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::uint32_t splits = 1;
};

inline Element element_of(cudaDataType_t type) {
  return type == CUDA_R_16BF ? Element::bfloat16 : Element::float32;
}

inline bool has(cublasLtEpilogue_t epilogue, unsigned bits) {
  return (static_cast<unsigned>(epilogue) & bits) == bits;
}
inline bool adds_bias(cublasLtEpilogue_t epilogue) { return has(epilogue, CUBLASLT_EPILOGUE_BIAS); }
inline bool makes_bias_gradient(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
inline bool uses_aux(cublasLtEpilogue_t epilogue) { return has(epilogue, 128u); }

/// Of its matrices, once each.
inline std::size_t operand_bytes(const Product& product) {
  const auto bytes = [](const MatrixLayout& layout) {
    return layout.rows * layout.columns * bytes_of(element_of(layout.type));
  };
  const bool reads_d = product.beta != 0.0f;
  std::size_t one = bytes(product.a) + bytes(product.b) + (reads_d ? 2 : 1) * bytes(product.d);
  if (uses_aux(product.description.epilogue)) one += bytes(product.d);
  return one * static_cast<std::size_t>(product.d.batch);
}

/// The product, now.
void compute(const Product& product);

}  // namespace lockstep::emulated_gpu
