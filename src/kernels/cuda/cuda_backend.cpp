// Life, memory and reads of the GPU backend.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/beside.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/recording.h"
#include "kernels/data_error.h"

namespace lockstep::kernels {
namespace {

int present_device(int index) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess && status != cudaErrorNoDevice) {
    cudaGetLastError();
    throw UsageError("device cuda:{}: the GPUs cannot be reached: {} ({}); is the driver installed?", index,
                     cudaGetErrorString(status), cudaGetErrorName(status));
  }
  if (index >= 0 && index < devices) return index;
  throw UsageError("device cuda:{}: there {} {} GPU{} here; set train.device = cpu, or see nvidia-smi", index,
                   devices == 1 ? "is" : "are", devices, devices == 1 ? "" : "s");
}

[[noreturn]] void throw_fault(const DataFault& fault, const char* operation) {
  if (fault.kind == DataFault::index_outside)
    throw_index_outside(operation, fault.value, fault.number, fault.bound);
  throw_target_outside(operation, fault.value, fault.number, fault.bound);
}

}  // namespace

CudaBackend::CudaBackend(int index)
    : index_(present_device(index)),
      pool_(index_),
      upload_(index_, pool_.stream()),
      download_(index_, pool_.stream()) {
  load_cuda_libraries();
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index_),
        "cudaDeviceGetAttribute", index_);
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index_), "cudaDeviceGetAttribute",
        index_);
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index_), "cudaDeviceGetAttribute",
        index_);
  instruction_set_ = fmt::format("sm_{}{}", major, minor);
  fault_ = scratch(sizeof(DataFault), DType::uint8);
  check(cudaMemsetAsync(fault_.raw(), 0, sizeof(DataFault), launch().stream), "cudaMemsetAsync", index_);
  matmul_ = std::make_unique<Matmul>(index_, pool_);
}

CudaBackend::~CudaBackend() = default;

std::string CudaBackend::instruction_set() const { return instruction_set_; }

std::unique_ptr<Timer> CudaBackend::make_timer() { return make_event_timer(index_, pool_.stream()); }

std::unique_ptr<Feed> CudaBackend::make_feed() { return make_stream_feed(index_, pool_); }

std::unique_ptr<Recorder> CudaBackend::record() {
  if (recording_) throw UsageError("a recording on {} is under way", to_string(device()));
  return make_stream_recorder(index_, pool_, recording_);
}

void CudaBackend::refuse_in_recording(const char* what) const {
  if (recording_) throw UsageError("{}, which a recording cannot repeat", what);
}

Launch CudaBackend::launch() const {
  check(cudaSetDevice(index_), "cudaSetDevice", index_);
  return {.stream = pool_.stream(), .multiprocessors = multiprocessors_, .device = index_};
}

Tensor CudaBackend::empty(Shape shape, DType dtype, int channel_block) {
  const auto bytes = static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype);
  return Tensor::over(pool_.allocate(bytes), shape, dtype, channel_block);
}

Tensor CudaBackend::scratch(std::int64_t elements, DType dtype) { return empty({elements}, dtype, 1); }

Tensor CudaBackend::in_type(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const Tensor converted = empty(tensor.shape(), dtype, tensor.channel_block());
  copy(tensor, converted);
  return converted;
}

Tensor CudaBackend::in_layout(const Tensor& tensor, bool channels_last) {
  const int block = channels_last ? static_cast<int>(tensor.size(1)) : 1;
  if (tensor.channel_block() == block) return tensor;
  const Tensor converted = empty(tensor.shape(), tensor.dtype(), block);
  to_layout(tensor, converted);
  return converted;
}

void CudaBackend::read(std::span<const Transfer> transfers) {
  constexpr const char* names[] = {"embedding", "cross_entropy"};
  refuse_in_recording("values are read by the CPU");
  const Launch on = launch();
  DataFault fault;  // what the work before has found wrong in data comes with every read
  downloads_.assign(1, {.from = fault_.raw(), .to = &fault, .bytes = sizeof fault});
  for (const auto& [from, to] : transfers) {
    require_alike("read", "the target", to, from);
    if (from.dtype() != to.dtype() || from.device() != device() || to.device() != Device::cpu())
      throw UsageError("read: the backend of {} cannot bring {} on {} to the CPU as {} on {}",
                       to_string(device()), to_string(from.dtype()), to_string(from.device()),
                       to_string(to.dtype()), to_string(to.device()));
    downloads_.push_back({.from = from.raw(), .to = to.raw(), .bytes = from.bytes()});
  }
  download_.copy(downloads_);
  if (fault.kind == DataFault::none) return;
  check(cudaMemsetAsync(fault_.raw(), 0, sizeof fault, on.stream), "cudaMemsetAsync", index_);
  throw_fault(fault, names[fault.operation]);
}

std::unique_ptr<Backend> make_cuda_backend(int index) { return std::make_unique<CudaBackend>(index); }

}  // namespace lockstep::kernels
