#include "lockstep/autograd/tape.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "lockstep/autograd/key_value_cache.h"
#include "lockstep/autograd/recompute.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep {
namespace {

constexpr std::size_t chunk_bytes = 64 * 1024;

}  // namespace

/// A copy of each weight in the type of a pass, which is rounded once. A program may write a CPU's parameters
/// itself, so a copy there serves only passes with the same parameters. A GPU's copy serves until an
/// operation writes the value and not the copy. An optimizer's step writes both. A copy may be in blocks of
/// channels.
class RoundedCopies {
 public:
  explicit RoundedCopies(kernels::Backend& backend)
      : backend_(backend), sees_writes_(backend.device() != Device::cpu()) {}

  /// Begins a pass that may read other values than the last one.
  void begin() { ++values_; }
  /// The copy of the value in another type. trains: Param::rounded becomes this copy if writes are seen.
  /// pack_later: the caller calls pack() before the copy is read.
  const Tensor& of(Param& param, DType dtype, bool trains, int block = 1, bool pack_later = false) {
    Copy& copy = copies_[&param][block == 1 ? 0 : 1];
    if (!copy.rounded || copy.rounded.dtype() != dtype || !(copy.rounded.shape() == param.value.shape()))
      copy = {.rounded = backend_.empty(param.value.shape(), dtype, block)};
    const bool is_good = copy.values == values_ || (copy.value && copy.value == param.value.raw() &&
                                                    copy.rounded.last_write() >= param.value.last_write());
    if (is_good) {
      copy.values = values_;
      return copy.rounded;
    }
    // Values that other ranks send are written by a transport.
    const bool is_watched = sees_writes_ && !param.pending_values;
    copy.value = is_watched ? param.value.raw() : nullptr;
    // An optimizer writes plain copies only.
    if (trains) param.rounded = is_watched && block == 1 ? copy.rounded : Tensor();
    if (block == 1) {
      backend_.copy(param.value, copy.rounded);
    } else {
      if (!pack_later) packed_.clear();  // of a call that threw
      packed_.push_back({param.value, copy.rounded});
      if (!pack_later) pack();
    }
    copy.values = values_;
    return copy.rounded;
  }
  /// Rounds again the parameters that were written since, or all of them: a captured graph only reads the
  /// copies.
  void refresh(std::span<Param* const> params, bool all) {
    if (!sees_writes_) return;
    packed_.clear();  // of a call that threw
    for (Param* const param : params) {
      const auto found = copies_.find(param);
      if (found == copies_.end() || param->pending_values) continue;
      for (Copy& copy : found->second) {
        if (!copy.rounded) continue;
        copy.values = 0;
        if (all) copy.value = nullptr;
        of(*param, copy.rounded.dtype(), param->trainable, copy.rounded.channel_block(), true);
      }
    }
    pack();
  }
  void forget(const Param& param) { copies_.erase(&param); }

 private:
  struct Copy {
    Tensor rounded = {};
    const void* value = nullptr;  // the value that was rounded; null: its writes are not seen
    std::uint64_t values = 0;     // values_ at the last use
  };

  /// Writes the copies in channel blocks that are due, in one operation.
  void pack() {
    if (!packed_.empty()) backend_.run(ops::PackWeights{packed_});
    packed_.clear();
  }

  kernels::Backend& backend_;
  bool sees_writes_;
  std::unordered_map<const Param*, std::array<Copy, 2>> copies_;  // plain, and in blocks
  std::vector<ops::PackedWeight> packed_;                         // copies for pack()
  std::uint64_t values_ = 1;
};

Param::~Param() {
  if (on_tape.tape) on_tape.tape->release(*this);
}

Tape& Var::no_tape() {
  throw UsageError("a Var without a tape (Var{{}}) stands for an absent bias, not for a value");
}

Tape::Tape(kernels::Backend& backend)
    : backend_(backend),
      pass_number_(static_cast<std::uint32_t>(monotonic_ns())),  // a pass takes longer than a nanosecond
      rounded_(std::make_unique<RoundedCopies>(backend)),
      recompute_(std::make_unique<Recompute>(*this)) {}

Tape::~Tape() { forget(); }

void Tape::begin(const Pass& pass) {
  if (pass.compute != DType::float32 && pass.compute != DType::bfloat16)
    throw UsageError("a pass computes in float32 or bfloat16, not in {}", to_string(pass.compute));
  forget();
  pass_ = pass;
  if (pass.cache && (pass.training || pass.record))
    throw UsageError("a pass with a cache is an evaluation without record");
  if (pass.cache) pass.cache->begin_pass();
  ++pass_number_;
  if (!pass.same_parameters) rounded_->begin();
}

Shape Tape::of_each_shard(const Shape& shape) const {
  if (pass_.shards == 1) return shape;
  Shape all{pass_.shards};
  for (const std::int64_t extent : shape) all.append(extent);
  return all;
}

Shape Tape::shape_of_gradient(const Var& input) const {
  const bool shared = input.id_ >= 0 && values_[static_cast<std::size_t>(input.id_)].shared;
  return shared ? of_each_shard(input.shape()) : input.shape();
}

void Tape::inherit_sharing(const Var& view, const Var& of) {
  if (view.id_ >= 0 && of.id_ >= 0) value_of(view).shared = value_of(of).shared;
}

void Tape::forget() {
  drop_nodes(0);
  values_.clear();
  recompute_->clear();
  for (Param* const param : used_) param->on_tape = {};
  used_.clear();
  chunk_ = chunk_used_bytes_ = 0;
}

void Tape::drop_nodes(std::size_t first) {
  for (std::size_t i = nodes_.size(); i > first; --i) {
    if (nodes_[i - 1].closure) nodes_[i - 1].destroy(nodes_[i - 1].closure);
  }
  nodes_.resize(first);
}

void Tape::release(const Param& param) noexcept {
  std::erase(used_, &param);
  rounded_->forget(param);
  for (Value& value : values_) {
    if (value.param == &param) value.param = nullptr;
  }
}

void* Tape::closure_memory(std::size_t bytes, std::size_t alignment) {
  std::size_t begin = (chunk_used_bytes_ + alignment - 1) / alignment * alignment;
  if (chunks_.empty() || begin + bytes > chunk_bytes) {
    if (bytes > chunk_bytes)
      throw UsageError("an operation's backward captures {} bytes; capture handles instead", bytes);
    if (!chunks_.empty()) ++chunk_;
    if (chunk_ == chunks_.size()) chunks_.push_back(std::make_unique<std::byte[]>(chunk_bytes));
    begin = 0;
  }
  chunk_used_bytes_ = begin + bytes;
  return chunks_[chunk_].get() + begin;
}

int Tape::new_id(Param* param, bool takes_two) {
  Value& value = values_.emplace_back();
  value.param = param;
  value.shared = param != nullptr;
  value.takes_two = takes_two;
  return static_cast<int>(values_.size()) - 1;
}

Var Tape::input(Tensor value) {
  return {std::move(value), this, pass_.record ? new_id(nullptr) : -1, pass_number_};
}

Var Tape::parameter(Param& param) {
  param.wait_ready();
  if (!pass_.record || !param.trainable) return constant(param.value);
  if (param.on_tape.tape != this) {
    if (param.on_tape.tape)
      throw UsageError("parameter {} is being recorded by two tapes at once", param.name);
    if (!pass_.sink)
      throw UsageError("parameter {} is used in a recorded pass without a GradientSink", param.name);
    param.on_tape = {.tape = this, .id = new_id(&param)};
    used_.push_back(&param);
  }
  return {param.value, this, param.on_tape.id, pass_number_};
}

Var Tape::batch(const Tensor& numbers) {
  Var var = constant(backend_.in_type(numbers, pass_.compute));
  var.id_ = Var::of_batch;
  return var;
}

Var Tape::rounded_weight(Param& param, int channel_block) {
  Var used = parameter(param);
  if (pass_.compute != DType::float32)
    used.value_ = rounded_->of(param, pass_.compute, pass_.record && param.trainable, channel_block);
  return used;
}

Var Tape::weight(Param& param) { return rounded_weight(param, 1); }

Var Tape::convolution_weight(Param& param) {
  return rounded_weight(param, backend_.preferred_weight_block(param.value.shape()));
}

Var Tape::bias(Param& param) {
  // Products of a GPU, which captures graphs, add it in the type of their operands.
  return backend_.captures_graphs() ? weight(param) : parameter(param);
}

void Tape::refresh_weights(std::span<Param* const> params, bool all) { rounded_->refresh(params, all); }

Tape::Recorded Tape::begin_operation(RunClosure run, const Tensor& value,
                                     std::initializer_list<const Var*> inputs) {
  if (inputs.size() > max_inputs)
    throw UsageError("an operation has {} inputs; at most {}", inputs.size(), max_inputs);
  bool needed = false;
  for (const Var* const input : inputs) {
    if (!input->tape_) continue;  // an absent optional input
    check_reachable(*input);
    needed = needed || input->id_ >= 0;
  }
  const bool whole = recompute_->note_operation(run, value, inputs, needed);
  return !needed ? Recorded::no : whole ? Recorded::whole : Recorded::counted;
}

bool Tape::take_kept(std::span<Tensor> tensors) { return recompute_->take_kept(tensors); }

void Tape::keep(std::span<const Tensor> tensors) { recompute_->keep(tensors); }

void Tape::check_own(const Var& var) const {
  if (var.tape_ == this && (var.pass_ == pass_number_ || var.id_ == Var::of_constant)) return;
  if (var.id_ == Var::of_batch)
    throw UsageError(
        "tape.batch() of an earlier pass is used in this pass, in which its memory holds other numbers; call "
        "it in each pass, with a copy of a tensor that is kept");
  throw UsageError(
      "a value of {} is used in this pass, to which its gradient cannot pass; use its value alone: "
      "tape.constant(kept.value())",
      var.tape_ != this ? "another tape" : "an earlier pass");
}

void Tape::check_reachable(const Var& var) const {
  check_own(var);
  if (var.id_ < 0 || !values_[static_cast<std::size_t>(var.id_)].hidden) return;
  throw UsageError(
      "a value from inside a recomputed segment of the model is used outside of it; recomputed(): the body "
      "must return it");
}

void Tape::add_node(Node node, std::initializer_list<const Var*> inputs) {
  for (const Var* const input : inputs) {
    if (input->id_ < 0) continue;
    node.inputs[static_cast<std::size_t>(node.input_count++)] = input->id_;
    if (Param* const param = param_of(*input)) ++param->on_tape.open_uses;
  }
  nodes_.push_back(node);
}

void Tape::add_gradient(const Var& input, const Tensor& upstream) {
  if (input.id_ < 0) return;
  if (Param* const param = param_of(input)) {
    if (upstream.numel() != of_each_shard(param->value.shape()).numel())
      throw UsageError("the gradient of {} is not one for each of {} shards", param->name, pass_.shards);
    const GradientView view = param_view(*param);
    if (view.accumulate)
      backend_.run(ops::add(view.memory, backend_.in_type(upstream, view.memory.dtype()), view.memory));
    else
      backend_.copy(upstream, view.memory);
    return;
  }
  const Tensor dx = backend_.in_type(upstream, input.value().dtype());
  Value& value = value_of(input);
  if (value.shared && upstream.numel() != of_each_shard(input.shape()).numel())
    throw UsageError("the gradient of a function of parameters is not one for each of {} shards",
                     pass_.shards);
  if (!value.gradient) {
    value.gradient = dx;
  } else if (!value.takes_two) {
    value.gradient = sum_of(value.gradient, dx);
  } else {
    if (value.second_gradient) value.gradient = sum_of(value.gradient, value.second_gradient);
    value.second_gradient = dx;
  }
}

// Out of place, because `a` may also be the gradient of another value: a sum passes the same one to both
// sides.
Tensor Tape::sum_of(const Tensor& a, const Tensor& b) {
  const Tensor total = backend_.empty(a.shape(), a.dtype(), a.channel_block());
  backend_.run(ops::add(a, b, total));
  return total;
}

Tensor Tape::gradient_so_far(const Var& input) {
  if (input.id_ < 0 || param_of(input)) return {};
  const Value& value = value_of(input);
  return value.second_gradient ? sum_of(value.gradient, value.second_gradient) : value.gradient;
}

Tensor Tape::take_gradient(const Var& input) {
  Tensor sum = gradient_so_far(input);
  if (!sum) return sum;
  value_of(input).gradient = value_of(input).second_gradient = {};
  if (sum.is_only_handle()) return sum;
  const Tensor own = backend_.empty(sum.shape(), sum.dtype(), sum.channel_block());
  backend_.copy(sum, own);
  return own;
}

void Tape::set_gradient(const Var& input, const Tensor& total) {
  if (input.id_ < 0) return;
  if (param_of(input)) return add_gradient(input, total);
  value_of(input).gradient = total;
  value_of(input).second_gradient = {};
}

GradientView Tape::param_view(Param& param) {
  GradientView& view = values_[static_cast<std::size_t>(param.on_tape.id)].view;
  if (!param.on_tape.written) {
    view = pass_.sink->gradient_view(param);
    param.on_tape.written = true;
    return view;
  }
  return {view.memory, true};
}

void Tape::close_use(int id) {
  Param* const param = values_[static_cast<std::size_t>(id)].param;
  if (param && --param->on_tape.open_uses == 0 && param->on_tape.written) pass_.sink->ready(*param);
}

void Tape::backward(const Var& output, const Tensor& dy) {
  if (output.id_ < 0) return;
  check_reachable(output);
  add_gradient(output, dy);
  walk(0);
}

void Tape::walk(std::size_t first) {
  for (std::size_t i = nodes_.size(); i-- > first;) {
    const Node node = nodes_[i];  // a copy: its closure may add nodes
    const auto outputs = values_.begin() + node.output;
    if (std::none_of(outputs, outputs + node.output_count,
                     [](const Value& value) { return bool(value.gradient); }))
      continue;
    if (node.walked)
      throw UsageError("a second backward reached an operation that was walked before; add the losses first");
    const Tensor dy = std::exchange(outputs->gradient, {});
    const Tensor second_dy = std::exchange(outputs->second_gradient, {});
    node.run(node.closure, *this, dy, second_dy);
    node.destroy(node.closure);  // frees the activations it held
    nodes_[i].closure = nullptr;
    nodes_[i].walked = true;
    for (int k = 0; k < node.input_count; ++k) close_use(node.inputs[static_cast<std::size_t>(k)]);
    if (pass_.sink) pass_.sink->progress();
  }
}

void Tape::finish_backward() {
  for (Param* const param : used_) {
    if (param->on_tape.open_uses == 0) continue;
    param->on_tape.open_uses = 0;
    if (param->on_tape.written) pass_.sink->ready(*param);
  }
}

const Tensor& Tape::gradient(const Var& var) const {
  static const Tensor none;
  if (var.id_ < 0) return none;
  check_own(var);
  return values_[static_cast<std::size_t>(var.id_)].gradient;
}

}  // namespace lockstep
