// NoiseSchedule: how much noise each step of a diffusion adds (Ho, Jain, Abbeel, 2020; Nichol, Dhariwal,
// 2021).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tasks {

/// The coefficients of a diffusion's steps, in float64, in the order of increasing noise. With an image x0 in
/// [-1, 1] and noise of variance 1, x_t = sqrt(alphas_cumprod[t]) x0 + sqrt(1 - alphas_cumprod[t]) noise.
/// They equal guided-diffusion's, bit for bit with the same libm: a schedule with fewer steps has the betas
/// that lead from one kept step to the next.
struct NoiseSchedule {
  /// name: "linear" (betas from 1e-4 to 0.02 in 1,000 steps) or "cosine". respacing: see kept_steps().
  /// UsageError if the name is unknown, if `steps` are too few for the schedule, or as in kept_steps().
  NoiseSchedule(std::string_view name, std::int64_t steps, std::string_view respacing = "");

  std::int64_t size() const { return std::ssize(timesteps); }  ///< number of kept steps

  std::vector<std::int64_t> timesteps;      ///< numbers of the kept steps: the network's input t
  std::vector<double> betas;                ///< variance of the noise that the step adds
  std::vector<double> alphas_cumprod;       ///< part of the image's variance that is left after the step
  std::vector<double> alphas_cumprod_prev;  ///< before the step
  std::vector<double> posterior_variance;   ///< of q(x_(t-1) | x_t, x0)
  std::vector<double>
      posterior_log_variance_clipped;        ///< its logarithm; at step 0, where it is 0, that of step 1
  std::vector<double> posterior_mean_coef1;  ///< of x0 in the mean of q(x_(t-1) | x_t, x0)
  std::vector<double> posterior_mean_coef2;  ///< of x_t
};

/// The kept steps of `steps`, in increasing order: "250" (that many, evenly), "ddim25" (that many, at a
/// constant integer stride), "10,15,20" (that many of each third), "" (all). UsageError if the text has
/// another form, or if the steps are too few.
std::vector<std::int64_t> kept_steps(std::int64_t steps, std::string_view respacing);

}  // namespace lockstep::tasks
