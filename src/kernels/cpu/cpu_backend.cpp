// Life, threads and memory of the CPU backend.
#include "kernels/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <omp.h>

#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "base/processor.h"
#include "kernels/cpu/convolution.h"
#include "kernels/cpu/enter_all.h"
#include "kernels/cpu/native_bfloat16.h"
#include "kernels/cpu/onednn.h"
#include "kernels/math_library.h"

namespace lockstep::kernels {

namespace {

/// OpenMP's runtime ends the program where it cannot start a thread.
void require_threads(int count) {
  std::latch tried(1);
  std::vector<std::jthread> started;
  try {
    while (std::ssize(started) < count) started.emplace_back([&tried] { tried.wait(); });
    tried.count_down();
  } catch (const std::system_error& error) {
    tried.count_down();
    throw Error(
        ExitCode::failure,
        fmt::format("only {} of {} threads can start: {}; raise the limit on processes (ulimit -u, the "
                    "cgroup's pids.max), or lower train.threads",
                    started.size() + 1, count + 1, error.what()));
  }
}

}  // namespace

CpuBackend::CpuBackend(int threads)
    : threads_(threads), gemm_(threads, pool_), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  if (threads < 1) throw UsageError("the CPU backend needs at least 1 thread, not {}", threads);
  flush_denormals();
  if (threads_ > 1) {
    require_threads(threads_ - 1);
#pragma omp parallel num_threads(threads_)
    flush_denormals();
  }
  if (onednn_has_bf16()) native_bfloat16_ = std::make_unique<NativeBfloat16>(*this);
  enter_all(*this);
}

CpuBackend::~CpuBackend() = default;

std::unique_ptr<Backend> make_cpu_backend(int threads) { return std::make_unique<CpuBackend>(threads); }

void CpuBackend::perform(const ops::AnyOperation& operation) {
  const Entry& entry = entry_of(operation);
  // The calling thread's OpenMP regions, oneDNN's among them, use threads() threads, independent of the
  // environment and of other backends on this thread. OMP_DYNAMIC would let the runtime use fewer, and so
  // change bits.
  omp_set_dynamic(0);
  omp_set_num_threads(threads_);
  if (entry.computes == Computes::in_float32 && operation.has_bf16())
    run_on_float32_copies(*this, entry, operation);
  else
    entry.run(*this, operation.get());
}

std::string CpuBackend::why_slow_in_bf16() const {
  if (native_bfloat16_) return {};
  return "this processor (" + instruction_set() + ") has neither AVX512-BF16 nor AMX";
}

ConvolutionCache& CpuBackend::convolutions() {
  if (!convolutions_) convolutions_ = std::make_shared<ConvolutionCache>();
  return *convolutions_;
}

std::string CpuBackend::instruction_set() const { return kernels::math_library().instruction_set; }

std::string CpuBackend::math_library() const { return kernels::math_library().version; }

Tensor CpuBackend::empty(Shape shape, DType dtype, int channel_block) {
  const auto bytes = static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype);
  return Tensor::over(pool_.allocate(bytes), shape, dtype, channel_block);
}

}  // namespace lockstep::kernels
