// Life, memory and reads of the GPU backend.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/beside.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/recording.h"
#include "kernels/data_error.h"
#include "lockstep/ops/check.h"

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

[[noreturn]] void throw_fault(const DataFault& fault) {
  if (fault.kind == DataFault::index_outside)
    throw_index_outside(fault.operation, fault.value, fault.number, fault.bound);
  if (fault.kind == DataFault::counts_differ) throw_counts_differ(fault.value, fault.bound);
  throw_target_outside(fault.operation, fault.value, fault.number, fault.bound);
}

/// Kernels know no other layouts.
void require_known_layout(const char* operation, const char* name, const Tensor& tensor) {
  const int block = tensor.channel_block();
  if (block == 1 || block == tensor.size(1)) return;
  throw UsageError("{} on a GPU: {} of shape {} is stored in channel blocks of {}; only 1 and {} are built",
                   operation, name, to_string(tensor.shape()), block, tensor.size(1));
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
  make_current();
  fault_ = scratch(fault_bytes, DType::uint8);
  check(cudaMemsetAsync(fault_.raw(), 0, sizeof(DataFault), pool_.stream()), "cudaMemsetAsync", index_);
  matmul_ = std::make_unique<Matmul>(index_, pool_);
  for (const auto enter :
       {enter_attention,   enter_batch_norm,   enter_channel_sums, enter_convolution, enter_dropout,
        enter_elementwise, enter_fold,         enter_gather,       enter_group_norm,  enter_layer_norm,
        enter_layout,      enter_loss,         enter_map,          enter_matmul,      enter_pooling,
        enter_resampling,  enter_strided_copy, enter_rms_norm,     enter_rotary,      enter_resize,
        enter_update})
    enter(*this);
}

CudaBackend::~CudaBackend() = default;

std::unique_ptr<Timer> CudaBackend::make_timer() { return make_event_timer(index_, pool_.stream()); }

std::unique_ptr<Feed> CudaBackend::make_feed() { return make_stream_feed(index_, pool_); }

std::unique_ptr<Recorder> CudaBackend::record() {
  if (recording_) throw UsageError("a recording on {} is under way", to_string(device()));
  return make_stream_recorder(index_, pool_, recording_);
}

void CudaBackend::refuse_in_recording(const char* what) const {
  if (recording_) throw UsageError("{}, which a recording cannot repeat", what);
}

void CudaBackend::make_current() const { check(cudaSetDevice(index_), "cudaSetDevice", index_); }

void CudaBackend::perform(const ops::AnyOperation& operation) {
  if (const char* const why = operation.changes_between_runs()) refuse_in_recording(why);
  const Entry& entry = entry_of(operation);
  operation.visit([&](const char* name, const ops::Role&, const Tensor& tensor) {
    require_known_layout(operation.name(), name, tensor);
  });
  if (entry.computes == Computes::in_float32 && operation.activation_type() == DType::bfloat16)
    throw UsageError("{} on a GPU is not built for bfloat16", operation.name());
  make_current();
  entry.run(*this, operation.get());
  check(cudaGetLastError(), operation.name(), index_);
}

Tensor CudaBackend::empty(Shape shape, DType dtype, int channel_block) {
  const auto bytes = static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype);
  return Tensor::over(pool_.allocate(bytes), shape, dtype, channel_block);
}

// Tensor cores read the channels of a place together.
int CudaBackend::preferred_channel_block(std::int64_t channels, DType) const {
  return static_cast<int>(std::max<std::int64_t>(1, channels));
}

void CudaBackend::copy_elements(const Tensor& from, const Tensor& to) {
  ops::require_alike("copy", "the target", to, from);
  const bool converts = from.dtype() != to.dtype();
  const bool up = from.device() == Device::cpu(), down = to.device() == Device::cpu();
  const auto known = [&](const Device& other) { return other == Device::cpu() || other == device(); };
  if ((up && down) || !known(from.device()) || !known(to.device()))
    throw UsageError("copy: the backend of {} cannot copy from {} to {}", to_string(device()),
                     to_string(from.device()), to_string(to.device()));
  if (up) refuse_in_recording("values come from the CPU");
  if (up && converts) {
    const Tensor here = empty(from.shape(), from.dtype(), from.channel_block());
    copy_elements(from, here);
    return copy_elements(here, to);
  }
  if (down) {
    const Transfer one{in_type(from, to.dtype()), to};
    return read_elements({&one, 1});
  }
  make_current();
  if (up) return upload_.copy(from.raw(), to.raw(), from.bytes());
  if (!converts) {
    check(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDeviceToDevice, pool_.stream()),
          "cudaMemcpyAsync", index_);
  } else if (convert(launch(), from, to)) {
    check(cudaGetLastError(), "copy", index_);
  } else {
    throw UsageError("copy: {} is not converted to {}", to_string(from.dtype()), to_string(to.dtype()));
  }
}

void CudaBackend::read_elements(std::span<const Transfer> transfers) {
  refuse_in_recording("values are read by the CPU");
  make_current();
  DataFault fault;  // what the work before has found wrong in data comes with every read
  downloads_.assign(1, {.from = fault_.raw(), .to = &fault, .bytes = sizeof fault});
  for (const auto& [from, to] : transfers) {
    ops::require_alike("read", "the target", to, from);
    if (from.dtype() != to.dtype() || from.device() != device() || to.device() != Device::cpu())
      throw UsageError("read: the backend of {} cannot bring {} on {} to the CPU as {} on {}",
                       to_string(device()), to_string(from.dtype()), to_string(from.device()),
                       to_string(to.dtype()), to_string(to.device()));
    downloads_.push_back({.from = from.raw(), .to = to.raw(), .bytes = from.bytes()});
  }
  download_.copy(downloads_);
  if (fault.kind == DataFault::none) return;
  check(cudaMemsetAsync(fault_.raw(), 0, sizeof fault, pool_.stream()), "cudaMemsetAsync", index_);
  throw_fault(fault);
}

std::unique_ptr<Backend> make_cuda_backend(int index) { return std::make_unique<CudaBackend>(index); }

}  // namespace lockstep::kernels
