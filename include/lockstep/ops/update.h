// What an optimizer's step does to parameters: rules (rules.h), averages, and the sums of a gradient norm.
#pragma once

#include "lockstep/ops/operation.h"
#include "lockstep/ops/rules.h"

namespace lockstep::ops {

/// EMA weights to move on: average = decay average + (1 - decay) value.
struct EmaTarget {
  Tensor average;
  double decay = 0;  ///< in float32 1 - 0.9999 would be wrong in its fourth digit

  static void operands(auto& op, auto&& each) { each(in_out("an EMA average", op.average, float32)); }
};

/// A step of one parameter by a rule, and the averages that follow its new value. All of one shape.
template <class Rule>
struct ParameterUpdate {
  Rule rule;
  Tensor value, gradient;
  std::array<Tensor, Rule::states> state;
  std::span<const EmaTarget> ema = {};

  static void operands(auto& op, auto&& each) {
    each(in_out("value", op.value, float32), in("gradient", op.gradient, float32),
         in_out("state", op.state, float32), in_out("an EMA average", op.ema, float32));
  }
};

/// UsageError unless `tensor` has the value's shape.
void check_shape_of_update(const char* operation, const char* name, const Tensor& tensor,
                           const Tensor& value);

/// A step of many parameters in one pass. Each element is computed alone: a parameter may be cut anywhere
/// without changing a bit.
template <class Rule>
struct Update {
  static constexpr const char* name = Rule::name;
  std::span<const ParameterUpdate<Rule>> updates;

  static void operands(auto& op, auto&& each) { each(in_out("updates", op.updates, float32)); }
  void check() const {
    for (const ParameterUpdate<Rule>& update : updates) {
      check_shape_of_update(name, "gradient", update.gradient, update.value);
      for (const Tensor& state : update.state) check_shape_of_update(name, "state", state, update.value);
      for (const EmaTarget& target : update.ema)
        check_shape_of_update(name, "an EMA average", target.average, update.value);
    }
  }
};

/// target.average = decay * average + (1 - decay) * value, in a separate pass.
struct Ema {
  static constexpr const char* name = "ema";
  Tensor value, average;
  double decay = 0;

  static void operands(auto& op, auto&& each) {
    each(in("value", op.value, float32), in_out("the average", op.average, float32));
  }
  void check() const { check_shape_of_update(name, "the average", average, value); }
};

/// The float64 sum of squares over consecutive 4096-element blocks of x; blocks: one per block.
struct BlockSumsOfSquares {
  static constexpr const char* name = "block_sums_of_squares";
  static constexpr std::int64_t block_elements = 4096;
  Tensor x, blocks;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x, float32), out("the blocks", op.blocks, float64));
  }
  void check() const;
};

}  // namespace lockstep::ops
