#include "lockstep/autograd/recompute.h"

#include <xxhash.h>

namespace lockstep {
namespace {

std::uint64_t mixed(std::uint64_t fingerprint, std::uint64_t value) {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  fingerprint = (fingerprint ^ value) * odd;
  return fingerprint ^ (fingerprint >> 32);
}

/// Of the bits of a value; a device that runs behind is not waited for.
std::uint64_t fingerprint_of(const Tensor& value) {
  return value.device() == Device::cpu() ? XXH3_64bits(value.raw(), value.bytes()) : 0;
}

[[noreturn]] void throw_other_operations() {
  throw UsageError(
      "a part of the model that is computed again in the backward ran other operations there than in the "
      "forward pass; recomputed(): the body must do the same each time it is called in a pass");
}

}  // namespace

Tape::Part Tape::begin_part() const {
  return {.first_id = gradients_.size(),
          .first_use = uses_.size(),
          .first_kept = mode_.again ? mode_.next_kept : kept_.size()};
}

bool Tape::is_made_since(std::size_t first, const Var& var) const {
  return var.id_ >= 0 && static_cast<std::size_t>(var.id_) >= first && !param_of(var);
}

void Tape::end_first_run(Part& part, std::span<const Var> results) {
  part.end_of_uses = uses_.size();
  part.end_of_kept = mode_.again ? mode_.next_kept : kept_.size();
  part.operations = mode_.operations;
  for (std::size_t id = part.first_id; id < dismissed_.size(); ++id) dismissed_[id] = !param_of_id_[id];
  for (const Var& result : results) {
    if (result.id_ >= 0) dismissed_[static_cast<std::size_t>(result.id_)] = false;
  }
}

bool Tape::leave_part(Part& part, std::span<Var> results) {
  mode_.operations = mixed(mode_.operations, part.operations);
  if (mode_.again) mode_.next_kept = part.end_of_kept;
  if (!mode_.keep) return false;  // the larger part keeps nothing either
  for (Var& result : results) {
    if (!is_made_since(part.first_id, result)) continue;  // what the part was given
    dismissed_[static_cast<std::size_t>(result.id_)] = true;
    part.values = mixed(part.values, fingerprint_of(result.value()));
    result.id_ = new_id(nullptr, gradients_[static_cast<std::size_t>(result.id_)].takes_two);
    if (part.output_count++ == 0) part.output = result.id_;
  }
  return part.output_count > 0;
}

void Tape::check_again(const Part& part, const Mark& mark, std::span<const Var> results) const {
  int outputs = 0;
  std::uint64_t values = 0;
  for (const Var& result : results) {
    if (!is_made_since(mark.ids, result)) continue;
    ++outputs;
    values = mixed(values, fingerprint_of(result.value()));
  }
  if (mode_.operations != part.operations || mode_.next_kept != part.end_of_kept ||
      outputs != part.output_count)
    throw_other_operations();
  if (values != part.values)
    throw UsageError(
        "a part of the model that is computed again in the backward gave other values there than in the "
        "forward pass; recomputed(): the body must read nothing that changes within a pass");
}

void Tape::finish_again(const Part& part, const Mark& mark, std::span<const Var> results, const Tensor& dy,
                        const Tensor& beside) {
  // The nodes of the second run count the same uses, so that a parameter is ready when it would have been.
  for (std::size_t i = part.first_use; i < part.end_of_uses; ++i) {
    if (Param* const param = param_of_id_[static_cast<std::size_t>(uses_[i])]) --param->on_tape.open_uses;
  }
  // Gradients that reached a result apart are given apart: the operation that made it adds them itself.
  Tensor sum = dy, other = beside;
  int output = part.output;
  for (const Var& result : results) {
    if (!is_made_since(mark.ids, result)) continue;
    if (sum) give(result, sum);
    if (other) give(result, other);
    if (++output == part.output + part.output_count) break;
    Received& received = gradients_[static_cast<std::size_t>(output)];
    sum = std::exchange(received.sum, {});
    other = std::exchange(received.beside, {});
  }
  walk(mark.nodes);
  drop_nodes(mark.nodes);
  drop_ids(mark.ids);
  chunk_ = mark.chunk;
  chunk_used_bytes_ = mark.chunk_used_bytes;
}

void Tape::count_uses(std::initializer_list<const Var*> inputs) {
  for (const Var* const input : inputs) {
    Param* const param = param_of(*input);
    if (!param) continue;
    ++param->on_tape.open_uses;
    uses_.push_back(input->id_);
  }
}

void Tape::note_operation(RunClosure run, const Tensor& value, std::initializer_list<const Var*> inputs) {
  if (mode_.keep && !mode_.again) return;
  const auto note = [&](std::uint64_t number) { mode_.operations = mixed(mode_.operations, number); };
  note(reinterpret_cast<std::uintptr_t>(run));
  for (const std::int64_t extent : value.shape()) note(static_cast<std::uint64_t>(extent));
  for (const Var* const input : inputs)
    note(param_of(*input) ? static_cast<std::uint64_t>(input->id_) + 1 : 0);
  // In a backward: communication continues.
  if (mode_.keep && pass_.sink) pass_.sink->progress();
}

void Tape::check_kept(std::size_t count) const {
  if (mode_.next_kept + count > kept_.size()) throw_other_operations();
}

void Tape::check_reachable(const Var& var) const {
  if (var.id_ < 0) return;
  const auto id = static_cast<std::size_t>(var.id_);
  if (id < dismissed_.size() && !dismissed_[id]) return;
  throw UsageError(
      "a value from inside a part of the model that is computed again is used outside of it; recomputed(): "
      "the body must return it");
}

}  // namespace lockstep
