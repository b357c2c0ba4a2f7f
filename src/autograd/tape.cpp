#include "lockstep/autograd/tape.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t chunk_bytes = 64 * 1024;

}  // namespace

Param::~Param() {
  if (on_tape.tape) on_tape.tape->release(*this);
}

Tape::Tape(kernels::Backend& backend) : backend_(backend) {}

Tape::~Tape() { forget(); }

void Tape::begin(const Pass& pass) {
  forget();
  pass_ = pass;
}

void Tape::forget() {
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    if (node->closure) node->destroy(node->closure);
  }
  nodes_.clear();
  gradients_.clear();
  param_of_id_.clear();
  slots_.clear();
  for (Param* const param : used_) param->on_tape = {};
  used_.clear();
  chunk_ = chunk_used_bytes_ = 0;
}

void Tape::release(const Param& param) noexcept {
  std::erase(used_, &param);
  std::replace(param_of_id_.begin(), param_of_id_.end(), const_cast<Param*>(&param),
               static_cast<Param*>(nullptr));
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

int Tape::new_id(Param* param) {
  gradients_.emplace_back();
  param_of_id_.push_back(param);
  slots_.emplace_back();
  return static_cast<int>(gradients_.size()) - 1;
}

Var Tape::input(Tensor value) { return {std::move(value), this, pass_.record ? new_id(nullptr) : -1}; }

Var Tape::use(Param& param) {
  param.settle();
  if (!pass_.record || !param.trainable) return constant(param.value);
  if (param.on_tape.tape != this) {
    if (param.on_tape.tape)
      throw UsageError("parameter {} is being recorded by two tapes at once", param.name);
    if (!pass_.sink)
      throw UsageError("parameter {} is used in a recorded pass without a GradientSink", param.name);
    param.on_tape = {.tape = this, .id = new_id(&param)};
    used_.push_back(&param);
  }
  return {param.value, this, param.on_tape.id};
}

bool Tape::check_inputs(std::initializer_list<const Var*> inputs) const {
  if (inputs.size() > max_inputs)
    throw UsageError("an operation has {} inputs; at most {}", inputs.size(), max_inputs);
  bool needed = false;
  for (const Var* const input : inputs) {
    if (!input->tape_) continue;  // an absent optional input
    if (input->tape_ != this) throw UsageError("an operation mixes values of two tapes");
    needed = needed || input->id_ >= 0;
  }
  return needed;
}

void Tape::add_node(Node node, std::initializer_list<const Var*> inputs) {
  for (const Var* const input : inputs) {
    if (input->id_ < 0) continue;
    node.inputs[static_cast<std::size_t>(node.input_count++)] = input->id_;
    if (Param* const param = param_of_id_[static_cast<std::size_t>(input->id_)]) ++param->on_tape.open_uses;
  }
  nodes_.push_back(node);
}

void Tape::give(const Var& input, const Tensor& dx) {
  if (input.id_ < 0) return;
  if (Param* const param = param_of_id_[static_cast<std::size_t>(input.id_)]) {
    const GradientSlot slot = param_slot(*param);
    slot.accumulate ? backend_.add(slot.memory, dx, slot.memory) : backend_.copy(dx, slot.memory);
    return;
  }
  Tensor& gradient = gradients_[static_cast<std::size_t>(input.id_)];
  if (!gradient) {
    gradient = dx;
    return;
  }
  // Out of place: the first tensor may also be somebody else's gradient (a sum hands the same one to both
  // sides).
  const Tensor total = backend_.empty(dx.shape(), dx.dtype(), dx.channel_block());
  backend_.add(gradient, dx, total);
  gradient = total;
}

GradientSlot Tape::param_slot(Param& param) {
  GradientSlot& slot = slots_[static_cast<std::size_t>(param.on_tape.id)];
  if (!param.on_tape.written) {
    slot = pass_.sink->slot(param);
    param.on_tape.written = true;
    return slot;
  }
  return {slot.memory, true};
}

void Tape::close_use(int id) {
  Param* const param = param_of_id_[static_cast<std::size_t>(id)];
  if (param && --param->on_tape.open_uses == 0 && param->on_tape.written) pass_.sink->ready(*param);
}

void Tape::backward(const Var& output, const Tensor& dy) {
  if (output.id_ < 0) return;
  if (output.tape_ != this) throw UsageError("backward of a value of another tape");
  give(output, dy);
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    Tensor& gradient = gradients_[static_cast<std::size_t>(node->output)];
    if (!gradient) continue;
    if (node->walked)
      throw UsageError("a second backward reached an operation that was walked before; add the losses first");
    const Tensor dy_here = std::move(gradient);
    gradient = {};
    node->run(node->closure, *this, dy_here);
    node->destroy(node->closure);  // frees the activations it held
    node->closure = nullptr;
    node->walked = true;
    for (int i = 0; i < node->input_count; ++i) close_use(node->inputs[static_cast<std::size_t>(i)]);
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
  return var.id_ < 0 ? none : gradients_[static_cast<std::size_t>(var.id_)];
}

}  // namespace lockstep
