// Parts of the forward pass whose activations are not kept but computed again in the backward.
//
// It takes the time of the part's forward once more, and the memory of one such part at a time instead of all
// of them; the gradients have the same bits (Chen, Xu, Zhang, Guestrin 2016).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "lockstep/autograd/tape.h"

namespace lockstep {

namespace recompute {

inline std::span<Var> vars_of(Var& var) { return {&var, 1}; }
template <std::size_t count>
std::span<Var> vars_of(std::array<Var, count>& vars) {
  return vars;
}

}  // namespace recompute

/// body(), a Var or an array of them, of which only what body captures is kept: its inputs, as Vars by value.
/// `body` is called a second time in the backward, where it must do what it did: the same operations on the
/// same values. Random draws repeat, because they are keyed by the pass; what meets other ranks or
/// contributes to a Statistic happens the first time only (Tape::once()). UsageError if the second run is of
/// other operations, or (on the CPU) gives other bits, or if a value from inside is used outside. What body
/// refers to must live until the pass is over. May be nested. Without recording it is just body().
template <class Body>
auto recomputed(Tape& tape, Body body) -> decltype(body()) {
  if (!tape.pass().record) return body();
  Tape::Part part = tape.begin_part();
  auto results = [&] {
    const Tape::ModeScope scope(tape,
                                {.keep = false, .again = tape.mode_.again, .next_kept = part.first_kept});
    auto made = body();
    tape.end_first_run(part, recompute::vars_of(made));
    return made;
  }();
  if (!tape.leave_part(part, recompute::vars_of(results))) return results;
  const auto backward = [body = std::move(body), part](Tape& t, const Tensor& dy, const Tensor& beside) {
    const Tape::Mark mark = t.begin_again();
    auto again = [&] {
      const Tape::ModeScope scope(t, {.again = true, .next_kept = part.first_kept});
      auto made = body();
      t.check_again(part, mark, recompute::vars_of(made));
      for (Var& var : recompute::vars_of(made)) var = var.without_value();
      return made;
    }();
    t.finish_again(part, mark, recompute::vars_of(again), dy, beside);
  };
  tape.nodes_.push_back(tape.new_node(backward, part.output, part.output_count));
  return results;
}

}  // namespace lockstep
