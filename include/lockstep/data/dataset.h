// Dataset: samples that can be read by number, in any order, from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

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
  /// The samples follow one another in one text: a split cuts them in two pieces instead of picking.
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

}  // namespace lockstep::data
