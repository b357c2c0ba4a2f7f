// NoiseSchedule: how much noise each step of a diffusion adds (Ho, Jain, Abbeel, 2020; Nichol, Dhariwal,
// 2021).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tasks {

/// The numbers of a diffusion's steps, in float64, from the one with the least noise on. With an image x0 in
/// [-1, 1] and noise of variance 1, x_t = sqrt(alphas_cumprod[t]) x0 + sqrt(1 - alphas_cumprod[t]) noise.
/// They are guided-diffusion's, bit for bit where the processor's libm is: a schedule that takes fewer steps
/// has the betas that lead from one kept step to the next.
struct NoiseSchedule {
  /// name: "linear" (betas from 1e-4 to 0.02 in 1,000 steps) or "cosine". respacing: see kept_steps().
  /// UsageError if the name is another one, if `steps` are too few for the schedule, or as kept_steps().
  NoiseSchedule(std::string_view name, std::int64_t steps, std::string_view respacing = "");

  std::int64_t size() const { return std::ssize(timesteps); }  ///< of the kept steps

  std::vector<std::int64_t> timesteps;      ///< which of all steps these are: what the network is told
  std::vector<double> betas;                ///< variance of the noise that the step adds
  std::vector<double> alphas_cumprod;       ///< part of the image's variance that is left after the step
  std::vector<double> alphas_cumprod_prev;  ///< before it
  std::vector<double> posterior_variance;   ///< of q(x_(t-1) | x_t, x0)
  std::vector<double>
      posterior_log_variance_clipped;        ///< its logarithm; that of step 1 at step 0, where it is 0
  std::vector<double> posterior_mean_coef1;  ///< of x0 in the mean of q(x_(t-1) | x_t, x0)
  std::vector<double> posterior_mean_coef2;  ///< of x_t
};

/// Which of `steps` steps are kept, rising: "250" (as many, evenly), "ddim25" (as many, at a constant whole
/// stride), "10,15,20" (as many of each third), "" (all). UsageError if the text is none of these, or if the
/// steps are too few.
std::vector<std::int64_t> kept_steps(std::int64_t steps, std::string_view respacing);

}  // namespace lockstep::tasks
