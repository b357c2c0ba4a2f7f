#include "lockstep/tasks/noise_schedule.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::tasks {
namespace {

constexpr std::int64_t max_steps = 1000000;

std::int64_t whole_number(std::string_view text, std::string_view all) {
  std::int64_t number = 0;
  if (!parse_number(text, number) || number < 1 || number > max_steps)
    throw UsageError(
        "steps {}: write a number of steps as in 250, ddim25, or one for each part of the schedule as in "
        "10,15,20",
        quote(all));
  return number;
}

std::vector<std::int64_t> numbers_of(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0;;) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    numbers.push_back(whole_number(text.substr(at, comma - at), text));
    if (comma == text.size()) return numbers;
    at = comma + 1;
  }
}

/// The stride of "ddimN": the smallest with which exactly N steps are taken.
std::int64_t stride_for(std::int64_t steps, std::int64_t count, std::string_view respacing) {
  for (std::int64_t stride = 1; stride < steps; ++stride)
    if ((steps + stride - 1) / stride == count) return stride;
  throw UsageError("steps {}: no integer stride takes exactly {} of {} steps; give another number", respacing,
                   count, steps);
}

/// Like Python's **, which calls libm: x * x rounds differently.
double squared(double x) {
  volatile double two = 2;
  return std::pow(x, two);
}

double cosine_alpha_bar(double t) { return squared(std::cos((t + 0.008) / 1.008 * M_PI / 2)); }

std::vector<double> all_betas(std::string_view name, std::int64_t steps) {
  constexpr double max_cosine_beta = 0.999;
  const auto count = static_cast<double>(steps);
  std::vector<double> betas(static_cast<std::size_t>(steps));
  if (name == "linear") {
    const double scale = 1000 / count, first = scale * 0.0001, last = scale * 0.02;
    const double stride = (last - first) / (count - 1);
    for (std::size_t i = 0; i < betas.size(); ++i) betas[i] = static_cast<double>(i) * stride + first;
    betas.back() = last;
    if (last >= 1)  // nothing of the image would be left
      throw UsageError(
          "the linear schedule needs at least 21 steps, not {}: with fewer its last beta is 1 or more",
          steps);
  } else if (name == "cosine") {
    for (std::size_t i = 0; i < betas.size(); ++i) {
      const double from = static_cast<double>(i) / count, to = static_cast<double>(i + 1) / count;
      betas[i] = std::min(1 - cosine_alpha_bar(to) / cosine_alpha_bar(from), max_cosine_beta);
    }
  } else {
    throw UsageError("schedule {} is not one of: linear, cosine", quote(name));
  }
  return betas;
}

/// The products of 1 - beta up to each step.
std::vector<double> products_of(const std::vector<double>& betas) {
  std::vector<double> products;
  double product = 1;
  for (const double beta : betas) products.push_back(product *= 1 - beta);
  return products;
}

}  // namespace

std::vector<std::int64_t> kept_steps(std::int64_t steps, std::string_view respacing) {
  std::vector<std::int64_t> kept;
  constexpr std::string_view ddim = "ddim";
  if (respacing.starts_with(ddim)) {
    const std::int64_t count = whole_number(respacing.substr(ddim.size()), respacing);
    const std::int64_t stride = stride_for(steps, count, respacing);
    for (std::int64_t step = 0; step < steps; step += stride) kept.push_back(step);
    return kept;
  }
  const std::vector<std::int64_t> counts =
      respacing.empty() ? std::vector<std::int64_t>{steps} : numbers_of(respacing);
  const auto parts = std::ssize(counts);
  std::int64_t first = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t size = steps / parts + (part < steps % parts ? 1 : 0);
    const std::int64_t count = counts[static_cast<std::size_t>(part)];
    if (count > size)
      throw UsageError("steps {}: {} has {} steps, so {} cannot be kept", respacing,
                       parts == 1 ? "the schedule" : fmt::format("part {} of the {} steps", part + 1, steps),
                       size, count);
    const double stride = count == 1 ? 1 : static_cast<double>(size - 1) / static_cast<double>(count - 1);
    double at = 0;  // summed and rounded to even as the original does
    for (std::int64_t i = 0; i < count; ++i, at += stride)
      kept.push_back(first + static_cast<std::int64_t>(std::nearbyint(at)));
    first += size;
  }
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

NoiseSchedule::NoiseSchedule(std::string_view name, std::int64_t steps, std::string_view respacing) {
  if (steps < 2 || steps > max_steps)
    throw UsageError("a diffusion of {} steps is out of range: 2 to {} steps are possible", steps, max_steps);
  timesteps = kept_steps(steps, respacing);
  if (size() < 2) throw UsageError("steps {}: at least 2 steps are needed", respacing);
  const std::vector<double> all_products = products_of(all_betas(name, steps));
  double product_before = 1;
  for (const std::int64_t step : timesteps) {
    const double product = all_products[static_cast<std::size_t>(step)];
    betas.push_back(1 - product / product_before);
    product_before = product;
  }
  alphas_cumprod = products_of(betas);
  alphas_cumprod_prev.assign(1, 1.0);
  alphas_cumprod_prev.insert(alphas_cumprod_prev.end(), alphas_cumprod.begin(), alphas_cumprod.end() - 1);
  for (std::size_t t = 0; t < betas.size(); ++t) {
    const double now = 1 - alphas_cumprod[t], before = 1 - alphas_cumprod_prev[t];
    posterior_variance.push_back(betas[t] * before / now);
    posterior_mean_coef1.push_back(betas[t] * std::sqrt(alphas_cumprod_prev[t]) / now);
    posterior_mean_coef2.push_back(before * std::sqrt(1 - betas[t]) / now);
  }
  for (std::size_t t = 0; t < betas.size(); ++t)
    posterior_log_variance_clipped.push_back(std::log(posterior_variance[std::max<std::size_t>(t, 1)]));
}

}  // namespace lockstep::tasks
