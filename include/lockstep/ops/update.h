// What an optimizer's step does to parameters: rules, EMA weights, and the sums of a gradient norm. A rule
// computes the new value and state of one element, and is written once for CPU and GPU. To add a rule, write
// a struct and add its name to Rules.
#pragma once

#include <cstdint>

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// AdamW (Loshchilov, Hutter, 2019), in PyTorch's order of operations. State: exp_avg, exp_avg_sq.
struct AdamW {
  static constexpr const char* name = "adamw";
  static constexpr int states = 2;

  /// The factors of one step.
  struct Step {
    double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
    std::int64_t step = 1;  ///< counts from 1, for the bias corrections
    float gradient_factor =
        1;  ///< multiplies the gradient first: 1 / global count, times the clipping factor
  };
  /// UsageError if the step does not count from 1.
  static AdamW of(const Step& step);

  float decay, gradient_factor, beta1, beta2, fresh1, fresh2, correction2, eps, rate;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient, float& exp_avg,
                                         float& exp_avg_sq) const {
    const float g = gradient * gradient_factor;
    const float m = beta1 * exp_avg + fresh1 * g;
    const float v = beta2 * exp_avg_sq + fresh2 * (g * g);
    const float denominator = square_root(v) / correction2 + eps;
    exp_avg = m;
    exp_avg_sq = v;
    value = value * decay - rate * (m / denominator);
  }
};

/// SGD without momentum.
struct Sgd {
  static constexpr const char* name = "sgd";
  static constexpr int states = 0;
  float rate, decay, gradient_factor;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient) const {
    value = value - rate * (gradient * gradient_factor + decay * value);
  }
};

/// SGD with PyTorch's momentum, or Nesterov's. State: momentum_buffer.
template <bool Nesterov>
struct SgdMomentum {
  static constexpr const char* name = Nesterov ? "sgd_nesterov" : "sgd_momentum";
  static constexpr int states = 1;
  float rate, momentum, decay, gradient_factor;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient, float& momentum_buffer) const {
    const float g = gradient * gradient_factor + decay * value;
    momentum_buffer = momentum * momentum_buffer + g;
    value = value - rate * (Nesterov ? g + momentum * momentum_buffer : momentum_buffer);
  }
};

/// Lion (Chen et al., 2023). State: exp_avg.
struct Lion {
  static constexpr const char* name = "lion";
  static constexpr int states = 1;
  float rate, decay, beta1, fresh1, beta2, fresh2, gradient_factor;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient, float& exp_avg) const {
    const float g = gradient * gradient_factor;
    const float direction = beta1 * exp_avg + fresh1 * g;
    exp_avg = beta2 * exp_avg + fresh2 * g;
    value = value * decay - (direction > 0 ? rate : direction < 0 ? -rate : 0.0f);
  }
};

/// All rules, which every device implements.
using Rules = TypeList<AdamW, Sgd, SgdMomentum<false>, SgdMomentum<true>, Lion>;

/// EMA weights to update: average = decay average + (1 - decay) value.
struct EmaTarget {
  Tensor average;
  double decay = 0;  ///< in float32 1 - 0.9999 would be wrong in its fourth digit

  static void operands(auto& op, auto&& each) { each(in_out("an EMA average", op.average, float32)); }
};

/// A step of one parameter by a rule, and the EMA weights that follow its new value. All tensors have one
/// shape.
template <class Rule>
struct ParameterUpdate {
  Rule rule;
  Tensor value, gradient;
  std::array<Tensor, Rule::states> state;
  std::span<const EmaTarget> ema = {};
  Tensor rounded = {};  ///< bf16 copy of the new value; may be absent

  static void operands(auto& op, auto&& each) {
    each(in_out("value", op.value, float32), in("gradient", op.gradient, float32),
         in_out("state", op.state, float32), in_out("an EMA average", op.ema, float32),
         out("the rounded value", op.rounded, floats).optional());
  }
};

/// UsageError unless `tensor` has the value's shape.
void check_shape_of_update(const char* operation, const char* name, const Tensor& tensor,
                           const Tensor& value);
/// The same for a rounded value, which may be absent and must be bf16.
void check_rounded_value(const char* operation, const Tensor& rounded, const Tensor& value);

/// A step of many parameters in one pass. Elements are independent: a parameter may be split anywhere without
/// changing a bit.
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
      check_rounded_value(name, update.rounded, update.value);
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

/// The float64 sums of squares over consecutive 4096-element blocks of tensors, in one pass.
struct BlockSumsOfSquares {
  static constexpr const char* name = "block_sums_of_squares";
  static constexpr std::int64_t block_elements = 4096;
  /// One tensor, and its sums: one per block.
  struct Part {
    Tensor x, blocks;

    static void operands(auto& op, auto&& each) {
      each(in("x", op.x, float32), out("the blocks", op.blocks, float64));
    }
  };
  std::span<const Part> parts;

  static void operands(auto& op, auto&& each) { each(in_out("parts", op.parts, float32)); }
  void check() const;
};

/// Sums the gradients of `parts` shards along the reduction tree over them (comm/reduction_tree.h): a bucket
/// of tensors in one pass. A plane holds the gradient of one shard. The table is int64 [chunks, 4]; a row
/// describes a run of at most max_chunk elements of one tensor, and runs do not overlap:
///   {first element in plane 0, elements from a plane to the next, first element in the sums, elements}
/// Elements are counted from the beginnings of planes and sums, which are float32 or float64, both of one
/// type and of any shape. The sums outside all runs stay.
struct AddAlongTree {
  static constexpr const char* name = "add_along_tree";
  static constexpr std::int64_t max_chunk = 4096;
  /// Maximal number of planes.
  static constexpr int max_parts = 1 << 15;
  Tensor planes, sums, table;
  int parts = 1;

  static void operands(auto& op, auto&& each) {
    each(in("the planes", op.planes, anything), in_out("the sums", op.sums, anything),
         in("the table", op.table, int64));
  }
  void check() const;
  Cost cost() const { return {.bytes = (parts + 1.0) * static_cast<double>(sums.bytes())}; }
};

}  // namespace lockstep::ops
