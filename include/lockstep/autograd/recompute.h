// Segments of the forward pass whose activations are not kept but computed again in the backward (activation
// checkpointing).
//
// The segment's forward runs once more, and only one such segment at a time is in memory; the gradients have
// the same bits (Chen, Xu, Zhang, Guestrin 2016).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/autograd/tape.h"

namespace lockstep {

/// A Tape's bookkeeping of its recomputed segments; recomputed() is its only user.
class Recompute {
 public:
  explicit Recompute(Tape& tape) : tape_(tape) {}  ///< for the segments of one tape
  Recompute(const Recompute&) = delete;
  Recompute& operator=(const Recompute&) = delete;

  static Recompute& of(Tape& tape) { return *tape.recompute_; }  ///< the one of a tape
  template <class Body>
  auto run(Body body) -> decltype(body());  ///< runs the body of a segment, and again in backward

  // --- for the Tape
  void clear();  ///< forgets all segments
  /// Called for every operation of a pass. Returns whether the tape adds a node for it.
  bool note_operation(Tape::RunClosure operation, const Tensor& value,
                      std::initializer_list<const Var*> inputs, bool needs_gradient);
  /// For Tape::once(): whether `tensors` now hold the tensors of the first run.
  bool take_kept(std::span<Tensor> tensors);
  void keep(std::span<const Tensor> tensors);  ///< keeps tensors of a first run for the second

 private:
  /// A segment's first run. Ranges [first, end).
  struct Segment {
    std::size_t first_id = 0;
    std::size_t first_use = 0, end_of_uses = 0;   ///< in uses_
    std::size_t first_kept = 0, end_of_kept = 0;  ///< in kept_
    int output = -1, output_count = 0;            ///< results that a backward can reach
    std::uint64_t operations = 0, values = 0;     ///< fingerprints
  };
  struct Mode {
    bool keeps_nodes = true;       ///< false in a first run: operations only count their uses of parameters
    bool again = false;            ///< once() returns the kept tensors
    std::size_t next_kept = 0;     ///< the next of them
    std::uint64_t operations = 0;  ///< fingerprint of the segment so far
  };
  /// Restores the mode.
  class ModeScope {
   public:
    ModeScope(Recompute& recompute, const Mode& mode)
        : recompute_(recompute), before_(std::exchange(recompute.mode_, mode)) {}
    ~ModeScope() { recompute_.mode_ = before_; }
    ModeScope(const ModeScope&) = delete;
    ModeScope& operator=(const ModeScope&) = delete;

   private:
    Recompute& recompute_;
    Mode before_;
  };
  /// The tape's position before a second run.
  struct TapePosition {
    std::size_t nodes, ids, chunk, chunk_used_bytes;
  };

  static std::span<Var> vars_of(Var& var) { return {&var, 1}; }
  template <std::size_t count>
  static std::span<Var> vars_of(std::array<Var, count>& vars) {
    return vars;
  }
  Segment begin_segment() const;
  void end_first_run(Segment& segment, std::span<const Var> results);
  /// Makes the results outputs of the segment. Returns whether a backward can reach any of them.
  bool leave(Segment& segment, std::span<Var> results);
  TapePosition position() const;
  void check_second_run(const Segment& segment, const TapePosition& start,
                        std::span<const Var> results) const;
  /// Walks back from the results of the second run, then forgets that run.
  void finish_second_run(const Segment& segment, const TapePosition& start, std::span<const Var> results,
                         const Tensor& dy, const Tensor& second_dy);
  /// Whether an operation computed the value and its id is `first` or later.
  bool is_made_since(std::size_t first, const Var& var) const;

  Tape& tape_;
  Mode mode_;
  std::vector<int> uses_;     // of parameters, by id
  std::vector<Tensor> kept_;  // made in once()
};

template <class Body>
auto Recompute::run(Body body) -> decltype(body()) {
  Segment segment = begin_segment();
  auto results = [&] {
    const ModeScope scope(*this,
                          {.keeps_nodes = false, .again = mode_.again, .next_kept = segment.first_kept});
    auto outputs = body();
    end_first_run(segment, vars_of(outputs));
    return outputs;
  }();
  if (!leave(segment, vars_of(results))) return results;
  const auto backward = [body = std::move(body), segment](Tape& tape, const Tensor& dy,
                                                          const Tensor& second_dy) {
    Recompute& self = of(tape);
    const TapePosition start = self.position();
    auto again = [&] {
      const ModeScope scope(self, {.again = true, .next_kept = segment.first_kept});
      auto outputs = body();
      self.check_second_run(segment, start, vars_of(outputs));
      for (Var& var : vars_of(outputs)) var = var.without_value();
      return outputs;
    }();
    self.finish_second_run(segment, start, vars_of(again), dy, second_dy);
  };
  tape_.nodes_.push_back(tape_.new_node(backward, segment.output, segment.output_count));
  return results;
}

/// Returns body(), a Var or an array of Vars. Only what body captures is kept: its inputs, as Vars by value.
/// The backward calls `body` a second time; it must run the same operations on the same values. Random draws
/// repeat, because they are keyed by the pass; communication with other ranks and contributions to a
/// Statistic happen the first time only (Tape::once()). UsageError if the second run runs other operations,
/// or (on the CPU) gives other bits, or if a value from inside is used outside. Everything that body refers
/// to must outlive the pass. Calls may be nested. In a pass that does not record, it only calls body().
template <class Body>
auto recomputed(Tape& tape, Body body) -> decltype(body()) {
  if (!tape.pass().record) return body();
  return Recompute::of(tape).run(std::move(body));
}

}  // namespace lockstep
