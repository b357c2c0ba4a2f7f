// Tape: records the operations of a pass in order of execution, so that backward is the reverse walk.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Tape;

/// A value on a tape. A handle: cheap to copy, valid until its tape's next begin().
class Var {
 public:
  Var() = default;
  const Tensor& value() const noexcept { return value_; }
  const Shape& shape() const noexcept { return value_.shape(); }
  Tape& tape() const noexcept { return *tape_; }
  bool needs_gradient() const noexcept { return id_ >= 0; }
  /// For closures that hand on a gradient but do not read the value: its memory may go.
  Var without_value() const { return {value_.without_memory(), tape_, id_}; }

 private:
  friend class Tape;
  Var(Tensor value, Tape* tape, int id) : value_(std::move(value)), tape_(tape), id_(id) {}
  Tensor value_;
  Tape* tape_ = nullptr;
  int id_ = -1;  ///< index of its gradient; -1: constant
};

/// What a pass is for. Every random draw in it is keyed by (seed, step, shard).
struct Pass {
  bool training = true;  ///< dropout on, batch norm by the batch's statistics
  bool record = true;    ///< false: nothing is kept for a backward
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t shard = 0;
  GradientSink* sink = nullptr;  ///< must outlive the pass; needed if anything is recorded from a Param
  comm::Communicator* layer_communicator =
      nullptr;  ///< for layers that meet across ranks (SyncBatchNorm); may be none
};

/// One per computing thread. In the steady state (passes of shapes seen before) it allocates nothing: nodes
/// and closures lie in memory that begin() rewinds, tensors come from the backend's pool.
class Tape {
 public:
  explicit Tape(kernels::Backend& backend);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  kernels::Backend& backend() const noexcept { return backend_; }
  const Pass& pass() const noexcept { return pass_; }

  /// Forgets the last pass and starts another.
  void begin(const Pass& pass);
  /// A value without gradient.
  Var constant(Tensor value) { return {std::move(value), this, -1}; }
  /// A leaf whose gradient gradient() returns after backward.
  Var input(Tensor value);
  /// A parameter, once its value is here; with record and trainable, its uses are counted.
  Var use(Param& param);

  /// Records an operation: `value` is its output; `backward(tape, dy)` is called in the reverse walk if the
  /// output received a gradient, and hands gradients on with give() or into(). Nothing is recorded (a
  /// constant returns) when no input needs a gradient. Throws UsageError if an input belongs to another tape.
  template <class Backward>
  Var record(Tensor value, std::initializer_list<const Var*> inputs, Backward&& backward);

  /// Walks back from `output` with gradient `dy` (of its shape). May be called several times for several
  /// outputs before finish_backward(), as long as their graphs share no operation that has been walked
  /// (UsageError).
  void backward(const Var& output, const Tensor& dy);
  /// Ends the backward of this pass: parameters used only in operations that no output reached are closed.
  /// After it, Param::on_tape.written tells which parameters got a gradient.
  void finish_backward();

  /// The parameter is about to go: this pass forgets it.
  void release(const Param& param) noexcept;

  /// The gradient an input() or intermediate value received; none if none. Intermediates are dropped once
  /// walked.
  const Tensor& gradient(const Var& var) const;
  /// Parameters used in this pass (recorded), in order of first use.
  std::span<Param* const> used_params() const noexcept { return used_; }

  // --- for backward closures ---
  /// Adds dx to the gradient of an input that is no parameter. Constants are ignored.
  void give(const Var& input, const Tensor& dx);
  /// Computes a gradient in place: write(memory, accumulate) is called with memory of the input's shape. For
  /// a parameter that is its place in the gradient arena. Constants are skipped.
  template <class Write>
  void into(const Var& input, Write&& write);

 private:
  static constexpr std::size_t max_inputs = 8;
  struct Node {
    void (*run)(void* closure, Tape& tape, const Tensor& dy);
    void (*destroy)(void* closure);
    void* closure;
    int output;
    int input_count;
    std::array<int, max_inputs> inputs;
    bool walked;
  };

  /// Room for a closure, from chunks that begin() rewinds.
  void* closure_memory(std::size_t bytes, std::size_t alignment);
  int new_id(Param* param);
  bool check_inputs(std::initializer_list<const Var*> inputs) const;
  void add_node(Node node, std::initializer_list<const Var*> inputs);
  void close_use(int id);
  GradientSlot param_slot(Param& param);
  void forget();

  kernels::Backend& backend_;
  Pass pass_;
  std::vector<Node> nodes_;
  std::vector<Tensor> gradients_;    // by id
  std::vector<Param*> param_of_id_;  // by id; null for inputs and intermediates
  std::vector<Param*> used_;
  std::vector<GradientSlot> slots_;  // by id, filled at the first write to a parameter
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t chunk_ = 0, chunk_used_bytes_ = 0;
};

template <class Backward>
Var Tape::record(Tensor value, std::initializer_list<const Var*> inputs, Backward&& backward) {
  using Closure = std::decay_t<Backward>;
  if (!check_inputs(inputs)) return constant(std::move(value));
  void* const memory = closure_memory(sizeof(Closure), alignof(Closure));
  new (memory) Closure(std::forward<Backward>(backward));
  const int output = new_id(nullptr);
  add_node({.run = [](void* closure, Tape& tape,
                      const Tensor& dy) { (*static_cast<Closure*>(closure))(tape, dy); },
            .destroy = [](void* closure) { static_cast<Closure*>(closure)->~Closure(); },
            .closure = memory,
            .output = output,
            .input_count = 0,
            .inputs = {},
            .walked = false},
           inputs);
  return {std::move(value), this, output};
}

template <class Write>
void Tape::into(const Var& input, Write&& write) {
  if (input.id_ < 0) return;
  if (Param* const param = param_of_id_[static_cast<std::size_t>(input.id_)]) {
    const GradientSlot slot = param_slot(*param);
    write(slot.memory, slot.accumulate);
  } else {
    const Tensor dx = backend_.empty(input.shape(), input.value().dtype(), input.value().channel_block());
    write(dx, false);
    give(input, dx);
  }
}

}  // namespace lockstep
