// Life, memory, reads and graphs of the GPU backend, and the GPUs that the CUDA runtime sees.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "base/dynamic_library.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/enter_all.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/memory.h"
#include "kernels/gpus.h"
#include "lockstep/ops/check.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/loss.h"

namespace lockstep::kernels {
namespace {

/// The text of CUDA's version number: 13000 is 13.0.
std::string version_text(int version) {
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The remedy for a driver that is older than this build.
std::string newer_driver_remedy() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string needed = version_text(runtime), known = version_text(driver);
  return fmt::format(
      "this build uses CUDA {}, which needs a driver of version {} or later, and the driver is for CUDA {}: "
      "update it, or load the module of cuda-compat-{}-{}, or build with the CUDA Toolkit {} (cmake "
      "-DCMAKE_CUDA_COMPILER=/usr/local/cuda-{}/bin/nvcc)",
      needed, runtime >= 13000 ? 580 : 525, known, runtime / 1000, runtime % 1000 / 10, known, known);
}

int present_device(int index) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    throw UsageError("device cuda:{}: the driver is too old: {}", index, newer_driver_remedy());
  }
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
    ops::throw_index_outside(fault.operation, fault.value, fault.number, fault.bound);
  if (fault.kind == DataFault::counts_differ) ops::throw_counts_differ(fault.value, fault.bound);
  ops::throw_target_outside(fault.operation, fault.value, fault.number, fault.bound);
}

/// Kernels support no other layouts.
void require_known_layout(const char* operation, const char* name, const Tensor& tensor) {
  const int block = tensor.channel_block();
  if (block == 1 || block == tensor.size(1)) return;
  throw UsageError(
      "{} on a GPU: {} of shape {} is stored in channel blocks of {}; only 1 and {} are supported", operation,
      name, to_string(tensor.shape()), block, tensor.size(1));
}

class LaunchedGraph final : public Graph {
 public:
  LaunchedGraph(const CudaBackend& gpu, cudaGraph_t graph, const CapturedDraws& draws,
                std::shared_ptr<const void> memory)
      : device_(gpu.device().index), on_(gpu.launch()), draws_(draws), memory_(std::move(memory)) {
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate", device_);
  }
  ~LaunchedGraph() override {
    cudaSetDevice(device_);
    cudaGraphExecDestroy(graph_);
  }
  LaunchedGraph(const LaunchedGraph&) = delete;
  LaunchedGraph& operator=(const LaunchedGraph&) = delete;

  void launch(std::uint64_t step) override {
    check(cudaSetDevice(device_), "cudaSetDevice", device_);
    if (draws_.any) {
      store(on_, step, draws_.step);
      check(cudaGetLastError(), "store", device_);
    }
    const cudaError_t launched = cudaGraphLaunch(graph_, on_.stream);
    if (launched != cudaSuccess) cudaGetLastError();  // otherwise the next call reports this error again
    check(launched, "cudaGraphLaunch", device_);
  }

 private:
  int device_;
  Launch on_;
  CapturedDraws draws_;
  std::shared_ptr<const void> memory_;
  cudaGraphExec_t graph_ = nullptr;
};

class StreamCapture final : public GraphCapture {
 public:
  StreamCapture(CudaBackend& gpu, StreamPool& pool, CapturedDraws& draws, bool& capturing)
      : gpu_(gpu), device_(gpu.device().index), pool_(pool), draws_(draws), capturing_(capturing) {
    check(cudaSetDevice(device_), "cudaSetDevice", device_);
    memory_ = pool_.begin_capture();
    // The rules of a capture apply to this thread only: a loader's thread may wait for its copies.
    const cudaError_t status = cudaStreamBeginCapture(pool_.stream(), cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) pool_.end_capture();
    check(status, "cudaStreamBeginCapture", device_);
    capturing_ = true;
  }
  ~StreamCapture() override { end(); }
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

  std::unique_ptr<Graph> finish() override {
    Ended ended = end();
    check(ended.status, "cudaStreamEndCapture", device_);
    if (!ended.kept.empty()) throw UsageError("{}", ended.kept);
    return std::make_unique<LaunchedGraph>(gpu_, ended.graph.get(), draws_, memory_);
  }

 private:
  struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  using GraphRef = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
  struct Ended {
    cudaError_t status = cudaSuccess;
    GraphRef graph;
    std::string kept;
  };

  Ended end() {
    Ended ended;
    if (!std::exchange(capturing_, false)) return ended;
    cudaGraph_t graph = nullptr;
    ended.status = cudaStreamEndCapture(pool_.stream(), &graph);
    ended.graph.reset(graph);
    ended.kept = pool_.end_capture();
    cudaGetLastError();  // clears the error of the capture's end or of an operation that broke it
    return ended;
  }

  CudaBackend& gpu_;
  int device_;
  StreamPool& pool_;
  CapturedDraws& draws_;
  bool& capturing_;
  std::shared_ptr<const void> memory_;
};

std::string cudnn_version_text(std::size_t version) {
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// From cuDNN 9.18 on, attention's backward has a fixed order of additions on Blackwell GPUs.
void require_repeatable_attention(int index, int major, const std::string& instruction_set) {
  constexpr std::size_t repeats = 91800;
  const std::size_t version = cudnnGetVersion();
  if (major < 10 || version >= repeats) return;
  throw UsageError(
      "device cuda:{}: a GPU of {} needs cuDNN 9.18 or later, whose attention gives the same bits every "
      "time, and here is {}: install a newer one, load its module, or name its folder in LD_LIBRARY_PATH",
      index, instruction_set, cudnn_version_text(version));
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
  if (const GpuCode code = code_for(compiled_architectures(), major, minor); !code.runs)
    throw UsageError("device cuda:{}: {}; {}", index_, code.remark, code.remedy);
  require_repeatable_attention(index_, major, instruction_set_);
  make_current();
  fault_ = scratch(fault_bytes, DType::uint8);
  step_ = scratch(1, DType::int64);
  draws_.step = static_cast<std::uint64_t*>(step_.raw());
  check(cudaMemsetAsync(fault_.raw(), 0, sizeof(DataFault), pool_.stream()), "cudaMemsetAsync", index_);
  matmul_ = std::make_unique<Matmul>(index_, pool_);
  enter_all(*this);
}

std::string CudaBackend::math_library() const {
  const std::size_t cublas = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}, {}", cublas / 10000, cublas / 100 % 100, cublas % 100,
                     cudnn_version_text(cudnnGetVersion()));
}

CudaBackend::~CudaBackend() {
  cudaSetDevice(index_);  // cuDNN and cuBLASLt need it until their handles are destroyed
}

std::unique_ptr<Timer> CudaBackend::make_timer() { return make_event_timer(index_, pool_.stream()); }

std::unique_ptr<StagingQueue> CudaBackend::make_staging_queue() {
  return kernels::make_staging_queue(index_, pool_);
}

std::unique_ptr<GraphCapture> CudaBackend::capture_graph(std::uint64_t step) {
  if (capturing_) throw UsageError("{} is already capturing a graph", to_string(device()));
  draws_.any = false;
  draws_.captured_step = step;
  return std::make_unique<StreamCapture>(*this, pool_, draws_, capturing_);
}

KernelRandom CudaBackend::random(const RandomKey& key) {
  if (!capturing_) return {Random(key), nullptr};
  if (key.step != draws_.captured_step)
    throw UsageError(
        "random numbers of step {} are drawn in step {}, which a graph cannot repeat: draw by "
        "tape.pass().step",
        key.step, draws_.captured_step);
  draws_.any = true;
  return {Random(key), draws_.step};
}

void CudaBackend::refuse_in_capture(const char* what) const {
  if (capturing_) throw UsageError("{}, which a graph cannot repeat", what);
}

void CudaBackend::make_current() const { check(cudaSetDevice(index_), "cudaSetDevice", index_); }

const Entry& CudaBackend::begin(const ops::AnyOperation& operation) {
  if (const char* const why = operation.changes_between_runs()) refuse_in_capture(why);
  const Entry& entry = entry_of(operation);
  operation.visit([&](const char* name, const ops::Role&, const Tensor& tensor) {
    require_known_layout(operation.name(), name, tensor);
  });
  if (entry.computes == Computes::in_float32 && operation.activation_type() == DType::bfloat16)
    throw UsageError("{} on a GPU does not support bfloat16", operation.name());
  make_current();
  return entry;
}

void CudaBackend::perform(const ops::AnyOperation& operation) {
  begin(operation).run(*this, operation.get());
  check(cudaGetLastError(), operation.name(), index_);
}

void CudaBackend::perform_parts(const ops::AnyOperation& operation, int parts) {
  begin(operation).run_parts(*this, operation.get(), parts);
  check(cudaGetLastError(), operation.name(), index_);
}

Tensor CudaBackend::empty(Shape shape, DType dtype, int channel_block) {
  const auto bytes = static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype);
  return Tensor::over(pool_.allocate(bytes), shape, dtype, channel_block);
}

std::size_t CudaBackend::free_bytes() const {
  std::size_t free = 0, all = 0;
  make_current();
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo", index_);
  return free;
}

// Channels last: tensor cores read the channels of a position together.
int CudaBackend::preferred_channel_block(std::int64_t channels, DType) const {
  return static_cast<int>(std::max<std::int64_t>(1, channels));
}

// Channels last, unless both layouts are the same: an optimizer then writes the rounded weight itself.
int CudaBackend::preferred_weight_block(const Shape& weight) const {
  return weight.rank() >= 4 && positions_of(weight) > 1 ? static_cast<int>(weight[1]) : 1;
}

// cuBLASLt reads rows of bf16 16 bytes at a time if all extents are multiples of that; its tiles are of 64
// columns and more.
std::int64_t CudaBackend::fast_columns(std::int64_t columns, DType dtype) const {
  constexpr std::int64_t many = 256, pack = 8, tile = 64;
  if (dtype != DType::bfloat16 || columns < many || columns % pack == 0) return columns;
  return (columns + tile - 1) / tile * tile;
}

void CudaBackend::copy_elements(const Tensor& from, const Tensor& to) {
  ops::require_alike("copy", "the target", to, from);
  const bool converts = from.dtype() != to.dtype();
  const bool up = from.device() == Device::cpu(), down = to.device() == Device::cpu();
  const auto known = [&](const Device& other) { return other == Device::cpu() || other == device(); };
  if ((up && down) || !known(from.device()) || !known(to.device()))
    throw UsageError("copy: the backend of {} cannot copy from {} to {}", to_string(device()),
                     to_string(from.device()), to_string(to.device()));
  if (up) refuse_in_capture("values come from the CPU");
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
  refuse_in_capture("values are read by the CPU");
  make_current();
  DataFault fault;  // every read brings the data fault of earlier work
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

Gpus find_gpus() {
  Gpus gpus{.built = true, .visible = {}, .problem = {}, .remedy = {}, .driver = {}, .runtime = {}};
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);  // 0 without a driver
  cudaRuntimeGetVersion(&runtime);
  gpus.driver = version_text(driver);
  gpus.runtime = version_text(runtime);
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int index = 0; status == cudaSuccess && index < count; ++index) {
    cudaDeviceProp properties{};
    status = cudaGetDeviceProperties(&properties, index);
    if (status == cudaSuccess)
      gpus.visible.push_back(
          {.name = properties.name,
           .memory_bytes = properties.totalGlobalMem,
           .major = properties.major,
           .minor = properties.minor,
           .code = code_for(compiled_architectures(), properties.major, properties.minor)});
  }
  if (status == cudaSuccess) {
    try {
      if (count > 0) load_cuda_libraries();
    } catch (const LibraryError& error) {
      gpus.problem = error.cause;
      gpus.remedy = error.remedy;
      gpus.visible.clear();
    }
    return gpus;
  }
  cudaGetLastError();  // clears it for the next call
  gpus.visible.clear();
  // Without a driver there are no usable GPUs; with one that is too old there may be GPUs.
  if (status != cudaErrorNoDevice && driver != 0) {
    gpus.problem = fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
    gpus.remedy = status == cudaErrorInsufficientDriver ? newer_driver_remedy()
                                                        : "see nvidia-smi, and the driver's log (dmesg, Xid)";
  }
  return gpus;
}

}  // namespace lockstep::kernels
