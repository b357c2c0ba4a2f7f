// The Frechet distance between samples and data, in what the last linear layer of a classifier takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/host_group.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/evaluate.h"
#include "train/config.h"
#include "train/learned_data.h"

namespace lockstep::train {

/// Mean and covariance of rows of features, in float64. The sums are about the first row: little is lost
/// where the mean is far from 0.
class FeatureStatistics {
 public:
  /// Adds rows [N, F], float32, in the order of the calls. UsageError if F differs.
  void add(const Tensor& features);

  std::int64_t count() const { return count_; }
  std::int64_t width() const { return static_cast<std::int64_t>(first_.size()); }
  std::vector<double> mean() const;
  /// F x F, of samples: divided by count - 1.
  std::vector<double> covariance() const;

 private:
  std::int64_t count_ = 0;
  std::vector<double> first_, sum_;
  std::vector<double> products_;  // F x F
};

/// |mean a - mean b|^2 + trace(A + B - 2 (A B)^(1/2)), of the covariances A and B. Not a number if one of
/// them has one. UsageError if the widths differ or one has fewer than two rows.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

/// A classifier of ours that looks at samples and at data.train.
class FeatureExtractor {
 public:
  /// Opens the checkpoint and the data, as the classifier takes them. Collective; the same error on every
  /// rank: UsageError, naming sample.features, for a model without features, samples of a shape that it does
  /// not take (`sample`, empty if not known), and weights behind the names of data files; DataError as
  /// checkpoints and data throw it.
  FeatureExtractor(const Config& config, const std::optional<StoredRange>& range, const Shape& sample,
                   comm::HostGroup& world, kernels::Backend& backend);
  ~FeatureExtractor();

  /// Of samples [N, C, H, W] in [-1, 1], stored as the data are and read as the classifier reads data: [N, F]
  /// on the CPU. Not collective.
  Tensor of_samples(const Tensor& samples) const;
  /// Of all samples of data.train: complete on rank 0. Made once. Null, on every rank, if the watch ended it:
  /// the next call begins anew. Collective.
  const FeatureStatistics* of_data(const EvaluationWatch& watch);
  /// of_data() has been made.
  bool has_data() const;

 private:
  struct Classifier;
  std::unique_ptr<Classifier> classifier_;
};

}  // namespace lockstep::train
