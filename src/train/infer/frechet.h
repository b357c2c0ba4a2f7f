// The Frechet distance between samples and data, of a classifier's features (the input of its last linear
// layer).
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

/// Mean and covariance of rows of features, in float64. The sums are relative to the first row, for accuracy
/// if the mean is far from 0.
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

/// |mean a - mean b|^2 + trace(A + B - 2 (A B)^(1/2)), of the covariances A and B. NaN if one of them has
/// NaN. UsageError if the widths differ or one has fewer than two rows.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

/// A Lockstep classifier that computes features of samples and of data.train.
class FeatureExtractor {
 public:
  /// Opens the checkpoint and the data for the classifier. Collective; the same error on every rank:
  /// UsageError, naming sample.features, for a model without features, samples of another shape (`sample`,
  /// empty if unknown), and weights of data files; the DataErrors of checkpoints and data.
  FeatureExtractor(const Config& config, const std::optional<StoredRange>& range, const Shape& sample,
                   comm::HostGroup& world, kernels::Backend& backend);
  ~FeatureExtractor();

  /// Features [N, F] on the CPU of samples [N, C, H, W] in [-1, 1], converted to stored values and normalised
  /// for the classifier. Not collective.
  Tensor of_samples(const Tensor& samples) const;
  /// Statistics of all samples of data.train: complete on rank 0. Computed once. Null, on every rank, if the
  /// watch ended it: the next call begins again. Collective.
  const FeatureStatistics* of_data(const EvaluationWatch& watch);
  /// Whether of_data() is complete.
  bool has_data() const;

 private:
  struct Classifier;
  std::unique_ptr<Classifier> classifier_;
};

}  // namespace lockstep::train
