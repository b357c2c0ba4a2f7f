// Reductions along axes: folds (formulas.h) of the elements that become one element of the result.
#pragma once

#include "lockstep/ops/check.h"
#include "lockstep/ops/formulas.h"
#include "lockstep/ops/operation.h"
#include "ops/strides.h"

namespace lockstep::ops {

/// x as contiguous slabs [rows, period], whose columns are folded. `period` is 1 if the last dimension is
/// folded. Each of `groups` has `slabs` and gives `period` contiguous elements of y.
struct ReductionSizes {
  std::int64_t period = 1, rows = 1;
  StridedDimensions<1> groups, slabs;

  /// The rows of all slabs of a group.
  std::int64_t all_rows() const { return rows * slabs.count(); }
};

/// How x is folded to y. UsageError unless y broadcasts to x by NumPy's rules.
ReductionSizes reduction_sizes(const char* operation, const Tensor& x, const Tensor& y);
/// UsageError if y has elements and x has none, for a fold that needs at least one.
void check_fold_of_none(const char* operation, const Tensor& x, const Tensor& y);

/// Whether a fold joins terms of two inputs; folds_pairs: the second input has x's shape.
template <class Fold>
inline constexpr bool folds_terms = requires {
  Fold::by_element;
};
template <class Fold>
inline constexpr bool folds_pairs = requires {
  requires Fold::by_element;
};

/// y (+)= factor * the fold of all elements of x that y's element is broadcast to: the inverse of Map's
/// broadcasting. Computed in float64 (the CPU: float32 for at most 64 elements at a time), in an order that
/// depends on the shapes alone, and rounded once to y's type, which may differ from x's. other: the second
/// input of terms, of x's shape and type, or of y's shape.
template <class Fold>
struct ReduceAxes {
  static constexpr const char* name = Fold::name;
  Tensor x, y;
  bool accumulate = false;
  double factor = 1;
  Tensor other = {};

  static void operands(auto& op, auto&& each) {
    if constexpr (folds_pairs<Fold>)
      each(in("x", op.x), in("the other", op.other), in_out("y", op.y, floats).per_part());
    else if constexpr (folds_terms<Fold>)
      each(in("x", op.x), in("the other", op.other, floats).per_part(), in_out("y", op.y, floats).per_part());
    else
      each(in("x", op.x), in_out("y", op.y, floats).per_part());
  }
  void check() const {
    (void)sizes();
    if constexpr (folds_terms<Fold>)
      require_shape(name, "the other", other, (folds_pairs<Fold> ? x : y).shape());
    if constexpr (Fold::start != 0) check_fold_of_none(name, x, y);
  }
  ReductionSizes sizes() const { return reduction_sizes(name, x, y); }
};

/// x: [outer, extent, inner].
struct LineSizes {
  std::int64_t outer = 1, extent = 1, inner = 1;
};

/// y = the sums of the elements up to each position of an axis >= 0; backwards: from each position on.
/// Computed in float64.
struct CumulativeSum {
  static constexpr const char* name = "cumsum";
  Tensor x;
  int axis = 0;
  bool backwards = false;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x), out("y", op.y)); }
  LineSizes sizes() const;
};

}  // namespace lockstep::ops
