// Subset: a view of some of a dataset's samples, and the split into a training and an evaluation part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

/// `count` samples of `base` from place `first` on, in its own order or in that of a permutation. The base
/// must outlive it.
class Subset final : public Dataset {
 public:
  /// Throws UsageError if the places are not all within the base.
  Subset(const Dataset& base, std::int64_t first, std::int64_t count, std::optional<Permutation> order = {});

  /// The base's number of sample i.
  std::int64_t base_sample(std::int64_t i) const { return order_ ? (*order_)(first_ + i) : first_ + i; }

  std::int64_t size() const override { return count_; }
  Shape x_shape() const override { return base_.x_shape(); }
  DType x_dtype() const override { return base_.x_dtype(); }
  Shape y_shape() const override { return base_.y_shape(); }
  std::int64_t classes() const override { return base_.classes(); }
  bool sequential() const override { return base_.sequential(); }
  std::string name() const override { return base_.name(); }
  void read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const override;

 private:
  const Dataset& base_;
  std::int64_t first_, count_;
  std::optional<Permutation> order_;
};

struct Split {
  Subset train, eval;
};

/// Two parts without a common sample that together are all of them, the evaluation part round(eval_fraction *
/// size), at least 1. Which samples go where depends on the size and the seed only. Of a sequential dataset
/// the evaluation part is the end, whatever the seed. Throws UsageError unless 0 < eval_fraction < 1,
/// DataError if either part would be empty.
Split split(const Dataset& dataset, double eval_fraction, std::uint64_t seed);

}  // namespace lockstep::data
