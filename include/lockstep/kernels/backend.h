// Backend: memory of one device, and the operations (lockstep/ops) that it carries out.
//
// Results depend on the operations, the instruction set and threads() only: never on addresses, timing, or
// what ran before. Steady state: operations with shapes seen before allocate nothing.
//
// A GPU runs behind the program: an operation has been asked for, not done, when run() returns, and results
// are tensors, never values. A copy to the CPU is a read: it waits, and what it brings is there when it
// returns. DataErrors (an index outside) are thrown at once, or by a device that runs behind at the next
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "lockstep/ops/operation.h"

namespace lockstep::kernels {

class Backend;

/// A tensor in CPU memory and its copy on the device. On the CPU both are the same memory.
struct StagedTensor {
  Tensor host;    ///< CPU memory that the device copies from at full speed
  Tensor device;  ///< of the same shape and type
};

/// Copies what one thread fills in CPU memory to the device, while another thread computes there. The thread
/// that fills calls begin_fill() and send(), then the one that computes calls receive() and release(); the
/// callers order the two threads. Must not outlive its Backend; its tensors may.
class StagingQueue {
 public:
  virtual ~StagingQueue() = default;
  /// Zeroed. Before the first begin_fill().
  virtual StagedTensor allocate(Shape shape, DType dtype) = 0;

  /// Filling: returns when the host's side may be written again.
  virtual void begin_fill() = 0;
  /// Filling: starts the copies, once the device no longer computes with what was there before.
  virtual void send(std::span<const StagedTensor> tensors) = 0;
  /// Computing: operations asked for from now on find what was sent.
  virtual void receive() = 0;
  /// Computing: no operation asked for from now on, until the next receive(), uses it.
  virtual void release() = 0;
};

/// For a CPU: nothing is copied.
std::unique_ptr<StagingQueue> make_host_staging_queue();

/// Captured operations with the memory they were asked for: each launch reads what is in that memory then.
/// The memory must still be there. Must not outlive its Backend; belongs to its thread.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Asks for all of the operations.
  virtual void launch() = 0;
};

/// For its life, operations asked of the Backend are captured and not done. What cannot be repeated throws
/// UsageError: reads, copies from the CPU, random numbers. Tensors made meanwhile must go before the end,
/// those from before must not.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;  ///< without finish() the capture is thrown away
  /// Once. Throws UsageError with the reason if there is no graph.
  virtual std::unique_ptr<Graph> finish() = 0;
};

/// How long a device took, which may run behind the program: spans between moments in the order of a
/// Backend's operations. Must not outlive it; belongs to its thread.
class Timer {
 public:
  static constexpr int most_moments = 4;
  virtual ~Timer() = default;
  /// Moment `which` is when all operations asked for so far are done.
  virtual void mark(int which) = 0;
  /// Milliseconds from one moment marked to another. To be asked after a read that followed both.
  virtual double elapsed_ms(int from, int to) = 0;
};

/// A tensor, and another of its shape, type and layout that gets its elements.
struct Transfer {
  Tensor from, to;
};

/// Activations that a function takes.
enum class Computes : std::uint8_t {
  in_both_types,  ///< float32 and bf16
  in_float32,  ///< where activations are bf16 it gets float32 copies of them, and what it writes is rounded
};

/// How a device carries out the operations of one type.
struct Entry {
  void (*run)(Backend&, const void* operation) = nullptr;
  Computes computes = Computes::in_both_types;
  /// in_float32, operands by_row: copies are made of some rows at a time that fit the caches, a multiple of
  /// this; 0: of all.
  std::int64_t rows_together = 0;
};

/// Is told what a backend does.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The backend is about to be asked.
  virtual void begin() = 0;
  /// It has been asked, and threw nothing; after a read (a copy from its device to the CPU) it has done all
  /// before.
  virtual void end(std::string_view label, const ops::Cost& cost, bool read) = 0;
};

class Backend {
 public:
  Backend();
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Device device() const = 0;
  virtual int threads() const = 0;  ///< threads per operation; fixed for the backend's life
  /// What results depend on besides: the instruction set of the matrix products, as their library names it.
  virtual std::string instruction_set() const = 0;
  /// The queue of the device's operations as its libraries know it (cudaStream_t), in which they are done in
  /// order; none on the CPU.
  virtual void* stream() const { return nullptr; }
  /// Why products of bf16 operands would be slower here than those of float32; empty: they are not.
  virtual std::string why_slow_in_bf16() const { return {}; }
  virtual std::unique_ptr<Timer> make_timer();
  virtual std::unique_ptr<StagingQueue> make_staging_queue();
  /// Whether capture_graph() works here.
  virtual bool captures_graphs() const { return false; }
  /// Begins a capture, one at a time. Waits for the device. Throws UsageError where there are no graphs.
  virtual std::unique_ptr<GraphCapture> capture_graph();

  // --- memory
  /// Uninitialised, from the backend's pool.
  virtual Tensor empty(Shape shape, DType dtype = DType::float32, int channel_block = 1) = 0;
  /// Bytes the pool has obtained from the system.
  virtual std::size_t reserved_bytes() const = 0;
  /// Channel block that convolutions of this many channels want for their activations (1: plain).
  virtual int preferred_channel_block(std::int64_t channels, DType dtype = DType::float32) const = 0;
  /// Of ops::Attention::saved.
  virtual Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                                      std::int64_t keys) const = 0;
  void fill(const Tensor& to, double value);
  /// Any device to any device, equal shapes and layouts; converts between float32 and bfloat16, and float64,
  /// int64 and uint8 to float32 (on one device). `from` may be changed once it returns.
  void copy(const Tensor& from, const Tensor& to);
  /// The tensor itself if it has that type, otherwise a converted copy. It is on this device.
  Tensor in_type(const Tensor& tensor, DType dtype);
  /// Copies from the device to the CPU, without conversions: one read, so one wait, for all of them.
  void read(std::span<const Transfer> transfers);

  // --- operations
  /// Carries the operation out. UsageError unless its operands are what it says, all on this device;
  /// UsageError naming operation and device if the device cannot.
  template <class Operation>
  void run(const Operation& operation) {
    run(ops::AnyOperation(operation));
  }
  void run(const ops::AnyOperation& operation);

  /// From now on the operations of one type each are carried out by function(backend, operation), where
  /// `backend` is this one's class or Backend, which has checked the operation.
  template <auto... function>
  void enter(Computes computes = Computes::in_both_types, std::int64_t rows_together = 0) {
    (enter_function<function>(function, computes, rows_together), ...);
  }

  /// It is told of every operation, copy and read from now on, but not of those that others are made of.
  /// None: no more. Returns the one before. It must live as long.
  Observer* observe(Observer* observer) { return std::exchange(observer_, observer); }

 protected:
  virtual void perform(const ops::AnyOperation& operation) = 0;
  virtual void copy_elements(const Tensor& from, const Tensor& to) = 0;
  virtual void read_elements(std::span<const Transfer> transfers);
  /// UsageError naming operation and device if the table has no entry.
  const Entry& entry_of(const ops::AnyOperation& operation) const;

 private:
  template <auto function, class Class, class Operation>
  void enter_function(void (*)(Class&, const Operation&), Computes computes, std::int64_t rows_together) {
    if constexpr (!std::is_same_v<Class, Backend>) {
      if (!dynamic_cast<Class*>(this)) throw_other_class(Operation::name);
    }
    entries_[&ops::type_of<Operation>()] = {.run =
                                                [](Backend& backend, const void* op) {
                                                  function(static_cast<Class&>(backend),
                                                           *static_cast<const Operation*>(op));
                                                },
                                            .computes = computes,
                                            .rows_together = rows_together};
  }
  [[noreturn]] void throw_other_class(const char* operation) const;
  /// body(), as one thing that the observer is told of.
  template <class Body, class Label, class CostOf>
  void observed(const Body& body, const Label& label, const CostOf& cost, bool read);

  std::unordered_map<const ops::OperationType*, Entry> entries_;
  Observer* observer_ = nullptr;
};

/// The CPU backend; every operation uses `threads` threads (the caller is one), denormals flushed on each.
/// Belongs to one calling thread at a time.
std::unique_ptr<Backend> make_cpu_backend(int threads = 1);
/// The backend of a GPU. Throws UsageError saying so where Lockstep was built without CUDA, or there is no
/// such GPU.
std::unique_ptr<Backend> make_cuda_backend(int index);

/// By device.
std::unique_ptr<Backend> make_backend(Device device, int threads = 1);

// --- tensors of a device in CPU memory, and back; on the CPU nothing of this copies anything
//
// `backend` is the one whose device the tensors are on; none where all of them are on the CPU (UsageError
// naming the device otherwise).

/// CPU memory of the tensor's shape and type: the tensor itself if it is there, otherwise uninitialised.
Tensor cpu_room_for(const Tensor& tensor);
/// The elements in CPU memory, there when this returns: the tensor itself if it is there, otherwise a copy.
Tensor on_cpu(const Tensor& tensor, Backend* backend);
/// The elements on the backend's device: the tensor itself if it is there, otherwise a copy.
Tensor on_device(const Tensor& tensor, Backend& backend);
/// Elements between tensors of equal shape, type and layout, wherever they are; nothing if both are the same
/// memory.
void transfer(const Tensor& from, const Tensor& to, Backend* backend);

}  // namespace lockstep::kernels
