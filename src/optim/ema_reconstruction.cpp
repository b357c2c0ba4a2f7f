#include "lockstep/optim/ema_reconstruction.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

/// Of a response of length 1: what is left of it beyond those used already, squared. Less is rounding.
constexpr double smallest_news = 1e-12;

std::size_t row_start(std::size_t row) { return row * (row + 1) / 2; }

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

PowerResponse response_of(const EmaProfile& profile, std::int64_t updates) {
  if (!profile.is_power())
    throw UsageError("EMA {}: is a plain rate, which has no power-function profile", profile.name());
  if (updates <= 0) throw UsageError("EMA {}: {} updates make no average", profile.name(), updates);
  return {.gamma = profile.gamma(), .updates = static_cast<double>(updates)};
}

double inner_product(const PowerResponse& a, const PowerResponse& b) {
  if (a.updates > b.updates) return inner_product(b, a);
  return (a.gamma + 1) * (b.gamma + 1) / ((a.gamma + b.gamma + 1) * b.updates) *
         std::pow(a.updates / b.updates, b.gamma);
}

/// Cholesky with pivoting: the next one used is the one that those used so far represent worst. Snapshots
/// close to one another are nearly equal, and what only rounding tells apart is left out.
EmaReconstruction::EmaReconstruction(std::vector<PowerResponse> stored) : stored_(std::move(stored)) {
  if (stored_.empty()) throw UsageError("EMA: there are no stored averages to reconstruct one from");
  const std::size_t count = stored_.size();
  std::vector<double> scale(count), news(count, 1.0);
  for (std::size_t i = 0; i < count; ++i) scale[i] = 1 / std::sqrt(inner_product(stored_[i], stored_[i]));
  std::vector<std::vector<double>> rows(count);  // of the factor, for all that may still be used
  for (;;) {
    const auto pivot = static_cast<std::size_t>(std::max_element(news.begin(), news.end()) - news.begin());
    if (!(news[pivot] > smallest_news)) break;
    const double diagonal = std::sqrt(news[pivot]);
    for (std::size_t i = 0; i < count; ++i) {
      if (i == pivot || news[i] <= 0) continue;
      const double entry =
          (scale[i] * scale[pivot] * inner_product(stored_[i], stored_[pivot]) - dot(rows[pivot], rows[i])) /
          diagonal;
      rows[i].push_back(entry);
      news[i] -= entry * entry;
    }
    rows[pivot].push_back(diagonal);
    news[pivot] = 0;
    used_.push_back(pivot);
    scale_.push_back(scale[pivot]);
    factor_.insert(factor_.end(), rows[pivot].begin(), rows[pivot].end());
  }
  ones_ = solve(scale_);
}

/// The solution x of (scaled inner products) x = right.
std::vector<double> EmaReconstruction::solve(std::vector<double> right) const {
  const std::size_t count = used_.size();
  for (std::size_t row = 0; row < count; ++row) {
    const double* const factor = &factor_[row_start(row)];
    for (std::size_t k = 0; k < row; ++k) right[row] -= factor[k] * right[k];
    right[row] /= factor[row];
  }
  for (std::size_t row = count; row-- > 0;) {
    const double* const factor = &factor_[row_start(row)];
    right[row] /= factor[row];
    for (std::size_t k = 0; k < row; ++k) right[k] -= factor[k] * right[row];
  }
  return right;
}

EmaMixture EmaReconstruction::mixture_for(const PowerResponse& target) const {
  EmaMixture mixture{.weights = std::vector<double>(stored_.size()), .error = 0};
  if (const auto same = std::find(stored_.begin(), stored_.end(), target); same != stored_.end()) {
    mixture.weights[static_cast<std::size_t>(same - stored_.begin())] = 1;
    return mixture;
  }
  // In scaled weights y: least squares solves G y = right, and a multiplier of the sum, which is
  // scale . y = 1, shifts `right` along `scale`.
  std::vector<double> right(used_.size());
  for (std::size_t k = 0; k < used_.size(); ++k)
    right[k] = scale_[k] * inner_product(stored_[used_[k]], target);
  std::vector<double> scaled = solve(right);
  const double shift = (1 - dot(scale_, scaled)) / dot(scale_, ones_);
  double sum = 0;
  for (std::size_t k = 0; k < used_.size(); ++k) {
    scaled[k] += shift * ones_[k];
    sum += mixture.weights[used_[k]] = scaled[k] * scale_[k];
  }
  for (double& weight : mixture.weights) weight /= sum;  // 1 but for rounding

  // |G y - right| from the responses themselves: the mixture's squared length, less twice its share in the
  // target, more the target's own.
  double error = inner_product(target, target);
  const double own = error;
  for (const std::size_t i : used_) {
    double row = -2 * inner_product(stored_[i], target);
    for (const std::size_t j : used_) row += mixture.weights[j] * inner_product(stored_[i], stored_[j]);
    error += mixture.weights[i] * row;
  }
  mixture.error = std::sqrt(std::max(0.0, error) / own);
  return mixture;
}

}  // namespace lockstep::optim
