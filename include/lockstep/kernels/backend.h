// Backend: memory of one device, and the operations (lockstep/ops) that it carries out.
//
// Results depend on the operations, the instruction set and threads() only: never on addresses, timing, or
// what ran before. Steady state: operations with shapes seen before allocate nothing.
//
// A GPU runs asynchronously: run() returns when an operation is enqueued, and results are tensors, never
// values. A copy to the CPU is a read: it waits for the device. DataErrors (an index out of range) are thrown
// at once, or, by an asynchronous device, at the next read.
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

/// Copies tensors that one thread fills in CPU memory to the device, while another thread computes there. The
/// filling thread calls begin_fill() and send(), then the computing thread calls receive() and release(); the
/// callers order the two threads. Must not outlive its Backend; its tensors may.
class StagingQueue {
 public:
  virtual ~StagingQueue() = default;
  /// A zeroed tensor. Call it before the first begin_fill().
  virtual StagedTensor allocate(Shape shape, DType dtype) = 0;
  /// Computing thread, after release(), while no thread fills the tensors: one of the queue gets this shape
  /// and zeros.
  virtual void grow(StagedTensor& tensor, Shape shape) = 0;

  /// Filling thread: returns when the host tensors may be written again.
  virtual void begin_fill() = 0;
  /// Filling thread: starts the copies once the device no longer reads the previous contents.
  virtual void send(std::span<const StagedTensor> tensors) = 0;
  /// Computing thread: later operations read the new contents.
  virtual void receive() = 0;
  /// Computing thread: no later operation uses the tensors until the next receive().
  virtual void release() = 0;
};

/// The queue of a CPU, which copies nothing.
std::unique_ptr<StagingQueue> make_host_staging_queue();

/// Captured operations and the memory that they use: each launch reads the contents of that memory. The
/// memory must still exist. Must not outlive its Backend; belongs to its thread.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Enqueues all operations. Random numbers with a key of the captured step are those of this step.
  virtual void launch(std::uint64_t step) = 0;
};

/// While it exists, operations of the Backend are captured and do not run. Operations that cannot be repeated
/// throw UsageError: reads, copies from the CPU, random numbers of another step. Tensors allocated during the
/// capture must be freed by its end; earlier ones must not be freed.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;  ///< discards the capture unless finish() was called
  /// Call it once. Throws UsageError with the reason if there is no graph.
  virtual std::unique_ptr<Graph> finish() = 0;
};

/// Measures milliseconds on a device, which may be asynchronous, between moments in the order of a Backend's
/// operations. Must not outlive it; belongs to its thread.
class Timer {
 public:
  static constexpr int max_moments = 4;  ///< moments that a timer holds
  virtual ~Timer() = default;
  /// Sets moment `which` to the end of all operations enqueued so far.
  virtual void mark(int which) = 0;
  /// Milliseconds from one marked moment to another. Call it after a read that followed both.
  virtual double elapsed_ms(int from, int to) = 0;
};

/// A copy from one tensor to another of its shape, type and layout.
struct Transfer {
  Tensor from, to;  ///< of equal shape, type and layout
};

/// The types of activations that a function supports.
enum class Computes : std::uint8_t {
  in_both_types,  ///< float32 and bf16
  in_float32,     ///< gets float32 copies of bf16 activations; its results are rounded
};

/// How a device runs the operations of one type.
struct Entry {
  void (*run)(Backend&, const void* operation) = nullptr;  ///< calls the function
  Computes computes = Computes::in_both_types;             ///< the types of activations that it supports
  /// For in_float32 and operands by_row: this many rows, or a multiple, are copied at a time, so that copies
  /// fit into the caches; 0: all rows at once.
  std::int64_t rows_together = 0;
  /// Calls a function that runs all parts at once; null: they run one after another.
  void (*run_parts)(Backend&, const void* operation, int parts) = nullptr;
};

/// Receives notice of every operation of a backend.
class Observer {
 public:
  virtual ~Observer() = default;
  /// An operation is about to run.
  virtual void begin() = 0;
  /// The operation was enqueued without an error. After a read (a copy from the device to the CPU) all
  /// earlier operations are done.
  virtual void end(std::string_view label, const ops::Cost& cost, bool read) = 0;
};

/// A device: its memory, and the functions that run its operations. Belongs to one thread at a time.
class Backend {
 public:
  Backend();
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Device device() const = 0;  ///< whose memory its tensors are in
  virtual int threads() const = 0;    ///< threads per operation; fixed for the backend's life
  /// The instruction set of the matrix products, as their library names it. Results depend on it.
  virtual std::string instruction_set() const = 0;
  /// The loaded libraries of products and convolutions, with their versions ("oneDNN 3.7.2"); empty if there
  /// are none. Results depend on them, too.
  virtual std::string math_library() const { return {}; }
  /// The cudaStream_t in which a GPU runs operations in order; null on the CPU.
  virtual void* stream() const { return nullptr; }
  /// Why products of bf16 operands are slower here than those of float32; empty if they are not.
  virtual std::string why_slow_in_bf16() const { return {}; }
  virtual std::unique_ptr<Timer> make_timer();                 ///< one that belongs to this backend
  virtual std::unique_ptr<StagingQueue> make_staging_queue();  ///< one that belongs to this backend
  /// Whether capture_graph() works here.
  virtual bool captures_graphs() const { return false; }
  /// Begins a capture, one at a time, of a step, by whose number its random numbers are drawn
  /// (RandomKey::step). Throws UsageError if captures_graphs() is false.
  virtual std::unique_ptr<GraphCapture> capture_graph(std::uint64_t step);

  // --- memory
  /// An uninitialised tensor from the backend's pool.
  virtual Tensor empty(Shape shape, DType dtype = DType::float32, int channel_block = 1) = 0;
  /// Bytes the pool has obtained from the system.
  virtual std::size_t reserved_bytes() const = 0;
  /// Bytes of the device that nobody has obtained.
  virtual std::size_t free_bytes() const { return 0; }
  /// The channel block that convolutions of this many channels prefer for their activations (1: plain).
  virtual int preferred_channel_block(std::int64_t channels, DType dtype = DType::float32) const = 0;
  /// The channel block in which convolutions read weights [O, C / groups, kh, kw] fastest (1: plain).
  virtual int preferred_weight_block(const Shape&) const { return 1; }
  /// At least as many columns, for which products of matrices with so many are fast.
  virtual std::int64_t fast_columns(std::int64_t columns, DType) const { return columns; }
  /// The shape of ops::Attention::saved.
  virtual Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                                      std::int64_t keys) const = 0;
  void fill(const Tensor& to, double value);  ///< sets every element to `value`, rounded to the tensor's type
  /// Any device to any device, equal shapes and layouts; converts between float32 and bfloat16, and float64,
  /// int64, int32 and uint8 to float32 (on one device). `from` may be changed once it returns.
  void copy(const Tensor& from, const Tensor& to);
  /// The tensor itself if it has that type, otherwise a converted copy, by way of float32 if needed. The
  /// tensor must be on this device.
  Tensor in_type(const Tensor& tensor, DType dtype);
  /// Copies from the device to the CPU, without conversions: one read, so one wait, for all of them.
  void read(std::span<const Transfer> transfers);

  /// While it exists, nothing writes to `operand`, so that products that read it may share a copy of it (with
  /// padded rows). A later SharedOperand ends the sharing of an earlier one. Must not outlive the backend.
  class SharedOperand {
   public:
    /// backend: the one that runs these products.
    SharedOperand(Backend& backend, const Tensor& operand) : backend_(backend) { backend.share(operand); }
    ~SharedOperand() { backend_.share({}); }
    SharedOperand(const SharedOperand&) = delete;
    SharedOperand& operator=(const SharedOperand&) = delete;

   private:
    Backend& backend_;
  };

  // --- operations
  /// Runs the operation. UsageError unless its operands are valid and on this device; UsageError naming
  /// operation and device if the device has no function for it.
  template <class Operation>
  void run(const Operation& operation) {
    run(ops::AnyOperation(operation));
  }
  void run(const ops::AnyOperation& operation);  ///< the same for an operation of any type
  /// Runs the operation on each of `parts` equal parts of its operands (ops::Split), whose results have the
  /// bits that each part has alone.
  void run_parts(const ops::AnyOperation& operation, int parts);
  /// The same, by a run for each part.
  void run_each_part(const ops::AnyOperation& operation, int parts);

  /// From now on function(backend, operation) runs the operations of its type. `backend` has this backend's
  /// class or Backend as its type, and has checked the operation.
  template <auto... function>
  void enter(Computes computes = Computes::in_both_types, std::int64_t rows_together = 0) {
    (enter_function<function>(function, computes, rows_together), ...);
  }

  /// From now on function(backend, operation, parts) runs the operations of its type, in one part or several.
  template <auto... function>
  void enter_parts() {
    (enter_parts_function<function>(function), ...);
  }

  /// From now on notifies `observer` of every operation, copy and read, but not of the parts of an operation.
  /// Null: no observer. Returns the previous observer. The observer must outlive its use.
  Observer* observe(Observer* observer) { return std::exchange(observer_, observer); }

 protected:
  /// How a device runs an operation that was checked.
  virtual void perform(const ops::AnyOperation& operation) = 0;
  /// The same for the parts of an operation whose entry has run_parts.
  virtual void perform_parts(const ops::AnyOperation& operation, int parts);
  /// How a device copies between tensors of equal shape and layout.
  virtual void copy_elements(const Tensor& from, const Tensor& to) = 0;
  /// How a device copies to the CPU, with one wait.
  virtual void read_elements(std::span<const Transfer> transfers);
  /// Begins a SharedOperand; an absent tensor ends it.
  virtual void share(const Tensor&) {}
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
                                            .rows_together = rows_together,
                                            .run_parts = nullptr};
  }
  template <auto function, class Class, class Operation>
  static void run_one_part(Class& backend, const Operation& operation) {
    function(backend, operation, 1);
  }
  template <auto function, class Class, class Operation>
  void enter_parts_function(void (*)(Class&, const Operation&, int)) {
    enter<&run_one_part<function, Class, Operation>>();
    entries_.at(&ops::type_of<Operation>()).run_parts = [](Backend& backend, const void* op, int parts) {
      function(static_cast<Class&>(backend), *static_cast<const Operation*>(op), parts);
    };
  }
  [[noreturn]] void throw_other_class(const char* operation) const;
  void note_writes(const ops::AnyOperation& operation);
  /// Runs body() and notifies the observer of it as one operation.
  template <class Body, class Label, class CostOf>
  void observed(const Body& body, const Label& label, const CostOf& cost, bool read);

  std::unordered_map<const ops::OperationType*, Entry> entries_;
  Observer* observer_ = nullptr;
};

/// The CPU backend. Every operation uses `threads` threads, one of which is the caller, and flushes
/// denormals. Belongs to one calling thread at a time.
std::unique_ptr<Backend> make_cpu_backend(int threads = 1);
/// The backend of a GPU. Throws UsageError if Lockstep was built without CUDA, or if the GPU does not exist.
std::unique_ptr<Backend> make_cuda_backend(int index);

/// The backend of a device.
std::unique_ptr<Backend> make_backend(Device device, int threads = 1);

// --- tensors of a device in CPU memory, and back; CPU tensors are not copied
//
// `backend`: that of the tensors' device; null if all of them are on the CPU (otherwise UsageError naming the
// device).

/// CPU memory of the tensor's shape and type: the tensor itself if it is on the CPU, otherwise uninitialised.
Tensor empty_on_cpu(const Tensor& tensor);
/// The elements in CPU memory: the tensor itself if it is on the CPU, otherwise a copy, which is complete.
Tensor on_cpu(const Tensor& tensor, Backend* backend);
/// The elements on the backend's device: the tensor itself if it is on it, otherwise a copy.
Tensor on_device(const Tensor& tensor, Backend& backend);
/// Copies between tensors of equal shape, type and layout on any devices; does nothing if both are the same
/// memory.
void transfer(const Tensor& from, const Tensor& to, Backend* backend);

}  // namespace lockstep::kernels
