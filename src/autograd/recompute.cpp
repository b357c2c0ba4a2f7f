#include "lockstep/autograd/recompute.h"

#include <xxhash.h>

namespace lockstep {
namespace {

std::uint64_t mixed(std::uint64_t fingerprint, std::uint64_t value) {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  fingerprint = (fingerprint ^ value) * odd;
  return fingerprint ^ (fingerprint >> 32);
}

/// A fingerprint of a value's bits; 0 on an asynchronous device, which is not waited for.
std::uint64_t fingerprint_of(const Tensor& value) {
  return value.device() == Device::cpu() ? XXH3_64bits(value.raw(), value.bytes()) : 0;
}

[[noreturn]] void throw_other_operations() {
  throw UsageError(
      "a recomputed segment of the model ran other operations in the backward than in the forward pass; "
      "recomputed(): the body must do the same each time it is called in a pass");
}

}  // namespace

void Recompute::clear() {
  uses_.clear();
  kept_.clear();
}

Recompute::Segment Recompute::begin_segment() const {
  return {.first_id = tape_.values_.size(),
          .first_use = uses_.size(),
          .first_kept = mode_.again ? mode_.next_kept : kept_.size()};
}

bool Recompute::is_made_since(std::size_t first, const Var& var) const {
  return var.id_ >= 0 && static_cast<std::size_t>(var.id_) >= first && !tape_.param_of(var);
}

void Recompute::end_first_run(Segment& segment, std::span<const Var> results) {
  segment.end_of_uses = uses_.size();
  segment.end_of_kept = mode_.again ? mode_.next_kept : kept_.size();
  segment.operations = mode_.operations;
  for (std::size_t id = segment.first_id; id < tape_.values_.size(); ++id)
    tape_.values_[id].hidden = !tape_.values_[id].param;
  for (const Var& result : results) {
    if (result.id_ >= 0) tape_.value_of(result).hidden = false;
  }
}

bool Recompute::leave(Segment& segment, std::span<Var> results) {
  mode_.operations = mixed(mode_.operations, segment.operations);
  if (mode_.again) mode_.next_kept = segment.end_of_kept;
  if (!mode_.keeps_nodes) return false;  // the segment around this one keeps none
  for (Var& result : results) {
    if (!is_made_since(segment.first_id, result)) continue;  // an input of the segment
    tape_.value_of(result).hidden = true;
    segment.values = mixed(segment.values, fingerprint_of(result.value()));
    result.id_ = tape_.new_id(nullptr, tape_.value_of(result).takes_two);
    if (segment.output_count++ == 0) segment.output = result.id_;
  }
  return segment.output_count > 0;
}

Recompute::TapePosition Recompute::position() const {
  return {tape_.nodes_.size(), tape_.values_.size(), tape_.chunk_, tape_.chunk_used_bytes_};
}

void Recompute::check_second_run(const Segment& segment, const TapePosition& start,
                                 std::span<const Var> results) const {
  int outputs = 0;
  std::uint64_t values = 0;
  for (const Var& result : results) {
    if (!is_made_since(start.ids, result)) continue;
    ++outputs;
    values = mixed(values, fingerprint_of(result.value()));
  }
  if (mode_.operations != segment.operations || mode_.next_kept != segment.end_of_kept ||
      outputs != segment.output_count)
    throw_other_operations();
  if (values != segment.values)
    throw UsageError(
        "a recomputed segment of the model gave other values in the backward than in the forward pass; "
        "recomputed(): the body must read nothing that changes within a pass");
}

void Recompute::finish_second_run(const Segment& segment, const TapePosition& start,
                                  std::span<const Var> results, const Tensor& dy, const Tensor& second_dy) {
  // The nodes of the second run count the same uses, so that a parameter is ready at the same operation.
  for (std::size_t i = segment.first_use; i < segment.end_of_uses; ++i) {
    if (Param* const param = tape_.values_[static_cast<std::size_t>(uses_[i])].param)
      --param->on_tape.open_uses;
  }
  // Two gradients of a result are passed on as two: the operation that computed it adds them.
  Tensor first = dy, second = second_dy;
  int output = segment.output;
  for (const Var& result : results) {
    if (!is_made_since(start.ids, result)) continue;
    if (first) tape_.add_gradient(result, first);
    if (second) tape_.add_gradient(result, second);
    if (++output == segment.output + segment.output_count) break;
    Tape::Value& value = tape_.values_[static_cast<std::size_t>(output)];
    first = std::exchange(value.gradient, {});
    second = std::exchange(value.second_gradient, {});
  }
  tape_.walk(start.nodes);
  tape_.drop_nodes(start.nodes);
  tape_.values_.resize(start.ids);
  tape_.chunk_ = start.chunk;
  tape_.chunk_used_bytes_ = start.chunk_used_bytes;
}

bool Recompute::note_operation(Tape::RunClosure operation, const Tensor& value,
                               std::initializer_list<const Var*> inputs, bool needs_gradient) {
  if (mode_.keeps_nodes && !mode_.again) return true;
  const auto note = [&](std::uint64_t number) { mode_.operations = mixed(mode_.operations, number); };
  note(reinterpret_cast<std::uintptr_t>(operation));
  for (const std::int64_t extent : value.shape()) note(static_cast<std::uint64_t>(extent));
  for (const Var* const input : inputs)
    note(tape_.param_of(*input) ? static_cast<std::uint64_t>(input->id_) + 1 : 0);
  if (mode_.keeps_nodes) {  // in a backward: communication makes progress
    if (tape_.pass_.sink) tape_.pass_.sink->progress();
    return true;
  }
  if (!needs_gradient) return false;
  for (const Var* const input : inputs) {
    Param* const param = tape_.param_of(*input);
    if (!param) continue;
    ++param->on_tape.open_uses;
    uses_.push_back(input->id_);
  }
  return false;
}

bool Recompute::take_kept(std::span<Tensor> tensors) {
  if (!mode_.again) return false;
  if (mode_.next_kept + tensors.size() > kept_.size()) throw_other_operations();
  for (Tensor& tensor : tensors) tensor = kept_[mode_.next_kept++];
  return true;
}

void Recompute::keep(std::span<const Tensor> tensors) {
  if (!mode_.keeps_nodes) kept_.insert(kept_.end(), tensors.begin(), tensors.end());
}

}  // namespace lockstep
