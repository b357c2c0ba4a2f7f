// Tape: records the operations of a pass in order of execution, so that backward is the reverse walk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class KeyValueCache;
class RankSums;
class Recompute;
class RoundedCopies;
class Tape;

/// A value on a tape. A handle: cheap to copy, valid until its tape's next begin(). A value that a later pass
/// needs (the state of a recurrent network) enters it as tape.constant(kept.value()); a kept Var with a
/// gradient is a UsageError there.
class Var {
 public:
  Var() = default;
  const Tensor& value() const noexcept { return value_; }         ///< on the device of the tape's backend
  const Shape& shape() const noexcept { return value_.shape(); }  ///< of the value
  /// UsageError for a Var{}, which has no tape.
  Tape& tape() const { return tape_ ? *tape_ : no_tape(); }
  bool needs_gradient() const noexcept { return id_ >= 0; }  ///< whether backward passes a gradient to it
  /// For closures that pass on a gradient but do not read the value: frees its memory.
  Var without_value() const { return {value_.without_memory(), tape_, id_, pass_}; }

 private:
  friend class Tape;
  friend class Recompute;
  [[noreturn]] static Tape& no_tape();
  Var(Tensor value, Tape* tape, int id, std::uint32_t pass)
      : value_(std::move(value)), tape_(tape), id_(id), pass_(pass) {}
  Tensor value_;
  Tape* tape_ = nullptr;
  static constexpr int of_constant = -1, of_batch = -2;
  int id_ = of_constant;    ///< index of its gradient; of_batch: no gradient, and its memory is reused
  std::uint32_t pass_ = 0;  ///< the pass that id_ belongs to
};

/// The purpose and settings of a pass. Every random draw in it is keyed by (seed, step, shard).
///
/// A pass computes in float32 or in bf16. In bf16, activations, their gradients and the operands of products
/// are bf16; parameters, their gradients, statistics and losses stay float32.
struct Pass {
  bool training = true;     ///< dropout on, batch norm by the batch's statistics
  bool record = true;       ///< false: nothing is kept for a backward
  std::uint64_t seed = 0;   ///< of the run: with step and shard, what random draws depend on
  std::uint64_t step = 0;   ///< finished updates before this pass
  std::uint32_t shard = 0;  ///< which shard of the global batch this is
  /// Shards at once, `shard` and those after it: activations hold their rows one shard after another, losses
  /// and gradients of parameters are one for each shard, in a first dimension that one shard alone lacks.
  int shards = 1;
  GradientSink* sink = nullptr;  ///< must outlive the pass; needed if anything is recorded from a Param
  comm::GradientTransport* layer_transport =
      nullptr;                     ///< for layers that communicate (SyncBatchNorm); may be null
  DType compute = DType::float32;  ///< or bfloat16
  /// Parameters have the same values as in this tape's last pass: their bf16 copies are reused. (A GPU's are
  /// reused until an operation writes a value without its copy.)
  bool same_parameters = false;
  /// Holds the positions before those of the batch, in an evaluation without record; may be null. Products of
  /// the few rows of such a pass read each weight once.
  KeyValueCache* cache = nullptr;
};

/// One per computing thread. In the steady state (passes of shapes seen before) it allocates nothing: nodes
/// and closures are in memory that begin() rewinds, tensors come from the backend's pool.
class Tape {
 public:
  explicit Tape(kernels::Backend& backend);  ///< the backend must outlive the tape
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The backend that runs the operations of this tape.
  kernels::Backend& backend() const noexcept { return backend_; }
  const Pass& pass() const noexcept { return pass_; }  ///< the argument of begin()

  /// Discards the last pass and starts another.
  void begin(const Pass& pass);
  /// Runs an operation on each shard of the pass: a product, whose bits may depend on the number of its rows,
  /// or a sum over samples.
  void run_by_shard(const ops::AnyOperation& operation) { backend_.run_parts(operation, pass_.shards); }
  /// The shape of what each shard has one of: with the shards in front, if there are several.
  Shape of_each_shard(const Shape& shape) const;
  /// The shape of an input's gradient: the input's, or that of_each_shard() if shards share the input, like a
  /// parameter or another view of one (inherit_sharing).
  Shape shape_of_gradient(const Var& input) const;
  /// `view` is shared by the shards if `of` is.
  void inherit_sharing(const Var& view, const Var& of);
  /// A value without gradient.
  Var constant(Tensor value) { return {std::move(value), this, Var::of_constant, pass_number_}; }
  /// A leaf whose gradient gradient() returns after backward.
  Var input(Tensor value);
  /// Numbers of a batch (floats, int64, int32 or uint8), without gradient, in the type of activations: the
  /// input of a model.
  Var batch(const Tensor& numbers);
  /// Waits for a parameter's value and returns it. Counts the uses of a trainable parameter in a pass that
  /// records.
  Var parameter(Param& param);
  /// The same for a weight of products: its value in the type that the pass computes in, rounded once for all
  /// passes that see the same value. Its gradient is float32.
  Var weight(Param& param);
  /// The same for conv2d and conv_transpose2d, which read the backend's Backend::preferred_weight_block.
  Var convolution_weight(Param& param);
  /// The same for a bias of products, which a CPU adds in float32.
  Var bias(Param& param);
  /// Rounds again the parameters rounded by weight() that were written since, or all of them, because
  /// captured passes do not.
  void refresh_weights(std::span<Param* const> params, bool all = false);

  /// Records an operation: `value` is its output; `backward(tape, dy)` is called in the reverse walk if the
  /// output received a gradient, and passes gradients on with add_gradient() or write_gradient(). If no input
  /// needs a gradient, it records nothing and returns a constant. Throws UsageError if an input belongs to
  /// another tape, or to an earlier pass without being a constant. A backward(tape, dy, second_dy) also gets
  /// a second gradient of the output, which may be absent, and adds the two as it reads them.
  template <class Backward>
  Var record(Tensor value, std::initializer_list<const Var*> inputs, Backward&& backward);

  /// For work that must happen only once a pass, even in a recomputed segment (recompute.h): communication
  /// with other ranks, contributions to a Statistic. compute() returns `count` tensors; a recomputed segment
  /// keeps them, and its second run gets them back.
  template <std::size_t count, class Compute>
  std::array<Tensor, count> once(const Compute& compute) {
    std::array<Tensor, count> tensors;
    if (take_kept(tensors)) return tensors;
    tensors = compute();
    keep(tensors);
    return tensors;
  }

  /// Walks back from `output` with gradient `dy` (of its shape). May be called several times for several
  /// outputs before finish_backward(), as long as their graphs share no operation that has been walked
  /// (UsageError).
  void backward(const Var& output, const Tensor& dy);
  /// Ends the backward of this pass: parameters used only in operations that no output reached are closed.
  /// After it, Param::on_tape.written tells which parameters got a gradient.
  void finish_backward();

  /// Makes this pass forget a parameter that is about to be destroyed.
  void release(const Param& param) noexcept;

  /// The gradient that an input() or intermediate value received; may be absent. Intermediates are dropped
  /// after their backward.
  const Tensor& gradient(const Var& var) const;
  /// Parameters used in this pass (recorded), in order of first use.
  std::span<Param* const> used_params() const noexcept { return used_; }

  /// Every rank's `mine` (float64, of one shape on all ranks), added in rank order, for layers that
  /// communicate. Collective, and so is the destructor after such a sum: the tape must be destroyed before
  /// the transport.
  Tensor sum_over_ranks(comm::GradientTransport& transport, const Tensor& mine);

  // --- for backward closures ---
  /// Adds dx to the gradient of an input that is not a parameter. Constants are ignored.
  void add_gradient(const Var& input, const Tensor& dx);
  /// For kernels that add: the gradient that an input has received so far; absent for parameters and
  /// constants.
  Tensor gradient_so_far(const Var& input);
  /// gradient_so_far(), in memory without other readers, for kernels that add to some of its elements;
  /// set_gradient() must follow.
  Tensor take_gradient(const Var& input);
  /// add_gradient() of a gradient that includes gradient_so_far().
  void set_gradient(const Var& input, const Tensor& total);
  /// Computes a gradient in place: write(memory, accumulate) is called with float32 memory of the input's
  /// shape. For a parameter, the memory is a view of the flat gradient buffer, of_each_shard(). Constants are
  /// skipped. With `rounds` the memory has the input's type, except for a parameter.
  template <class Write>
  void write_gradient(const Var& input, Write&& write, bool rounds = false);

 private:
  /// The value of a weight as weight() and convolution_weight() say, in this channel block.
  Var rounded_weight(Param& param, int channel_block);
  friend class Recompute;

  static constexpr std::size_t max_inputs = 8;
  using RunClosure = void (*)(void* closure, Tape& tape, const Tensor& dy, const Tensor& second_dy);
  struct Node {
    RunClosure run;
    void (*destroy)(void* closure);
    void* closure;
    int output;
    int output_count;  ///< outputs have consecutive ids
    int input_count;
    std::array<int, max_inputs> inputs;
    bool walked;
  };

  /// By id: a parameter, an input() or an intermediate value, and the gradient it has received so far.
  struct Value {
    Tensor gradient;
    Tensor second_gradient;  ///< not added yet; only where takes_two
    bool takes_two = false;
    bool hidden = false;     ///< inside a recomputed segment: nothing outside of it may use the value
    bool shared = false;     ///< by all shards of the pass
    Param* param = nullptr;  ///< null: an input or intermediate
    GradientView view;       ///< of a parameter, after its first write
  };
  enum class Recorded { no, counted, whole };  ///< counted: only its uses of parameters, in a first run

  template <class Closure>
  static constexpr bool closure_takes_two =
      std::is_invocable_v<Closure&, Tape&, const Tensor&, const Tensor&>;
  template <class Closure>
  static void run_closure(void* closure, Tape& tape, const Tensor& dy,
                          [[maybe_unused]] const Tensor& second_dy) {
    if constexpr (closure_takes_two<Closure>) {
      (*static_cast<Closure*>(closure))(tape, dy, second_dy);
    } else {
      (*static_cast<Closure*>(closure))(tape, dy);
    }
  }
  /// Memory from chunks that begin() rewinds.
  void* closure_memory(std::size_t bytes, std::size_t alignment);
  template <class Backward>
  Node new_node(Backward&& backward, int output, int output_count = 1);
  int new_id(Param* param, bool takes_two = false);
  Tensor sum_of(const Tensor& a, const Tensor& b);
  Recorded begin_operation(RunClosure run, const Tensor& value, std::initializer_list<const Var*> inputs);
  void add_node(Node node, std::initializer_list<const Var*> inputs);
  bool take_kept(std::span<Tensor> tensors);
  void keep(std::span<const Tensor> tensors);
  Value& value_of(const Var& var) { return values_[static_cast<std::size_t>(var.id_)]; }
  Param* param_of(const Var& var) { return var.id_ < 0 ? nullptr : value_of(var).param; }
  void check_own(const Var& var) const;
  void check_reachable(const Var& var) const;
  void walk(std::size_t first_node);
  void drop_nodes(std::size_t first);
  void close_use(int id);
  GradientView param_view(Param& param);
  void forget();

  kernels::Backend& backend_;
  std::shared_ptr<RankSums> rank_sums_;  // of the transport that was used last
  Pass pass_;
  std::uint32_t pass_number_;  // unique, also among earlier tapes at this address
  std::vector<Node> nodes_;
  std::vector<Value> values_;  // by id
  std::vector<Param*> used_;
  std::unique_ptr<RoundedCopies> rounded_;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t chunk_ = 0, chunk_used_bytes_ = 0;
  std::unique_ptr<Recompute> recompute_;
};

template <class Backward>
Tape::Node Tape::new_node(Backward&& backward, int output, int output_count) {
  using Closure = std::decay_t<Backward>;
  void* const memory = closure_memory(sizeof(Closure), alignof(Closure));
  new (memory) Closure(std::forward<Backward>(backward));
  return {.run = run_closure<Closure>,
          .destroy = [](void* closure) { static_cast<Closure*>(closure)->~Closure(); },
          .closure = memory,
          .output = output,
          .output_count = output_count,
          .input_count = 0,
          .inputs = {},
          .walked = false};
}

template <class Backward>
Var Tape::record(Tensor value, std::initializer_list<const Var*> inputs, Backward&& backward) {
  using Closure = std::decay_t<Backward>;
  const Recorded recorded = begin_operation(run_closure<Closure>, value, inputs);
  if (recorded == Recorded::no) return constant(std::move(value));
  const int output = new_id(nullptr, closure_takes_two<Closure>);
  if (recorded == Recorded::whole) add_node(new_node(std::forward<Backward>(backward), output), inputs);
  return {std::move(value), this, output, pass_number_};
}

template <class Write>
void Tape::write_gradient(const Var& input, Write&& write, bool rounds) {
  if (input.id_ < 0) return;
  if (Param* const param = param_of(input)) {
    const GradientView view = param_view(*param);
    write(view.memory, view.accumulate);
  } else {
    const Tensor dx =
        backend_.empty(shape_of_gradient(input), rounds ? input.value().dtype() : DType::float32,
                       input.value().channel_block());
    write(dx, false);
    add_gradient(input, backend_.in_type(dx, input.value().dtype()));
  }
}

}  // namespace lockstep
