// EMA weights of other widths after training: the mixture of stored power-function averages that is closest
// to another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/optim/ema.h"

namespace lockstep::optim {

/// How much a power-function average remembers of each moment tau in (0, t]: (gamma + 1) tau^gamma /
/// t^(gamma + 1), whose integral over update k is exactly the weight of that update after t of them
/// (Karras et al., "Analyzing and improving the training dynamics of diffusion models", CVPR 2024).
struct PowerResponse {
  double gamma = 0;
  double updates = 0;  ///< t

  bool operator==(const PowerResponse&) const = default;
};

/// Throws UsageError unless the profile is a power function and updates > 0.
PowerResponse response_of(const EmaProfile& profile, std::int64_t updates);

/// Integral of the product over the time that both have: with m the shorter of the two times,
/// (gamma_a + 1) (gamma_b + 1) m^(gamma_a + gamma_b + 1) /
/// ((gamma_a + gamma_b + 1) t_a^(gamma_a + 1) t_b^(gamma_b + 1)).
double inner_product(const PowerResponse& a, const PowerResponse& b);

/// A weighted sum of stored averages that replaces another one.
struct EmaMixture {
  std::vector<double> weights;  ///< of each stored one; their sum is 1
  /// |response of the mixture - response asked for| / |response asked for|. If the weights of the model
  /// were independent from step to step, this would be the relative error of the reconstructed weights;
  /// those of a real run change slowly, which makes it much smaller.
  double error = 0;
};

/// Finds mixtures of given averages by least squares in float64.
class EmaReconstruction {
 public:
  /// Throws UsageError if there is none.
  explicit EmaReconstruction(std::vector<PowerResponse> stored);

  /// The mixture with the least error among those whose weights add up to 1, so that what never changed in
  /// training stays as it is. An average that is among the stored ones is that one alone.
  EmaMixture mixture_for(const PowerResponse& target) const;

 private:
  std::vector<double> solve(std::vector<double> right) const;

  std::vector<PowerResponse> stored_;
  std::vector<std::size_t> used_;  // indices of stored_; the others add nothing to these
  std::vector<double> scale_;      // of used_: 1 / |response|
  std::vector<double> factor_;     // Cholesky factor of the scaled inner products, rows by used_, packed
  std::vector<double> ones_;       // solution for right-hand sides of 1
};

}  // namespace lockstep::optim
