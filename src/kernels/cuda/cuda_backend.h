// The backend of one GPU: cuBLASLt for products, cuDNN for convolutions and attention in bf16, own kernels
// for the rest.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

class Matmul;          // matmul.h
class Convolutions;    // convolution.h
class FlashAttention;  // attention.h
struct DataFault;      // kernels.h

/// The random numbers of a captured step, which become those of the step of each launch.
struct CapturedDraws {
  bool any = false;
  std::uint64_t captured_step = 0;
  std::uint64_t* step = nullptr;  ///< of the launch, on the device
};

/// Enqueues work on one stream, in order, and waits only in reads. Activations are plain or channels-last.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;

  Device device() const override { return Device::cuda(index_); }
  int threads() const override { return 1; }
  std::string instruction_set() const override { return instruction_set_; }
  std::string math_library() const override;
  void* stream() const override { return pool_.stream(); }
  std::unique_ptr<Timer> make_timer() override;
  std::unique_ptr<StagingQueue> make_staging_queue() override;
  bool captures_graphs() const override { return true; }
  std::unique_ptr<GraphCapture> capture_graph(std::uint64_t step) override;
  Tensor empty(Shape shape, DType dtype = DType::float32, int channel_block = 1) override;
  std::size_t reserved_bytes() const override { return pool_.reserved_bytes(); }
  std::size_t free_bytes() const override;
  int preferred_channel_block(std::int64_t channels, DType dtype) const override;
  int preferred_weight_block(const Shape& weight) const override;
  std::int64_t fast_columns(std::int64_t columns, DType dtype) const override;
  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                              std::int64_t keys) const override;

  /// From now on function(backend, operation, parts) runs the operations of its type, alone and in parts. It
  /// gets the operation of part 0; in part p each operand that is not shared begins p times its elements
  /// further on (see part_number() in device_code.cuh).
  template <auto... function>
  void enter_at_once() {
    (enter_function_at_once<function>(function), ...);
  }

  // For the functions of this folder. Operations are checked before a function is called, launches after it
  // returns.

  Launch launch() const { return {.stream = pool_.stream(), .multiprocessors = multiprocessors_}; }
  /// Working memory from the pool, free for later work when it goes out of scope.
  Tensor scratch(std::int64_t elements, DType dtype = DType::float32) { return empty({elements}, dtype); }
  /// The random numbers of a key. UsageError if a graph is being captured and the key is of another step.
  KernelRandom random(const RandomKey& key);
  /// The fault that the next read throws.
  DataFault* fault() const { return static_cast<DataFault*>(fault_.raw()); }
  Matmul& matmul() { return *matmul_; }
  /// The padded copy of the shared operand, or null if `data` is another matrix.
  Tensor* shared_copy(const void* data, std::int64_t elements) {
    return shared_ && shared_.raw() == data && shared_.numel() == elements ? &shared_copy_ : nullptr;
  }
  Convolutions& convolutions();
  FlashAttention& flash_attention();

 protected:
  void share(const Tensor& operand) override {
    shared_ = operand;
    shared_copy_ = {};
  }
  void perform(const ops::AnyOperation& operation) override;
  void perform_parts(const ops::AnyOperation& operation, int parts) override;
  void copy_elements(const Tensor& from, const Tensor& to) override;
  void read_elements(std::span<const Transfer> transfers) override;

 private:
  template <auto function, class Operation>
  static void run_at_once(CudaBackend& gpu, const Operation& operation, int parts) {
    if (parts == 1) return function(gpu, operation, 1);
    ops::AnyOperation(operation).with_part(0, parts, [&](const ops::AnyOperation& first) {
      function(gpu, *static_cast<const Operation*>(first.get()), parts);
    });
  }
  template <auto function, class Operation>
  void enter_function_at_once(void (*)(CudaBackend&, const Operation&, int)) {
    enter_parts<&run_at_once<function, Operation>>();
  }

  /// Makes this the device of the calling thread.
  void make_current() const;
  /// The entry of an operation that can run now.
  const Entry& begin(const ops::AnyOperation& operation);
  /// UsageError if a graph is being captured; what: why a launch cannot repeat it.
  void refuse_in_capture(const char* what) const;

  int index_;
  int multiprocessors_ = 1;
  std::string instruction_set_;
  StreamPool pool_;
  bool capturing_ = false;
  Tensor step_;
  CapturedDraws draws_;
  Upload upload_;
  Download download_;
  std::vector<Download::Copy> downloads_;  // of one read
  Tensor fault_;                           // a DataFault
  Tensor shared_, shared_copy_;            // of a SharedOperand
  std::unique_ptr<Matmul> matmul_;
  std::unique_ptr<Convolutions> convolutions_;       // created at the first convolution
  std::unique_ptr<FlashAttention> flash_attention_;  // created at the first attention in bf16
};

}  // namespace lockstep::kernels
