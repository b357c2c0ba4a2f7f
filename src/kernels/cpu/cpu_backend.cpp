// Life, threads and memory of the CPU backend.
#include "kernels/cpu/cpu_backend.h"

#include <omp.h>

#include "lockstep/base/processor.h"

namespace lockstep::kernels {

CpuBackend::CpuBackend(int threads)
    : threads_(threads), gemm_(threads, pool_), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  if (threads < 1) throw UsageError("the CPU backend needs at least 1 thread, not {}", threads);
  flush_denormals();
  prepare();
  if (threads_ > 1) {
#pragma omp parallel num_threads(threads_)
    flush_denormals();
  }
}

CpuBackend::~CpuBackend() = default;

std::string CpuBackend::instruction_set() const {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "another (oneDNN's " + std::to_string(static_cast<unsigned>(dnnl::get_effective_cpu_isa())) +
             ")";
  }
}

void CpuBackend::prepare() const noexcept {
  omp_set_dynamic(0);  // OMP_DYNAMIC would let the runtime take fewer threads, and so change bits
  omp_set_num_threads(threads_);
}

Tensor CpuBackend::empty(Shape shape, DType dtype, int channel_block) {
  const auto bytes = static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype);
  return Tensor::over(pool_.allocate(bytes), shape, dtype, channel_block);
}

Tensor CpuBackend::scratch(std::int64_t elements, DType dtype) { return empty({elements}, dtype, 1); }

}  // namespace lockstep::kernels
