// Losses. A total is float64 [2]: the sum of losses and the count that divides it for the mean. The factor of
// a backward is one float32.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

// --- errors in data; the texts are the same on every device

/// The target of a row of logits is not a class.
[[noreturn]] inline void throw_target_outside(const char* operation, std::int64_t target, std::int64_t row,
                                              std::int64_t classes) {
  throw DataError("{}: target {} in row {} is not one of the {} classes", operation, target, row, classes);
}

/// Two losses that are added count different samples.
[[noreturn]] inline void throw_counts_differ(std::int64_t a, std::int64_t b) {
  throw UsageError(
      "loss: a + b adds losses over the same samples, but these count {} and {}; append(a, b) joins "
      "two sample sets",
      a, b);
}

/// How a cross-entropy counts.
struct CrossEntropyOptions {
  float label_smoothing = 0;
  std::int64_t ignore_index = -100;
};

/// A total on the CPU.
struct CountedSum {
  double sum = 0;
  double count = 0;  ///< what divides it: samples, tokens or elements
};

/// logits: [rows, classes], targets: int64 [rows]. The sum of losses, and the number of rows counted (not
/// ignored). log_sum_exp: [rows], for the backward. A target out of range throws DataError with row and
/// value, at the same time as an Embedding does for an index.
struct CrossEntropy {
  static constexpr const char* name = "cross_entropy";
  Tensor logits, targets;
  CrossEntropyOptions options;
  Tensor log_sum_exp, total;

  static void operands(auto& op, auto&& each) {
    each(in("the logits", op.logits), in("the targets", op.targets, int64),
         out("log_sum_exp", op.log_sum_exp, float32), out("the total", op.total, float64).per_part());
  }
  void check() const;
};

/// dlogits = factor * d(sum) / d(logits). dlogits may be the logits.
struct CrossEntropyBackward {
  static constexpr const char* name = "cross_entropy_backward";
  Tensor logits, targets;
  CrossEntropyOptions options;
  Tensor log_sum_exp, factor, dlogits;

  static void operands(auto& op, auto&& each) {
    each(in("the logits", op.logits).by_row(), in("the targets", op.targets, int64).by_row(),
         in("log_sum_exp", op.log_sum_exp, float32).by_row(), in("the factor", op.factor, float32).per_part(),
         out("dlogits", op.dlogits).by_row());
  }
  void check() const;
};

/// CrossEntropy and its backward at once, with a factor of 1: the logits become their gradient. With
/// `classes`, only so many columns are logits, and the rest become zeros.
struct CrossEntropyInPlace {
  static constexpr const char* name = "cross_entropy_in_place";
  Tensor logits, targets;
  CrossEntropyOptions options;
  Tensor total;
  std::int64_t classes = 0;  ///< 0: all columns

  static void operands(auto& op, auto&& each) {
    each(in_out("the logits", op.logits), in("the targets", op.targets, int64),
         out("the total", op.total, float64).per_part());
  }
  void check() const;
};

/// x = factor * x; factor: one float32. If it is 1, as for the loss that a backward starts from, x is neither
/// read nor written; cost() assumes this.
struct ScaleUnlessOne {
  static constexpr const char* name = "scale_unless_one";
  Tensor x, factor;

  static void operands(auto& op, auto&& each) {
    each(in_out("x", op.x), in("the factor", op.factor, float32).per_part());
  }
  void check() const;
  Cost cost() const { return {.bytes = static_cast<double>(factor.bytes())}; }
};

/// total = factor * a + b, for losses over the same samples: adds the sums, keeps the count. b may be absent.
/// UsageError naming both counts if they differ; a GPU throws it at the next read.
struct CombineTotals {
  static constexpr const char* name = "loss";
  Tensor a;
  double factor = 1;
  Tensor b, total;

  static void operands(auto& op, auto&& each) {
    each(in("a total", op.a, float64).per_part(), in("a total", op.b, float64).per_part().optional(),
         out("the total", op.total, float64).per_part());
  }
  void check() const;
};

/// correct: one int64, the rows whose largest logit (the first on a tie) is the target.
struct CountCorrect {
  static constexpr const char* name = "count_correct";
  Tensor logits, targets, correct;

  static void operands(auto& op, auto&& each) {
    each(in("the logits", op.logits), in("the targets", op.targets, int64),
         out("the count", op.correct, int64));
  }
  void check() const;
};

}  // namespace lockstep::ops
