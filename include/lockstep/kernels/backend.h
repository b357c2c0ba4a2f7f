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

#include "lockstep/kernels/feed.h"
#include "lockstep/kernels/recording.h"
#include "lockstep/kernels/timer.h"
#include "lockstep/ops/operation.h"

namespace lockstep::kernels {

class Backend;

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
  virtual std::unique_ptr<Feed> make_feed();
  /// Whether there are recordings here.
  virtual bool records() const { return false; }
  /// Begins one; one at a time. Waits for the device. Throws UsageError where there are none.
  virtual std::unique_ptr<Recorder> record();

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

}  // namespace lockstep::kernels
