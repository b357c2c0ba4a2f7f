// Dataset: samples that can be read by number, in any order, from any thread. Views and splits of one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lockstep/data/sampler.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

/// Sample i is (x, y): an input, and int64 labels or target tokens. Reading is const and safe from several
/// threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual Shape x_shape() const = 0;  ///< of one sample: [C, H, W], [T]
  virtual DType x_dtype() const = 0;  ///< float32 or int64
  virtual Shape y_shape() const = 0;  ///< of one sample: [] for a label, [T] for target tokens
  /// Every element of y is in [0, classes()).
  virtual std::int64_t classes() const = 0;
  /// The samples are consecutive windows of one text: split() cuts them in two, without a permutation.
  virtual bool sequential() const { return false; }
  /// Where the samples come from, for messages.
  virtual std::string name() const = 0;

  /// Reads samples into x [samples, x_shape] of x_dtype() and y [samples, y_shape] int64. Throws UsageError
  /// on a sample outside [0, size()) or tensors of other shapes, DataError if the data is bad.
  virtual void read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const = 0;

 protected:
  /// The UsageErrors of read().
  void check_read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const;
};

/// [rows, sample's extents ...]
Shape batch_shape(std::int64_t rows, const Shape& sample);

/// A view of `count` samples of `base` from number `first` on, in the order of the base or of a permutation.
/// The base must outlive it.
class Subset final : public Dataset {
 public:
  /// Throws UsageError if the samples are not all within the base.
  Subset(const Dataset& base, std::int64_t first, std::int64_t count, std::optional<Permutation> order = {});

  /// The number of sample i in the base.
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
